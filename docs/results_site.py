"""The rows of the page "All results", built from ../results when the documentation is built.

`hooks.py` replaces the line `<!-- all results -->` of all-results.md by `rows_html` and adds the
JSON files that the rows link to.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from make_results import ROOT, Row, published, read

from perdure.results.verdict import TOLERANCE, signed, verdict

MARK = "<!-- all results -->"
HEAD = ("method, buffer", "ours", "seeds", "published", "verdict", "how it was made")
UNKNOWN = "The reason is not known."
NO_FIGURE = {
    "fixed": "The paper's runs saw another stream, so its figure does not apply.",
    "settings": "The paper has no figure for these settings.",
    "readme": "The settings behind the published figure are not released.",
}


def rows_html(rows: Sequence[Row], reasons: Sequence[Mapping[str, Any]]) -> str:
    """A table with one row per setting, grouped by stream."""
    lines = []
    for stream in dict.fromkeys(row.config.stream for row in rows):
        lines += [f"## {stream}", "", '<div class="all-results"><table><thead><tr>']
        lines += [f"<th>{name}</th>" for name in HEAD]
        lines += ["</tr></thead><tbody>"]
        lines += [_row(row, reasons) for row in rows if row.config.stream == stream]
        lines += ["</tbody></table></div>", ""]
    return "\n".join(lines)


def _row(row: Row, reasons: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        escape(row.label if row.config.buffer_size is None else f"{row.label}, {row.buffer}"),
        str(row.ours),
        str(len(row.seeds)),
        escape(published(row)).replace(" ± ", "&nbsp;±&nbsp;"),
        " ".join(badge(row, reasons)),
        details(row),
    ]
    labelled = zip(HEAD, cells, strict=True)  # on narrow screens, cells are below each other
    columns = "".join(f'<td data-label="{name}">{cell}</td>' for name, cell in labelled)
    return f'<tr id="{row.hash}">{columns}</tr>'


def badge(row: Row, reasons: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The badge of a row, and what explains it."""
    figures = row.compared
    if not figures:
        why = "fixed" if row.stream_note.startswith("fixed") else "settings"
        why = "readme" if published(row) != "–" else why
        return _badge("none", "no published figure"), NO_FIGURE[why]
    first, *others = (verdict(row.ours, figure) for figure in figures)
    agrees = first.status == "agrees"
    wide = agrees and abs(first.difference) > TOLERANCE
    sentences = [
        f"{signed(first.difference)} points{', within two standard errors' if wide else ''}."
    ]
    sentences += [
        f"{signed(other.difference)} from Table {figure.table}, which contradicts "
        f"Table {figures[0].table}."
        for figure, other in zip(figures[1:], others, strict=True)
        if other.status != "agrees"
    ]
    sentences += ["One seed."] if len(row.seeds) == 1 else []
    text, page = reason(row, reasons)
    if not agrees or (wide and page):
        sentences.append(escape(text))
        sentences += [f'<a href="{_address(page)}">More</a>'] if page else []
    kind = ("verified", "verified") if agrees else ("deviates", f"not reproducible: {first.status}")
    return _badge(*kind), " ".join(sentences)


def _badge(kind: str, text: str) -> str:
    return f'<span class="badge {kind}">{text}</span>'


def _address(page: str) -> str:
    """The address of a page of the site, relative to that of this page."""
    path, _, anchor = page.partition("#")
    return f"../{path.removesuffix('.md')}/{'#' if anchor else ''}{anchor}"


def reason(row: Row, reasons: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Why a result differs from the published one, and the page that says more."""
    config = row.config
    for found in reversed(reasons):
        sizes = found.get("buffer_sizes", [config.buffer_size])
        if (
            config.stream in found["streams"]
            and config.method in found["methods"]
            and config.buffer_size in sizes
        ):
            return found["reason"], found["page"]
    return UNKNOWN, ""


def details(row: Row) -> str:
    """Command, hash, commit, time and files of a row, folded."""
    device = "GPU" if row.config.device == "cuda" else "CPU"
    time = "unknown" if row.seconds is None else f"{row.seconds:,.0f}"
    links = ", ".join(
        f'<a href="../{address}">{escape(label)}</a>' for label, address in addresses(row).items()
    )
    lines = [
        f"<code>{escape(row.config.command(row.seeds))}</code>",
        f"configuration <code>{row.hash}</code>, commit <code>{commit(row)}</code>",
        f"{device} seconds, all seeds: {time}",
        f"JSON: {links}",
    ]
    return f"<details><summary>command, {row.hash}</summary>{'<br>'.join(lines)}</details>"


def addresses(row: Row) -> dict[str, str]:
    """Where the site has the JSON files of a row, by label."""
    size = row.config.buffer_size
    named = (row.config.method, *(() if size is None else (size,)), row.hash)
    name = re.sub(r"[^\w-]+", "-", "-".join(map(str, named)))
    folder = f"runs/{row.config.stream}/{name}"
    return {label: f"{folder}/{label.replace(' ', '-')}.json" for label in row.files}


def json_files(rows: Sequence[Row]) -> dict[str, str]:
    """The content of the JSON files that the rows link to, by address."""
    return {
        address: file if isinstance(file, str) else file.read_text(encoding="utf-8")
        for row in rows
        for file, address in zip(row.files.values(), addresses(row).values(), strict=True)
    }


def commit(row: Row) -> str:
    """The commit that stored the newest run of a row; a dash if the history is not available.

    Files were renamed and rewritten since, so a run is recognised by its time, and a line with
    the mean of several runs by this mean and their time.
    """
    keys: list[tuple[float | None, ...]] = [(row.ours.mean, row.seconds)]
    if row.setting is not None:
        keys = [(run.timing.seconds,) for run in row.setting.runs]
    commits = _commits()
    found = [commits[key] for key in keys if key in commits]
    return max(found)[1] if len(found) == len(keys) else "–"


@functools.cache
def _commits() -> dict[tuple[float | None, ...], tuple[int, str]]:
    """By time, or mean and time, the first commit with it: its place and its hash."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return {}
    history = _git(
        "log", "--reverse", "--format=commit %h", "-p", "-U0", "--", "results", "experiments"
    )
    found: dict[tuple[float | None, ...], tuple[int, str]] = {}
    place, name = 0, ""
    for line in history.splitlines():
        if line.startswith("commit "):
            place, name = place + 1, line.removeprefix("commit ")
        elif line.startswith("+"):
            times = [float(number) for number in re.findall(r'"seconds": (\d+\.?\d*)', line)]
            for mean in re.findall(r'"mean": (\d+\.?\d*)', line):
                found.setdefault((float(mean), *times), (place, name))
            if len(times) == 1:
                found.setdefault((times[0],), (place, name))
    return found


def _git(*words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout.strip() if ended.returncode == 0 else ""


@functools.cache
def stored() -> tuple[list[Row], list[dict[str, Any]]]:
    """The stored results, and the reasons for deviations."""
    text = (ROOT / "results" / "reasons.toml").read_text(encoding="utf-8")
    return read(ROOT / "results"), tomllib.loads(text)["reasons"]
