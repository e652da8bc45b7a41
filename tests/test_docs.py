"""The documentation: the site builds, Python runs, commands parse, links resolve."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

import perdure
from perdure import catalog
from perdure.cli import main, parse
from perdure.cli.data import DataOptions, FetchOptions
from perdure.cli.reproduce import ReproduceOptions
from perdure.cli.run import RunOptions
from perdure.data import DATASETS
from perdure.experiment.grid import PAPER_TABLES
from perdure.report import rendering
from perdure.report.content import compose, default_title
from perdure.results import collect

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
TUTORIALS = sorted(ROOT.glob("docs/tutorials/*.md"))

PLACEHOLDERS = {"STREAM": "s-mnist", "METHOD": "clser", "BUFFER": "500", "N": "5", "DIR": "data"}


class Block(NamedTuple):
    """A fenced code block and the line number of its first line."""

    language: str
    line: int
    text: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page; those marked `text` are not meant to run."""
    fence = r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$"
    for found in re.finditer(fence, page, re.MULTILINE | re.DOTALL):
        line = page[: found.start("text")].count("\n") + 1
        yield Block(found["language"], line, found["text"])


def commands(page: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and words of each command in shell blocks, without comments or prompts."""
    for block in blocks(page):
        if block.language not in ("sh", "bash", "shell", "console"):
            continue
        joined = block.text.replace("\\\n", "  ")  # continued lines
        for number, line in enumerate(joined.splitlines()):
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # NAME=value before it
                words.pop(0)
            if words:
                yield block.line + number, [_fill_in(word) for word in words]


def _fill_in(word: str) -> str:
    """Replace placeholders such as DIR by a possible value."""
    return re.sub(r"\b[A-Z]+\b", lambda found: PLACEHOLDERS.get(found[0], found[0]), word)


def links(page: str) -> Iterator[str]:
    """Yield the targets of a page's links, ignoring code."""
    prose = re.sub(r"```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "code", prose)
    yield from re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs create them."""
    prose = re.sub(r"```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r"^::: (\S+)$", prose, re.MULTILINE))  # API entries


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_pages_are_parsed() -> None:
    page = (
        "# A *page*, `it` is\n\n[one](a.md#b) and [`two`](c/d.md), not `[three](e.md)`\n\n"
        "```python\nx = 1\n\nassert x\n```\n\n```text\n[four](f.md)\n```\n\n"
        "```sh\n# a comment\nperdure run STREAM \\\n  --seeds 0:N  # why\n"
        "CI=true make test\n```\n\n::: perdure.CLSER\n"
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
    assert anchors(page) == {"a-page-it-is", "perdure.CLSER"}


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(TUTORIALS)), ids=page_name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run in order and share their names."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text()):
        if block.language == "python":
            run_python(block, page, names)


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    # Empty lines before it make a traceback show the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(code, names)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=page_name)
def test_tutorials_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(page, tmp_path, monkeypatch)


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize("page", TUTORIALS, ids=page_name)
def test_tutorials_run_with_little_training(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_tutorial(page, tmp_path, monkeypatch, "--max-steps", "10")


def run_tutorial(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *run_flags: str
) -> None:
    """Python, modules (blocks that start with their file's name) and commands run in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text()):
        if module := re.match(r"# (\w+\.py)\n", block.text):
            Path(module[1]).write_text(block.text)
        elif block.language == "python":
            run_python(block, page, names)
        for line, (program, *words) in commands(f"```{block.language}\n{block.text}```"):
            assert program == "perdure", line
            more = ["--workers", "1", *run_flags] if words[0] == "run" else []
            assert main([*words, *more]) == 0, line
    for name in set(sys.modules):
        if Path(f"{name}.py").is_file():
            del sys.modules[name]
    assert "report.html" in os.listdir()
    assert {"model.onnx", "model.pt2"} <= set(os.listdir())


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_parse(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line, (program, *words) in commands(page.read_text()):
        where = f"{page_name(page)}, line {line}: {program} {' '.join(words)}"
        if program == "make":
            assert set(words) <= targets, where
        if program != "perdure" or words == ["--version"]:
            continue
        try:
            options = parse(words)
        except ValueError as error:
            pytest.fail(f"{where}: {error}")
        match options:
            case RunOptions(stream=stream, method=method):
                assert stream in catalog.STREAMS or ":" in stream, where
                for name in method.split(","):
                    assert name in catalog.METHODS or ":" in name, where
            case ReproduceOptions(table=table, grid=grid):
                assert table in PAPER_TABLES if grid is None else table is None, where
            case DataOptions(FetchOptions(dataset=name)):
                assert name in DATASETS, where


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page.read_text()):
        if re.match(r"[a-z]+:", link):  # on the web
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page_name(page)}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), f"{page_name(page)}: {link}"


def test_every_method_has_a_page() -> None:
    pages = {page.stem for page in (ROOT / "docs/methods").glob("*.md")}
    assert pages - {"joint", "index"} == set(catalog.METHODS) - {"joint"}


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    shown = re.findall(r"^::: perdure\.([\w.]+)$", reference, re.MULTILINE)
    # A name that is also a module is shown by its full path: `streams.from_table.from_table`.
    assert {name.rpartition(".")[2] for name in shown} >= set(perdure.__all__)
    assert {name for name in shown if "." not in name} <= set(perdure.__all__)


@pytest.mark.usefixtures("without_charts")
def test_the_example_report_is_up_to_date() -> None:
    """Apart from the charts, it is what the command on its page writes."""
    collection = collect([ROOT / "results/runs"])
    content = compose(collection, default_title(collection, ["runs"]))
    stored = (ROOT / "docs/example-report/report.html").read_text(encoding="utf-8")
    without_charts = re.sub(r'(<div class="chart">).*?</svg>', r"\1", stored, flags=re.DOTALL)
    assert rendering.render(content, "html") == without_charts


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


def test_the_site_has_its_pages_and_an_index_for_language_models(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert (site / "example-report/report.html").is_file()
    for link in links((site / "llms.txt").read_text()):
        assert (site / link).is_file(), link


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_pages_fit_the_screen_and_load_nothing_from_other_hosts(
    site: Path, open_page: Callable[..., Page], width: int
) -> None:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    handler = functools.partial(Handler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for path in ("", "results/", "all-results/", "reference/learners/"):
                page = open_page(f"http://127.0.0.1:{server.server_port}/{path}", width=width)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.locator("h1").count() == 1
                page.wait_for_load_state("networkidle")  # before the server ends
        finally:
            server.shutdown()
