"""The tables and claims of a report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perdure.report.content import Report, Verdict
from perdure.report.tables import Cell, Table


def markdown(report: Report) -> str:
    """The whole of it, ending with a line's end."""
    return "\n".join(
        [f"# {escaped(report.title)}", "", escaped(report.summary), "", *_body(report)]
    )


def _body(report: Report) -> Iterator[str]:
    yield from ("## What was run", "", *_table(report.overview))
    for chapter in report.chapters:
        yield from (f"## {escaped(chapter.setup.name)}", "", *_table(chapter.results))
    if report.chapters:
        yield from ("## The paper's claims", "", escaped(report.tally), "")
    for verdict in report.verdicts if report.chapters else ():
        yield from _verdict(verdict)
    for table in report.paper:
        yield from (f"## {escaped(table.title)}", "", *_table(table))
    if report.collection.leftovers:
        yield from ("## Left out", "")
        for one in report.collection.leftovers:
            yield f"- {_code(one.place)}: {one.state}, {escaped(one.reason)}"
        yield ""


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield from (f"### {escaped(verdict.text)}", "")
    about = f"measured: {verdict.measure}" if verdict.evidence else f"it takes {verdict.needs}"
    yield from (f"**{verdict.answer}** ({escaped(about)})", "")
    if verdict.evidence:
        yield from _table(verdict.evidence)


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
    for label in table.unmade:
        yield from (f"{escaped(label)} was made in Python: no flags say its settings.", "")


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _cell(cell: Cell) -> str:
    mark = {"within": " ✓", "outside": " ✗"}.get(cell.mood, "")
    beside = f" (paper {cell.beside})" if cell.beside else ""
    return f"{escaped(cell.text)}{escaped(beside)}{mark}"


def escaped(text: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> print(escaped("a|b *c* <d> [e] 1.5 s-mnist"))
    a\|b \*c\* &lt;d&gt; \[e\] 1.5 s-mnist
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])|^(?=[#+-] )", r"\\\1", text)


def _code(text: str) -> str:
    """Text between enough backticks."""
    fence, space = "`" * (1 + _longest(text)), " " if "`" in text else ""
    return f"{fence}{space}{' '.join(text.split())}{space}{fence}"


def _longest(text: str) -> int:
    """Backticks that stand together."""
    return max((len(found) for found in re.findall("`+", text)), default=0)
