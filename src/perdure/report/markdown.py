"""The tables and claims of a report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perdure.report.content import CheckedClaim, Report
from perdure.report.tables import Cell, Table


def markdown(report: Report) -> str:
    """The report as Markdown text."""
    return "\n".join(
        [f"# {escaped(report.title)}", "", escaped(report.summary), "", *_body(report)]
    )


def _body(report: Report) -> Iterator[str]:
    yield from ("## Runs", "", *_table(report.overview))
    for chapter in report.chapters:
        yield from (f"## {escaped(chapter.comparison.name)}", "", *_table(chapter.results))
    if report.chapters:
        yield from ("## Claims of the paper", "", report.claims_summary, "")
        for checked in report.claims:
            yield from _claim(checked)
    for table in report.paper:
        yield from (f"## {escaped(table.title)}", "", *_table(table))
    if report.collection.skipped:
        yield from ("## Skipped folders", "")
        for folder in report.collection.skipped:
            yield f"- {_code(folder.place)}: {folder.state}, {escaped(folder.reason)}"
        yield ""


def _claim(checked: CheckedClaim) -> Iterator[str]:
    claim = checked.claim
    yield from (f"### {escaped(claim.text)}", "")
    about = f"measured: {claim.measure}" if checked.evidence else f"requires {claim.needs}"
    yield from (f"**{claim.status}** ({escaped(about)})", "")
    if checked.evidence:
        yield from _table(checked.evidence)


def _table(table: Table) -> Iterator[str]:
    if table.rows:
        yield _line([escaped(column) for column in table.columns])
        marks = ["---:" if table.numeric(i) else "---" for i in range(len(table.columns))]
        yield _line(marks)
        yield from (_line([_cell(cell) for cell in row]) for row in table.rows)
        yield ""
    if table.caption:
        yield from (escaped(table.caption), "")
    if table.commands:
        fence = "`" * max(3, 1 + _longest("\n".join(table.commands)))
        yield from (f"{fence}sh", *table.commands, fence, "")


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _cell(cell: Cell) -> str:
    published = f" (published {cell.published}, {cell.status})" if cell.published else ""
    return escaped(f"{cell.text}{published}")


def escaped(text: str) -> str:
    r"""Text with Markdown's special characters escaped.

    >>> print(escaped("a|b *c* <d> [e] 1.5 s-mnist"))
    a\|b \*c\* &lt;d&gt; \[e\] 1.5 s-mnist
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])|^(?=[#+-] )", r"\\\1", text)


def _code(text: str) -> str:
    """Text as inline code, whatever backticks it contains."""
    fence, space = "`" * (1 + _longest(text)), " " if "`" in text else ""
    return f"{fence}{space}{' '.join(text.split())}{space}{fence}"


def _longest(text: str) -> int:
    """Length of the longest sequence of backticks."""
    return max((len(found) for found in re.findall("`+", text)), default=0)
