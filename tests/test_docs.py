"""What the documents say works: their Python runs, their commands parse, their links lead on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from perdure import catalog
from perdure.cli import DataOptions, FetchOptions, ReproduceOptions, RunOptions, parse
from perdure.grid import PAPER

ROOT = Path(__file__).parents[1]
PAGES = sorted({ROOT / "README.md", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})

PLACEHOLDERS = {"STREAM": "s-mnist", "METHOD": "clser", "BUFFER": "500", "N": "5", "DIR": "data"}


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, and what it holds."""

    language: str
    line: int
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page; one that is marked `text` is not meant to be run."""
    fence = r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$"
    for found in re.finditer(fence, page, re.MULTILINE | re.DOTALL):
        line = page[: found.start("text")].count("\n") + 1
        yield Block(found["language"], line, found["text"])


def commands(page: str) -> Iterator[tuple[int, list[str]]]:
    """The commands in shell blocks with their line numbers; comments and prompts left out."""
    for block in blocks(page):
        if block.language not in ("sh", "bash", "shell", "console"):
            continue
        whole = block.text.replace("\\\n", "  ")  # a continued line
        for number, line in enumerate(whole.splitlines()):
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # NAME=value before it
                words.pop(0)
            if words:
                yield block.line + number, [_filled_in(word) for word in words]


def _filled_in(word: str) -> str:
    """A word with placeholders such as DIR replaced by something that could stand there."""
    return re.sub(r"\b[A-Z]+\b", lambda found: PLACEHOLDERS.get(found[0], found[0]), word)


def links(page: str) -> Iterator[str]:
    """Where the links of a page lead, code left out."""
    prose = re.sub(r"```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "code", prose)
    yield from re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(page: str) -> set[str]:
    """The names under which the headings of a page can be linked, as GitHub makes them."""
    prose = re.sub(r"```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_pages_are_taken_apart() -> None:
    page = (
        "# A *page*, `it` is\n\n[one](a.md#b) and [`two`](c/d.md), not `[three](e.md)`\n\n"
        "```python\nx = 1\n\nassert x\n```\n\n```text\n[four](f.md)\n```\n\n"
        "```sh\n# only a remark\nperdure run STREAM \\\n  --seeds 0:N  # why\n"
        "CI=true make test\n```\n"
    )
    assert [(block.language, block.line) for block in blocks(page)] == [
        ("python", 6),
        ("text", 12),
        ("sh", 16),
    ]
    assert next(blocks(page)).text == "x = 1\n\nassert x\n"
    assert [words for _, words in commands(page)] == [
        ["perdure", "run", "s-mnist", "--seeds", "0:5"],
        ["make", "test"],
    ]
    assert list(links(page)) == ["a.md#b", "c/d.md"]
    assert anchors(page) == {"a-page-it-is"}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}  # the blocks of a page build on each other
    for block in blocks(page.read_text()):
        if block.language != "python":
            continue
        # Empty lines above it, so that a traceback names the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            exec(code, names)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_parse(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line, (program, *words) in commands(page.read_text()):
        where = f"{page_name(page)}, line {line}: {program} {' '.join(words)}"
        if program == "make":
            assert set(words) <= targets, where
        if program != "perdure":
            continue
        try:
            options = parse(words)
        except ValueError as error:
            pytest.fail(f"{where}: {error}")
        match options:
            case RunOptions(stream=stream, method=method):
                assert stream in catalog.STREAMS or ":" in stream, where
                assert method in catalog.METHODS or ":" in method, where
            case ReproduceOptions(table=table, grid=grid):
                assert table in PAPER if grid is None else table is None, where
            case DataOptions(FetchOptions(name=name)):
                assert name, where


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page.read_text()):
        if re.match(r"[a-z]+:", link):  # of the web
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page_name(page)}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), f"{page_name(page)}: {link}"


def test_every_method_has_a_page() -> None:
    pages = {page.stem for page in (ROOT / "docs/methods").glob("*.md")}
    assert pages - {"joint"} == set(catalog.METHODS) - {"joint"}
