"""`perdure data fetch` and `perdure data verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg, subcommand

from perdure.cli.options import Folder, Switch


@dataclass(frozen=True)
class FetchOptions:
    """Download a dataset, check it, and keep it where runs find it."""

    name: Positional[Literal["mnist", "cifar10", "cifar100", "tiny-imagenet"]]
    """Which one."""
    data: Folder = None
    """Folder to put it in; the user cache unless given."""
    quiet: Switch = False
    """No progress."""


def fetch(options: FetchOptions) -> int:
    """Download a dataset."""
    from perdure import data

    place = data.fetch(options.name, options.data, progress=not options.quiet)
    print(f"{options.name} is in {place}")
    return 0


@dataclass(frozen=True)
class VerifyOptions:
    """Check every file of the datasets that are there."""

    names: Annotated[
        Positional[tuple[str, ...]], arg(metavar="[NAME ...]", help_behavior_hint="")
    ] = ()
    """Which datasets; all unless given."""
    data: Folder = None
    """Folder to look in, and the only one searched."""


def verify(options: VerifyOptions) -> int:
    """Check datasets; status 1 if one is damaged, or one that was named is missing."""
    from perdure import data

    findings = data.verify(options.data, list(options.names) or None)
    for finding in findings:
        print(f"{finding.name}: {finding.message}")
    wrong = {"damaged", "missing"} if options.names else {"damaged"}
    return 1 if any(finding.state in wrong for finding in findings) else 0


@dataclass(frozen=True)
class DataOptions:
    """Download datasets, or check those that are there."""

    what: (
        Annotated[FetchOptions, subcommand("fetch")]
        | Annotated[VerifyOptions, subcommand("verify")]
    )
