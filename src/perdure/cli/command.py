"""The command: parses its arguments, calls a verb, and reports errors in one sentence."""

from __future__ import annotations

import difflib
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from perdure.cli.analyze import AnalyzeOptions, analyze
from perdure.cli.data import DataOptions, data
from perdure.cli.demo import DemoOptions, demo
from perdure.cli.listing import ListOptions, show_list
from perdure.cli.report import ReportOptions, report
from perdure.cli.reproduce import ReproduceOptions, reproduce
from perdure.cli.run import RunOptions, run
from perdure.cli.tune import TuneOptions, tune
from perdure.training import Interrupted
from perdure.training.launch import command_prefix, run_distributed, torchrun_rank
from perdure.training.signals import terminate

BAD_INPUT = 2


VERBS: dict[str, tuple[type[Any], Callable[[Any], int]]] = {
    "run": (RunOptions, run),
    "reproduce": (ReproduceOptions, reproduce),
    "demo": (DemoOptions, demo),
    "analyze": (AnalyzeOptions, analyze),
    "report": (ReportOptions, report),
    "tune": (TuneOptions, tune),
    "list": (ListOptions, show_list),
    "data": (DataOptions, data),
}
ACTIONS = {"": tuple(VERBS), "data": ("fetch", "verify")}
"""Names of the commands, and of the actions of those that have several."""


def parse(argv: list[str] | None = None) -> Any:
    """The options of a verb.

    Raises:
        ValueError: With one sentence, if the arguments are invalid.
    """
    words = sys.argv[1:] if argv is None else argv
    _check_names(words)
    kinds = tuple(Annotated[kind, subcommand(name)] for name, (kind, _) in VERBS.items())
    verbs: Any = Union[kinds]  # noqa: UP007 - of a tuple
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            return tyro.cli(
                verbs,
                prog="perdure",
                description="Learn from streams that change without forgetting. "
                "`perdure --version` prints the version.",
                args=argv,
                config=(
                    tyro.conf.OmitSubcommandPrefixes,
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.FlagCreatePairsOff,
                ),
            )
    except SystemExit as end:
        if end.code:
            raise ValueError(_sentence(errors.getvalue(), words[0] if words else "")) from None
        raise


def _check_names(words: list[str]) -> None:
    """Raise ValueError if the arguments start with a command that does not exist.

    Tyro calls its name an unrecognized option, and ignores it if there is --help.
    """
    for command, word in zip(["", *words], words[:2], strict=False):
        names = ACTIONS.get(command, ())
        if names and word not in names and not word.startswith("-"):
            meant = difflib.get_close_matches(word, names, n=1)
            remedy = f"did you mean {meant[0]}?" if meant else f"choose from {', '.join(names)}"
            line = shlex.join(["perdure", *command.split(), word])
            raise ValueError(f"there is no command `{line}`; {remedy}")


def _sentence(box: str, verb: str) -> str:
    """The problem that tyro reports in a box, with its suggestion and the help that applies."""
    text = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯]", "", box)
    _title, *sections = [" ".join(part.split()) for part in re.split("─{3,}", text)]
    if not sections:
        return text.strip()
    problem = sections[0].partition(" Arguments are applied to")[0].rstrip(".")
    problem = problem.removeprefix("Error parsing ").replace(" or misplaced", "")
    problem = problem.removesuffix(". Expected 1 values")
    problem = re.sub(r" \(applied to perdure[a-z ]*\)", "", problem).replace("'action.", "'")
    if meant := _suggestion(" ".join(sections[1:]), verb):
        problem += f" (did you mean {meant}?)"
    return f"{problem}; see `perdure {f'{verb} ' if verb in VERBS else ''}--help`"


def _suggestion(hints: str, verb: str) -> str:
    """The first flag of the verb that tyro suggests; it suggests those of other verbs, too.

    The hints are a flag, what it means, "in perdure VERB --help", and so on.
    """
    flag = ""
    for hint in hints.partition("Perhaps you meant: ")[2].split(" --help"):
        if found := re.match(r" ?(--[a-z0-9-]+)", hint):
            flag = found[1]
        if re.search(rf"in perdure {re.escape(verb)}( [a-z]+)?$", hint):
            return flag
    return ""


def main(argv: list[str] | None = None) -> int:
    """Run the command; processes started by torchrun act as one.

    Args:
        argv: The arguments; those of the process if None.

    Returns:
        The exit status: 0, 1 if something failed, 2 for invalid input.
    """
    return run_distributed(lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    signal.signal(signal.SIGTERM, terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):  # may be ASCII, and names need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = parse(argv)
        verb = next(function for kind, function in VERBS.values() if type(options) is kind)
        if torchrun_rank() is not None and verb is not run:
            raise ValueError("torchrun works with `perdure run` only")
        return verb(options)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        print(f"perdure: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt as stop:
        words = list(sys.argv[1:] if argv is None else argv)
        words = [word for word in words if word != "--restart"] or ["run"]
        message = f"stopped; continue with `{shlex.join([*command_prefix(), *words])}`"
        if not isinstance(stop, Interrupted):  # the state was not saved
            message = "interrupted"
        elif why := getattr(stop, "__notes__", []):
            message = f"stopped; {why[0]}"
        print(f"perdure: {message}", file=sys.stderr)
        return 128 + getattr(stop, "signum", signal.SIGINT)
