"""`perdure demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from perdure.cli.options import Switch, TrainingFlags, writable
from perdure.cli.run import train_plan
from perdure.experiment.plan import Plan, plan_setting
from perdure.experiment.progress import print_status
from perdure.experiment.resolve import resolve
from perdure.results.terminal import results_table, show


@dataclass(frozen=True)
class DemoOptions:
    """See forgetting and its prevention: sgd, er and clser on the digits that ship with perdure."""

    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Folder for the runs."""
    restart: Switch = False
    """Discard earlier runs and train again."""


def demo(options: DemoOptions) -> int:
    """Train three methods on s-mnist and show one table."""
    writable(options.out)
    print_status(
        "s-mnist: ten digits, two at a time; SGD forgets each pair when it learns the next"
    )
    settings = [
        plan_setting(
            resolve("s-mnist", method, dataset="mnist5k"), [0], options.out, restart=options.restart
        )
        for method in ("sgd", "er", "clser")
    ]
    title = "Accuracy in percent on all ten digits after the last pair (mnist5k, one seed)"
    plan = Plan("demo", title, options.out, settings)
    training = TrainingFlags(out=options.out, workers=1)
    failed = train_plan(plan, training, resume=not options.restart)
    if found := plan.results():
        show(results_table(found, title))
    return 1 if failed else 0
