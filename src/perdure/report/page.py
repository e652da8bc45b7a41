"""The report as a single HTML page without external resources."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from perdure.report.charts import Figure
from perdure.report.content import Report
from perdure.report.drawing import inline_svg
from perdure.report.style import DARK, LIGHT, variables
from perdure.results.table import slug


def page(report: Report) -> str:
    """The HTML of the page."""
    environment = Environment(
        loader=PackageLoader("perdure.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["slug"] = slug
    environment.globals["charts"] = _charts
    return environment.get_template("page.html").render(
        report=report,
        style=Markup(_file("style.css")),
        script=Markup(_file("script.js")),
        light=Markup(variables(LIGHT)),
        dark=Markup(variables(DARK)),
    )


def _charts(figure: Figure) -> list[Markup]:
    """Each chart as an SVG element, so that a narrow screen can stack them."""
    return [
        Markup(inline_svg(chart, f"{figure.name}-{number}", _alternative(figure, chart.title)))
        for number, chart in enumerate(figure.charts)
    ]


def _alternative(figure: Figure, title: str) -> str:
    return f"{figure.title}: {title}" if title else figure.title


def _file(name: str) -> str:
    return (resources.files("perdure.report") / "templates" / name).read_text(encoding="utf-8")
