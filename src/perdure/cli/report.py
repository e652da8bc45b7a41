"""`perdure report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from perdure.cli.options import Folder, Switch, writable

if TYPE_CHECKING:
    from perdure.report import Report


@dataclass(frozen=True)
class ReportOptions:
    """Write a report on runs: results beside the paper's, its tables, claims and figures.

    Analyses that runs lack are made where their networks and data are there. Folders that are no
    finished runs are listed as such.
    """

    runs: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="[RUNS ...]", help_behavior_hint="")
    ] = (Path("runs"),)
    """Folders with runs in them; `runs` unless given."""
    out: Annotated[
        Path | None, arg(name="output", aliases=["-o"], metavar="FILE", help_behavior_hint="")
    ] = None
    """The file to write; report.html (or .md, .tex) unless given."""
    format: Literal["html", "md", "tex"] = "html"
    """One page that needs nothing else; or the tables as Markdown or LaTeX."""
    figures: Folder = None
    """Also write each figure into this folder, with its numbers as JSON."""
    figure_format: Literal["svg", "pdf"] = "svg"
    """What these figures are written as."""
    data: Folder = None
    """Folder with the datasets, where runs have to be analysed."""
    as_is: Switch = False
    """Make no analyses."""
    title: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None
    """The title; the names of the folders unless given."""
    quiet: Switch = False
    """No progress."""


def report(options: ReportOptions) -> int:
    """Read the runs, analyse what is missing, write the page and the figures."""
    import torch

    from perdure.experiment.progress import print_status as tell_user
    from perdure.files import write_atomic
    from perdure.report import collect, complete, compose

    out = options.out or Path(f"report.{options.format}")
    if out.is_dir():
        raise ValueError(f"-o {out} is a folder; expected the name of a file")
    writable(out.parent, "-o")
    if options.figures is not None:
        writable(options.figures, "--figures")
    collection, missing = collect(options.runs), dict[str, str]()
    if not options.as_is:
        torch.set_num_threads(1)  # the same numbers, whatever the machine
        tell = (lambda message: None) if options.quiet else tell_user
        collection, missing = complete(collection, options.data, tell)
    names = ", ".join(path.resolve().name or str(path) for path in options.runs)
    content = compose(collection, options.title or f"Report on {names}", missing)
    write_atomic(out, _written(content, options.format).encode())
    written = [str(out)]
    if options.figures is not None:
        count = _draw(content, options.figures, options.figure_format)
        written.append(f"{count} figures in {options.figures}")
    print(f"wrote {' and '.join(written)}")
    return 0


def _written(content: Report, form: str) -> str:
    match form:
        case "html":
            from perdure.report.page import page

            return page(content)
        case "md":
            from perdure.report.markdown import markdown

            return markdown(content)
        case _:
            from perdure.report.latex import latex

            return latex(content)


def _draw(content: Report, folder: Path, kind: Literal["svg", "pdf"]) -> int:
    from perdure.report.drawing import save
    from perdure.results import write_json

    figures = content.figures()
    for figure in figures:
        save(figure, folder / f"{figure.name}.{kind}", kind)
        write_json(folder / f"{figure.name}.json", figure.data())
    return len(figures)
