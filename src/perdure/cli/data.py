"""`perdure data fetch` and `perdure data verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg, subcommand

from perdure.cli.options import Folder, Switch, check_data_folder
from perdure.data import DATASETS, decoding_progress, fetch, verify


@dataclass(frozen=True)
class FetchOptions:
    """Download a dataset, verify it, and store it where runs find it."""

    dataset: Annotated[Positional[str], arg(metavar="NAME")]
    """mnist, cifar10, cifar100 or tiny-imagenet."""
    data: Folder = None
    """Folder to download to. Default: the user's cache folder."""
    quiet: Switch = False
    """Do not show progress."""


@dataclass(frozen=True)
class VerifyOptions:
    """Verify all files of the datasets that are on this machine.

    Exits with status 1 if a dataset is damaged, or if a dataset that you name is missing.
    """

    names: Annotated[
        Positional[tuple[str, ...]], arg(metavar="[NAME ...]", help_behavior_hint="")
    ] = ()
    """Names of datasets. Default: all."""
    data: Folder = None
    """The only folder to search. Default: $PERDURE_DATA, then the user's cache folder."""
    quiet: Switch = False
    """Do not show progress."""


@dataclass(frozen=True)
class DataOptions:
    """Download or verify datasets."""

    action: (
        Annotated[FetchOptions, subcommand("fetch")]
        | Annotated[VerifyOptions, subcommand("verify")]
    )


def data(options: DataOptions) -> int:
    """Download a dataset, or verify datasets: status 1 if one is damaged or a named one missing."""
    action = options.action
    if isinstance(action, FetchOptions):
        place = fetch(action.dataset, action.data, progress=not action.quiet)
        print(f"{action.dataset} is in {place}")
        return 0
    check_data_folder(action.data)
    findings = []
    for name in action.names or DATASETS:
        with decoding_progress(name, shown=not action.quiet) as show:
            findings += verify(action.data, [name], on_progress=show)
        (*_, finding) = findings
        print(f"{finding.name}: {finding.message}", flush=True)
        if finding.state == "ok" or len(finding.flaws) > 1:
            for flaw in finding.flaws:
                print(f"  {flaw}")
    wrong = {"damaged", "missing"} if action.names else {"damaged"}
    return 1 if any(finding.state in wrong for finding in findings) else 0
