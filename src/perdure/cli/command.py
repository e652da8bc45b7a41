"""The command: what the arguments ask for, who does it, and what is said when it cannot be."""

from __future__ import annotations

import io
import re
import shlex
import signal
import sys
from contextlib import redirect_stderr
from types import FrameType
from typing import Annotated, NoReturn, get_args

import tyro
from tyro.conf import subcommand

from perdure.cli.analyze import AnalyzeOptions, analyze
from perdure.cli.data import DataOptions, FetchOptions, VerifyOptions, fetch, verify
from perdure.cli.demo import DemoOptions, demo
from perdure.cli.listing import ListOptions, show_list
from perdure.cli.report import ReportOptions, report
from perdure.cli.reproduce import ReproduceOptions, reproduce
from perdure.cli.run import RunOptions, run
from perdure.cli.tune import TuneOptions, tune

BAD_INPUT = 2

Verb = (
    Annotated[RunOptions, subcommand("run")]
    | Annotated[ReproduceOptions, subcommand("reproduce")]
    | Annotated[DemoOptions, subcommand("demo")]
    | Annotated[AnalyzeOptions, subcommand("analyze")]
    | Annotated[ReportOptions, subcommand("report")]
    | Annotated[TuneOptions, subcommand("tune")]
    | Annotated[ListOptions, subcommand("list")]
    | Annotated[DataOptions, subcommand("data")]
)
VERBS = [get_args(verb)[1].name for verb in get_args(Verb)]

Options = (
    RunOptions
    | ReproduceOptions
    | DemoOptions
    | AnalyzeOptions
    | ReportOptions
    | TuneOptions
    | ListOptions
    | DataOptions
)


def parse(argv: list[str] | None = None) -> Options:
    """What the arguments ask for. ValueError with one sentence where tyro would draw a box."""
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(
                Verb,
                prog="perdure",
                description="Learn from streams that change, and keep what was learned.",
                args=argv,
                config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as end:
        if end.code:
            words = sys.argv[1:] if argv is None else argv
            raise ValueError(_sentence(complaint.getvalue(), words[0] if words else "")) from None
        raise


def _sentence(box: str, verb: str) -> str:
    """The heart of what tyro says in a box: what is wrong, what was meant, and where help is."""
    text = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯]", "", box).replace("─", "-")
    _, *parts = re.split(r"-{10,}", text)  # after its title, by its rules
    if not parts:
        return text.strip()
    wrong = " ".join(parts[0].split()).rstrip(".").removeprefix("Error parsing ")
    # Of options that other verbs have, tyro says at length that order may matter: not here.
    wrong = wrong.partition(" Arguments are applied to")[0].replace(" or misplaced", "")
    wrong = re.sub(r" \(applied to perdure[a-z ]*\)", ",", wrong).rstrip(",")
    # A flag, what it does, and the verbs that have it.
    flags = re.findall(
        r"^ +(--(?!help\b)[a-z-]+)(.*?)(?=^ +--|\Z)", "\n".join(parts[1:]), re.M | re.S
    )
    places = [(flag, re.findall(r"in perdure (\w+)", about)) for flag, about in flags]
    meant = dict.fromkeys(flag for flag, verbs in places if not verbs or verb in verbs)
    perhaps = f" (perhaps {' or '.join(meant)}?)" if "Unrecognized" in wrong and meant else ""
    own = re.findall(rf"perdure {verb}[a-z ]* --help", text) if verb in VERBS else []
    general = f"perdure {verb} --help" if verb in VERBS else "perdure --help"
    return f"{wrong}{perhaps}; see `{own[0] if own else general}`"


def main(argv: list[str] | None = None) -> int:
    """Run a verb; where torchrun has started several processes, with all of them as one."""
    from perdure.training.launch import run_distributed

    return run_distributed(lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    """Parse, run a verb, and turn what a user can cause into one sentence and a status."""
    from perdure.training.launch import torchrun_rank

    signal.signal(signal.SIGTERM, _terminated)
    try:
        match options := parse(argv):
            case RunOptions():
                return run(options)
            case _ if torchrun_rank() is not None:
                raise ValueError("torchrun's processes train one learner: start `perdure run`")
            case ReproduceOptions():
                return reproduce(options)
            case DemoOptions():
                return demo(options)
            case AnalyzeOptions():
                return analyze(options)
            case ReportOptions():
                return report(options)
            case TuneOptions():
                return tune(options)
            case ListOptions():
                return show_list(options)
            case DataOptions(FetchOptions() as what):
                return fetch(what)
            case DataOptions(VerifyOptions() as what):
                return verify(what)
        raise AssertionError(f"no function for {options}")
    except (ValueError, OSError) as error:
        print(f"perdure: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt as stop:
        signum = getattr(stop, "signum", None)
        print(f"perdure: {_interrupted(argv, kept=signum is not None)}", file=sys.stderr)
        return 128 + (signum or signal.SIGINT)


def _interrupted(argv: list[str] | None, *, kept: bool) -> str:
    """What is left after a stop, and the command that goes on from it."""
    if not kept:
        return "interrupted; finished runs are kept"
    from perdure.training.launch import command_prefix

    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in ([], ["run"]) and "--resume" not in words:
        words = [*(words or ["run"]), "--resume"]
    return f"stopped; go on with `{shlex.join([*command_prefix(), *words])}`"


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)
