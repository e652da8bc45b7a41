"""The command: parsing only, one function per verb."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import tyro
from tyro.conf import Positional, arg, subcommand
from tyro.constructors import PrimitiveConstructorSpec

if TYPE_CHECKING:
    from remanence.training import Settings
    from remanence.training.seeds import Outcome

BAD_INPUT = 2
MOST_THREADS = 256
T = TypeVar("T")


def _value(
    read: Callable[[str], T], metavar: str, expected: str, choices: tuple[str, ...] | None = None
) -> PrimitiveConstructorSpec[T]:
    """How a flag's value is read, and what to say if it cannot be."""

    def instance(words: list[str]) -> T:
        try:
            return read(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not {expected}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=instance,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )


# Where nothing is the default, the help shows what a flag takes and not that it is None.
Count = Annotated[int, _value(int, "N", "a whole number")]
Whole = Annotated[int | None, _value(int, "N", "a whole number"), arg(help_behavior_hint="")]
Real = Annotated[float | None, _value(float, "X", "a number"), arg(help_behavior_hint="")]
Precision = Annotated[
    str | None,
    _value(str, "{fp32,bf16}", "a precision", ("fp32", "bf16")),
    arg(help_behavior_hint=""),
]
Steps = Annotated[
    str | None,
    _value(str, "{eager,captured,compiled}", "an engine", ("eager", "captured", "compiled")),
    arg(help_behavior_hint=""),
]
Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Switch = Annotated[bool, arg(help_behavior_hint="")]
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]


@dataclass(frozen=True)
class RunOptions:
    """Train and evaluate a method on a stream.

    With no arguments: CLS-ER on s-mnist with a buffer of 500, by the paper's settings.
    Hyperparameters that you do not give are the published ones for this method, stream and buffer
    (`remanence list` shows what there is).
    """

    stream: Annotated[Positional[str], arg(metavar="STREAM")] = "s-mnist"
    """A stream's name, or your own as module:function."""
    method: Annotated[str, arg(metavar="NAME")] = "clser"
    """A method's name, or your own as module:class."""
    buffer: Whole = None
    """Samples that the memory may hold; 500 unless given."""
    seeds: Annotated[str, arg(metavar="SEEDS")] = "0"
    """One run per seed: 3, or 0,4,7, or 0:10 (10 left out)."""

    lr: Real = None
    """Learning rate of SGD."""
    batch: Whole = None
    """Samples of the stream in each step."""
    memory_batch: Whole = None
    """Samples of the memory in each step."""
    epochs: Whole = None
    """Passes over each task."""
    consistency_weight: Real = None
    """clser, mean-er: λ, the weight of the consistency loss."""
    stable_rate: Real = None
    """clser: r_S, how often the stable memory is updated."""
    stable_decay: Real = None
    """clser: α_S, how slowly it moves."""
    plastic_rate: Real = None
    """clser: r_P, how often the plastic memory is updated."""
    plastic_decay: Real = None
    """clser: α_P, how slowly it moves."""
    rate: Real = None
    """mean-er: how often its memory is updated."""
    decay: Real = None
    """mean-er: how slowly it moves."""
    alpha: Real = None
    """der, derpp: weight of the stored logits."""
    beta: Real = None
    """derpp: weight of the stored labels; mer: rate within a batch."""
    gamma: Real = None
    """gem: margin; mer: rate across batches."""
    gss_batch: Whole = None
    """gss: stored samples that a new one is compared with."""
    inner_steps: Whole = None
    """gss, mer: steps on each batch."""
    weight_decay: Real = None
    """icarl: weight decay of SGD."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE", help_behavior_hint="")] = ()
    """Further settings of your own method."""

    network: Name = None
    """mlp, resnet18, or your own as module:function, called with (image shape, classes)."""
    data: Folder = None
    """Folder with the datasets, and the only one searched; else $REMANENCE_DATA, then the cache."""
    dataset: Name = None
    """mnist or mnist5k (5,000 digits that ship with remanence), for streams made from either."""
    stream_seed: Name = None
    """Composition of r-mnist, p-mnist and gcil: a number, or per-run for a new one each seed."""
    validation: Real = None
    """Evaluate on this share of the training samples instead of the test set, say 0.1."""
    max_steps: Whole = None
    """Leave the stream after so many steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Precision = None
    """Arithmetic on a GPU; bf16 unless given."""
    engine: Steps = None
    """On a GPU: steps one operation at a time, as CUDA graphs (the default), or those compiled."""
    deterministic: Switch = False
    """On a GPU: the same bits again for the same seed, a little slower."""
    side_by_side: Count = 4
    """Seeds trained at once on one GPU."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Folder for the runs."""
    again: Switch = False
    """Train again what is there already."""
    workers: Whole = None
    """Worker processes; as many as cores unless given."""
    threads: Count = 1
    """Threads of each run; more change the last digits of the results."""
    json: Switch = False
    """End with one JSON line."""
    quiet: Switch = False
    """No progress and no table."""


