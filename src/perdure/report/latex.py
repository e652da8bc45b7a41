"""The tables of a report as LaTeX, for use in a paper."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.report.content import Report
from perdure.report.tables import Cell, Table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "…": r"\ldots{}",
    "’": "'",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{character: f"\\{character}" for character in "#$%&_{}"},
}


def latex(report: Report) -> str:
    """Each table as a float, preceded by the commands that reproduce it as comments."""
    head = [f"% {_comment(report.title)}: {_comment(report.summary)}"]
    head += ["% Requires \\usepackage[T1]{fontenc} and \\usepackage{booktabs}.", ""]
    return "\n".join([*head, *(line for table in report.tables() for line in _table(table))])


def _table(table: Table) -> Iterator[str]:
    for command in table.commands:
        yield f"% {_comment(command)}"
    yield from (r"\begin{table}", r"\centering")
    columns = "".join("r" if table.numeric(i) else "l" for i in range(len(table.columns)))
    yield rf"\begin{{tabular}}{{{columns}}}"
    yield r"\toprule"
    yield " & ".join(escaped(column) for column in table.columns) + r" \\"
    yield r"\midrule"
    for row in table.rows:
        yield " & ".join(_cell(cell) for cell in row) + r" \\"
    yield from (r"\bottomrule", r"\end{tabular}")
    yield rf"\caption{{{escaped(table.title)}. {escaped(table.caption)}}}"
    yield from (r"\end{table}", "")


def _cell(cell: Cell) -> str:
    published = f" ({cell.published}, {cell.status})" if cell.published else ""
    return escaped(f"{cell.text}{published}")


def escaped(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    >>> print(escaped("50 % of a_b \\input{x} ± 1"))
    50 \% of a\_b \textbackslash{}input\{x\} $\pm$ 1
    """
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _comment(text: str) -> str:
    """Text on one line, since a comment ends with its line."""
    return " ".join(text.split())
