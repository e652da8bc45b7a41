"""`perdure report`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import Positional, arg

from perdure.cli.options import NO_HINT, Folder, Switch, one_of, writable
from perdure.experiment.analyze import analyze
from perdure.files import write_atomic, write_json
from perdure.report import compose, render
from perdure.report.content import default_title
from perdure.results import Collection, collect
from perdure.results.records import printable
from perdure.results.table import group

FORMATS: dict[str, Literal["html", "md", "tex"]] = {
    "": "html", ".html": "html", ".htm": "html", ".md": "md", ".tex": "tex"
}  # fmt: skip
"""By the suffix of the file."""


@dataclass(frozen=True)
class ReportOptions:
    """Write a report on runs: results next to published figures, claims of the paper, figures.

    Claims and tables of the paper are left out for your own streams. Folders that are not finished
    runs are listed with the reason.
    """

    runs: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="[RUNS ...]", help_behavior_hint="")
    ] = (Path("runs"),)
    """Folders that contain runs. Default: runs."""
    out: Annotated[
        Path | None, arg(name="output", aliases=["-o"], metavar="FILE", help_behavior_hint="")
    ] = None
    """File to write. Default: report.html (.md, .tex)."""
    format: Annotated[Literal["html", "md", "tex"] | None, one_of("html", "md", "tex"), NO_HINT] = (
        None
    )
    """HTML page with figures, or tables as Markdown or LaTeX; by the file's suffix if omitted."""
    figures: Folder = None
    """Also write each figure, and its numbers as JSON, to this folder."""
    figure_format: Literal["svg", "pdf"] = "svg"
    """Format of these figures."""
    data: Folder = None
    """Folder with the datasets, for --analyze."""
    analyze: Switch = False
    """Compute missing analyses where networks and data are available: seconds to minutes a run."""
    trust_code: Switch = False
    """For --analyze, import code that the folders name as module:name."""
    title: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None
    """Title of the report. Default: the names of your streams, or of the folders."""
    quiet: Switch = False
    """Print no progress."""


def report(options: ReportOptions) -> int:
    """Read the runs, compute missing analyses, and write the report and its figures."""
    suffix = options.out.suffix if options.out else ""
    if options.format is None and suffix not in FORMATS:
        raise ValueError(f"-o {options.out}; expected .html, .md or .tex, or --format")
    form = options.format or FORMATS[suffix]
    out = options.out or Path(f"report.{form}")
    if out.is_dir():
        raise ValueError(f"-o {out} is a folder; expected a file name")
    writable(out.parent, "-o")
    if options.figures is not None:
        writable(options.figures, "--figures")
    collection, missing = collect(options.runs), dict[str, str]()
    if options.analyze:
        collection, missing = _with_analyses(
            collection, options.data, quiet=options.quiet, trust_code=options.trust_code
        )
    names = [path.resolve().name or str(path) for path in options.runs]
    title = printable(options.title or default_title(collection, names))
    missing = {place: printable(reason) for place, reason in missing.items()}
    content = compose(collection, title, missing)
    write_atomic(out, render(content, form).encode())
    written = [str(out)]
    if options.figures is not None:
        from perdure.report.drawing import save  # imports matplotlib

        figures, kind = content.figures(), options.figure_format
        for figure in figures:
            save(figure, options.figures / f"{figure.name}.{kind}", kind)
            write_json(options.figures / f"{figure.name}.json", figure.to_json())
        written.append(f"{len(figures)} figures in {options.figures}")
    print(f"wrote {' and '.join(written)}")
    if collection.skipped and not options.quiet:
        left_out = ", ".join(folder.place for folder in collection.skipped[:5])
        further = ", …" if len(collection.skipped) > 5 else ""
        print(f"left out (the report gives the reasons): {left_out}{further}", file=sys.stderr)
    return 0


def _with_analyses(
    collection: Collection, data: Path | None, *, quiet: bool, trust_code: bool
) -> tuple[Collection, dict[str, str]]:
    """The runs with all analyses that can be computed, and why others cannot, by place."""
    torch.set_num_threads(1)  # the same numbers on every machine
    lacking = [run for run in collection.runs if run.analysis is None and run.result.tests]
    found = {id(run): run for run in collection.runs}
    missing: dict[str, str] = {}
    for number, run in enumerate(lacking, start=1):
        if not quiet:
            progress = f"analysing {run.place} ({number} of {len(lacking)})"
            print(progress, file=sys.stderr, flush=True)
        try:
            analysis = analyze(run.folder.path, data_root=data, trust_code=trust_code)
            found[id(run)] = replace(run, analysis=analysis)
        except (ValueError, OSError) as error:
            missing[run.place] = str(error).replace(str(run.folder.path), run.place)
    return group(found.values(), collection.skipped), missing