_HYPERPARAMETERS = (
    *("lr", "batch", "memory_batch", "epochs", "consistency_weight", "stable_rate"),
    *("stable_decay", "plastic_rate", "plastic_decay", "rate", "decay"),
    *("alpha", "beta", "gamma", "gss_batch", "inner_steps", "weight_decay"),
)


def run(options: RunOptions) -> int:
    """Plan, train what is missing, and show the results."""
    from rich.console import Console

    from remanence.display import results_table, tell_user
    from remanence.training.build import build_run, read_dataset
    from remanence.training.plan import parse_seeds, plan

    if options.deterministic:  # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    given = {k: v for k in _HYPERPARAMETERS if (v := getattr(options, k)) is not None}
    given |= dict(_assignment(text) for text in options.set)
    seeds = parse_seeds(options.seeds)
    workers = (os.cpu_count() or 1) if options.workers is None else options.workers
    workers = _at_least_one("--workers", workers)
    threads = _at_least_one("--threads", options.threads)
    if threads > MOST_THREADS:
        raise ValueError(f"--threads is {threads}; expected at most {MOST_THREADS}")
    side_by_side = _at_least_one("--side-by-side", options.side_by_side)
    stream_seed = options.stream_seed
    settings = plan(
        options.stream,
        options.method,
        options.buffer,
        given=given,
        network=options.network,
        dataset=options.dataset,
        data_root=options.data,
        stream_seed=int(stream_seed) if stream_seed and stream_seed.isdecimal() else stream_seed,
        validation=options.validation,
        max_steps=options.max_steps,
        device=options.device,
        precision=options.precision,
        engine=options.engine,
        deterministic=options.deterministic,
    )
    build_run(settings, read_dataset(settings), seeds[0])  # refuses bad values before any work
    _writable(options.out)
    if not options.quiet:
        for note in settings.notes:
            tell_user(f"note: {note}")
    outcome, summary = _train(
        settings,
        seeds,
        options.out,
        again=options.again,
        workers=workers,
        threads=threads,
        side_by_side=side_by_side,
        quiet=options.quiet,
    )
    if summary is not None:
        if not options.quiet:
            Console().print(results_table(summary, published=settings.published))
            tell_user(f"runs are in {settings.folder(options.out, seeds[0]).path.parent}")
        if options.json:
            print(json.dumps(summary), flush=True)
    return 1 if outcome.failed else 0


def _train(
    settings: Settings, seeds: list[int], out: Path, *, quiet: bool, **how: Any
) -> tuple[Outcome, dict[str, Any] | None]:
    """Make the runs under a progress display, say what failed, and sum up the rest."""
    from remanence import results
    from remanence.display import ProgressDisplay, tell_user
    from remanence.training.seeds import make_runs

    began = time.perf_counter()
    with ProgressDisplay(quiet=quiet) as display:
        outcome = make_runs(settings, seeds, out, tell=display, **how)
    if outcome.reused and not quiet:
        tell_user(
            f"{outcome.reused} of {len(seeds)} runs were there already; --again trains them again"
        )
    for seed, reason in outcome.failed.items():
        tell_user(f"remanence: seed {seed} failed: {reason}")
    if not outcome.done:
        return outcome, None
    runs = [(f.read("config.json"), f.read("result.json")) for f in outcome.done.values()]
    return outcome, results.summary(runs, time.perf_counter() - began)


