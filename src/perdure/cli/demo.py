"""`perdure demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from perdure.cli.run import train_seeds
from perdure.cli.values import Switch, writable


@dataclass(frozen=True)
class DemoOptions:
    """See forgetting and its cure: sgd, er and clser on the digits that ship with perdure."""

    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Folder for the runs."""
    again: Switch = False
    """Train again what is there already."""


def demo(options: DemoOptions) -> int:
    """Three methods on s-mnist, one table."""
    from perdure.cli.tables import show
    from perdure.display import comparison_table, tell_user
    from perdure.training.plan import plan

    writable(options.out)
    tell_user("s-mnist: ten digits, two at a time; after each pair, the earlier ones are gone")
    summaries = []
    for method in ("sgd", "er", "clser"):
        tell_user(f"training {method}")
        settings = plan("s-mnist", method, dataset="mnist5k")
        again = options.again
        _, summary = train_seeds(
            settings, [0], options.out, quiet=False, again=again, resume=not again
        )
        if summary is None:
            return 1
        summaries.append(summary)
    title = "All ten digits after the last pair (mnist5k, buffer 500, one seed)"
    show(comparison_table(title, summaries))
    return 0
