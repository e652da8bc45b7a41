"""The report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from perdure.report.content import Report
from perdure.report.drawing import inline_svg
from perdure.report.panels import Figure, slug
from perdure.report.style import DARK, LIGHT, variables


def page(report: Report) -> str:
    """The page's HTML."""
    environment = Environment(
        loader=PackageLoader("perdure.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["slug"] = slug
    environment.globals["panels"] = _panels
    return environment.get_template("page.html").render(
        report=report,
        style=Markup(_file("style.css")),
        script=Markup(_file("script.js")),
        light=Markup(variables(LIGHT)),
        dark=Markup(variables(DARK)),
    )


def _panels(figure: Figure) -> list[Markup]:
    """Each panel as SVG of its own, so that a narrow screen can put one below the other."""
    return [
        Markup(inline_svg(panel, f"{figure.name}-{number}", _alternative(figure, panel.title)))
        for number, panel in enumerate(figure.panels)
    ]


def _alternative(figure: Figure, title: str) -> str:
    return f"{figure.title}: {title}" if title else figure.title


def _file(name: str) -> str:
    return (resources.files("perdure.report") / "templates" / name).read_text(encoding="utf-8")
