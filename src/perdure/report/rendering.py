"""Write a report as one HTML page, or its tables as Markdown or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from perdure.report.charts import Figure
from perdure.report.content import Report
from perdure.report.style import DARK, LIGHT
from perdure.results.records import printable
from perdure.results.table import slug

_LATEX = {
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
    "[": "{[}",  # after the end of a row it would begin a length
    "*": "{*}",
    '"': r"\textquotedbl{}",
    **{character: f"\\{character}" for character in "#$%&_{}"},
}


def render(report: Report, form: Literal["html", "md", "tex"]) -> str:
    """The report as one HTML page, as tables and claims in Markdown, or as tables in LaTeX."""
    escape = {"html": None, "md": markdown_escaped, "tex": latex_escaped}[form]
    environment = Environment(
        loader=PackageLoader("perdure.report"),
        autoescape=True,
        finalize=None if escape is None else _unless_markup(escape),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"slug": slug, "line": _one_line, "code": _code, "fence": _fence}
    environment.globals |= {"charts": _charts, "light": LIGHT, "dark": DARK}
    text = environment.get_template(f"report.{form}").render(report=report)
    return printable(f"{text.rstrip()}\n")


def _unless_markup(escape: Callable[[str], str]) -> Callable[[object], Markup]:
    """Escape every value of a template except markup such as the result of a macro."""
    return lambda value: value if isinstance(value, Markup) else Markup(escape(str(value)))


def _charts(figure: Figure) -> list[Markup]:
    """Each chart as an SVG element, so that a narrow screen can stack them."""
    from perdure.report.drawing import inline_svg

    found = []
    for number, chart in enumerate(figure.charts):
        title = f"{figure.title}: {chart.title}" if chart.title else figure.title
        try:
            svg = inline_svg(chart, f"{figure.name}-{number}", title)
        except ValueError as error:
            raise ValueError(f"cannot draw {title!r} of {figure.name}: {error}") from error
        found.append(Markup(svg))
    return found


def _one_line(text: str) -> Markup:
    """Text on one line and not escaped, for a comment."""
    return Markup(" ".join(text.split()))


def latex_escaped(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    >>> print(latex_escaped("50 % of a_b \\input{x} ± 1"))
    50 \% of a\_b \textbackslash{}input\{x\} $\pm$ 1
    """
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def markdown_escaped(text: str) -> str:
    r"""Text with Markdown's special characters escaped.

    >>> print(markdown_escaped("a|b *c* <d> [e] 1.5 s-mnist"))
    a\|b \*c\* &lt;d&gt; \[e\] 1.5 s-mnist
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])|^(?=[#+-] )", r"\\\1", text)


def _fence(text: str, least: int = 3) -> Markup:
    """More backticks than the text has in a row."""
    return Markup("`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0)))


def _code(text: str) -> Markup:
    """Text as inline code, whatever backticks it contains."""
    text = " ".join(text.split()) or " "
    fence, space = _fence(text, 1), " " if "`" in text else ""
    return Markup(f"{fence}{space}{text}{space}{fence}")