@dataclass(frozen=True)
class DemoOptions:
    """See forgetting and its cure: sgd, er and clser on the digits that ship with remanence."""

    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Folder for the runs."""
    again: Switch = False
    """Train again what is there already."""


def demo(options: DemoOptions) -> int:
    """Three methods on s-mnist, one table."""
    from rich.console import Console

    from remanence.display import comparison_table, tell_user
    from remanence.training.plan import plan

    _writable(options.out)
    tell_user("s-mnist: ten digits, two at a time; after each pair, the earlier ones are gone")
    summaries = []
    for method in ("sgd", "er", "clser"):
        tell_user(f"training {method}")
        settings = plan("s-mnist", method, dataset="mnist5k")
        _, summary = _train(settings, [0], options.out, again=options.again, quiet=False)
        if summary is None:
            return 1
        summaries.append(summary)
    title = "All ten digits after the last pair (mnist5k, buffer 500, one seed)"
    Console().print(comparison_table(title, summaries))
    return 0


@dataclass(frozen=True)
class ListOptions:
    """Show the methods, the streams, and which datasets are there."""


def show_list(options: ListOptions) -> int:
    """Methods, streams, and which datasets are there."""
    from rich.console import Console
    from rich.table import Table

    from remanence import catalog, presets
    from remanence.data import DATASETS, locate

    console = Console()
    methods = Table("method", "", "paper", title="Methods")
    for name, method in catalog.METHODS.items():
        methods.add_row(name, method.title, method.paper)
    streams = Table("stream", "", "data", "published buffers", title="Streams")
    streams.columns[0].no_wrap = True
    for name, entry in catalog.STREAMS.items():
        buffers = ", ".join(map(str, presets.published_buffers("clser", name)))
        datasets = " or ".join(entry.datasets)
        streams.add_row(name, entry.title, datasets, buffers or "–")
    present = Table("dataset", "where", title="Datasets")
    for name in DATASETS:
        place = locate(name)
        shipped = "ships with remanence" if name == "mnist5k" else None
        absent = f"not found: remanence data fetch {name}"
        present.add_row(name, shipped or (str(place) if place else absent))
    for table in (methods, streams, present):
        console.print(table)
    return 0


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
    from remanence import data

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
    from remanence import data

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


Verb = (
    Annotated[RunOptions, subcommand("run")]
    | Annotated[DemoOptions, subcommand("demo")]
    | Annotated[ListOptions, subcommand("list")]
    | Annotated[DataOptions, subcommand("data")]
)


def parse(argv: list[str] | None = None) -> RunOptions | DemoOptions | ListOptions | DataOptions:
    """What the arguments ask for. ValueError with one sentence where tyro would draw a box."""
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(
                Verb,
                prog="remanence",
                description="Learn from streams that change, and keep what was learned.",
                args=argv,
                config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as end:
        if end.code:
            raise ValueError(_sentence(complaint.getvalue())) from None
        raise


def _sentence(box: str) -> str:
    """The heart of what tyro says in a box: what is wrong, what was meant, and where help is."""
    text = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯]", "", box).replace("─", "-")
    _, *parts = re.split(r"-{10,}", text)  # after its title, by its rules
    if not parts:
        return text.strip()
    wrong = " ".join(parts[0].split()).rstrip(".").removeprefix("Error parsing ")
    meant = dict.fromkeys(re.findall(r"^ +(--[a-z-]+)", "\n".join(parts[1:]), re.MULTILINE))
    perhaps = f" (perhaps {' or '.join(meant)}?)" if "Unrecognized" in wrong and meant else ""
    helpful = re.findall(r"remanence[a-z ]* --help", text) or ["remanence --help"]
    return f"{wrong}{perhaps}; see `{helpful[0]}`"


def main(argv: list[str] | None = None) -> int:
    """Parse, run a verb, and turn what a user can cause into one sentence and a status."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        match options := parse(argv):
            case RunOptions():
                return run(options)
            case DemoOptions():
                return demo(options)
            case ListOptions():
                return show_list(options)
            case DataOptions(FetchOptions() as what):
                return fetch(what)
            case DataOptions(VerifyOptions() as what):
                return verify(what)
        raise AssertionError(f"no function for {options}")
    except (ValueError, OSError) as error:
        print(f"remanence: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("remanence: interrupted; finished runs are kept", file=sys.stderr)
        return 130


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


def _assignment(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    try:
        if not (sign and name.isidentifier()):
            raise ValueError
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise ValueError(f"--set {text!r}; expected name=number") from None


def _at_least_one(flag: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{flag} is {value}; expected 1 or more")
    return value


def _writable(folder: Path) -> None:
    """Find out before hours of training whether their results can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be written: {error.strerror}") from None
