"""Flags that several verbs share, and how the values of flags are parsed, shown and checked."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tyro.conf import Positional, UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec

from perdure.config import RunConfig
from perdure.experiment.resolve import resolve
from perdure.processes import cores
from perdure.streams.from_files import FILE_STREAMS, file_options

T = TypeVar("T")
MAX_THREADS = 256
"""With many more, the system refuses and torch aborts the process."""


def _parsed(
    parse: Callable[[str], T], metavar: str, kind: str = "", choices: tuple[str, ...] | None = None
) -> PrimitiveConstructorSpec[T]:
    """A value that is parsed by a function, with a one-line error."""

    def instance(words: list[str]) -> T:
        try:
            return parse(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not {kind}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=instance,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )


def one_of(*names: str) -> PrimitiveConstructorSpec[str]:
    """One of these words, for a flag that is None by default."""
    return _parsed(str, f"{{{','.join(names)}}}", choices=names)


# The help shows no default where it is None.
NO_HINT = arg(help_behavior_hint="")
Count = Annotated[int, _parsed(int, "N", "a whole number")]
Share = Annotated[float, _parsed(float, "X", "a number")]
Seconds = Annotated[float, _parsed(float, "S", "a number")]
OptionalCount = Annotated[int | None, _parsed(int, "N", "a whole number"), NO_HINT]
OptionalNumber = Annotated[float | None, _parsed(float, "X", "a number"), NO_HINT]
Repeated = Annotated[tuple[str, ...], UseAppendAction]
"""A flag that may be given several times, with one value each."""
Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Names = Annotated[str | None, arg(metavar="A,B,…", help_behavior_hint="")]
Switch = Annotated[bool, NO_HINT]
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
Seeds = Annotated[str, arg(metavar="SEEDS")]
BufferSize = Annotated[OptionalCount, arg(aliases=["--buffer"])]


def check_data_folder(data: Path | None) -> None:
    """Raise ValueError if `--data` is given and is not a folder."""
    if data is not None and not data.is_dir():
        raise ValueError(f"--data {data} is not a folder")


@dataclass(frozen=True)
class DataFlags:
    """Where the data comes from."""

    data_root: Annotated[Folder, arg(name="data")] = None
    """Folder with the datasets, the only one searched; default: $PERDURE_DATA, then the cache."""
    dataset: Name = None
    """mnist, or mnist5k: 5,000 digits that ship with perdure, for 15 times as many epochs."""
    max_steps: OptionalCount = None
    """End each stream after this many steps."""


@dataclass(frozen=True)
class StreamFlags(DataFlags):
    """The network, and where the data comes from."""

    network: Name = None
    """mlp, cnn, resnet18, or your own as module:function, called with (input shape, classes)."""
    stream_seed: Name = None
    """Composition of r-mnist, p-mnist and gcil: a number, or per-run to vary it with the seed;
    published (gcil only): the stream that the paper used for this method and buffer size."""


@dataclass(frozen=True)
class Hyperparameters:
    """Default: the published values for this method, stream and buffer size, or else the method's.

    With several methods, a value applies to those that have the hyperparameter.
    """

    lr: OptionalNumber = None
    """Learning rate."""
    batch: OptionalCount = None
    """New samples in each step."""
    memory_batch: OptionalCount = None
    """Stored samples in each step."""
    epochs: OptionalCount = None
    """Passes over each task."""
    consistency_weight: OptionalNumber = None
    """clser, mean-er: λ, the weight of the consistency loss."""
    stable_rate: OptionalNumber = None
    """clser: r_S, the share of steps that update the stable memory."""
    stable_decay: OptionalNumber = None
    """clser: α_S, decay of the stable memory."""
    stable_window: OptionalNumber = None
    """clser: share of past updates that the stable memory averages over; 0: published warm-up."""
    plastic_rate: OptionalNumber = None
    """clser: r_P, the share of steps that update the plastic memory."""
    plastic_decay: OptionalNumber = None
    """clser: α_P, decay of the plastic memory."""
    plastic_window: OptionalNumber = None
    """clser: share of past updates that the plastic memory averages over; 0: published warm-up."""
    window_ratio: OptionalNumber = None
    """clser: windows start shorter if steps have fewer than X new per replayed sample; 0: off."""
    rate: OptionalNumber = None
    """mean-er: share of steps that update its memory."""
    decay: OptionalNumber = None
    """mean-er: decay of its memory."""
    window: OptionalNumber = None
    """mean-er: share of past updates that its memory averages over; 0: published warm-up."""
    alpha: OptionalNumber = None
    """der, derpp: weight of the stored logits."""
    beta: OptionalNumber = None
    """derpp: weight of the stored labels; mer: learning rate within a batch."""
    gamma: OptionalNumber = None
    """gem: margin; mer: learning rate across batches."""
    gss_batch: OptionalCount = None
    """gss: stored samples that a new one is compared with."""
    inner_steps: OptionalCount = None
    """gss, mer: steps on each batch."""

    def given(self) -> dict[str, float]:
        """Those that have a value."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class OptimizerFlags:
    """The optimizer; its learning rate is --lr."""

    optimizer: Annotated[str, arg(metavar="NAME")] = "sgd"
    """sgd, adam, adamw, or your own as module:function, called with (parameters, lr=…)."""
    momentum: OptionalNumber = None
    """sgd: momentum; default: 0."""
    weight_decay: OptionalNumber = None
    """Weight decay; default: 0, or 0.01 for adamw. icarl has a published one with sgd."""
    beta1: OptionalNumber = None
    """adam, adamw: decay of the mean of the gradients; default: 0.9."""
    beta2: OptionalNumber = None
    """adam, adamw: decay of the mean of their squares; default: 0.999."""
    eps: OptionalNumber = None
    """adam, adamw: added to the denominator; default: 1e-8."""

    def given(self) -> dict[str, float]:
        """The settings that have a value."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class ExecutionFlags:
    """How runs are computed."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto uses a GPU if there is one."""
    precision: Annotated[str | None, one_of("fp32", "bf16"), NO_HINT] = None
    """Arithmetic on a GPU; default: bf16. In fp32, convolutions use TF32, torch's default."""
    engine: Annotated[str | None, one_of("eager", "captured", "compiled"), NO_HINT] = None
    """How a GPU executes steps: eager, as CUDA graphs (the default), or compiled CUDA graphs."""
    deterministic: Switch = False
    """On a GPU, compute bit-identical results for the same seed; a little slower."""
    threads: Count = 1
    """Threads of each process; more than one changes the last digits of results."""

    def settings(self) -> dict[str, Any]:
        """The arguments of `resolve` among these flags."""
        return {name: value for name, value in vars(self).items() if name != "threads"}

    def prepare(self) -> None:
        """Check the values, and set the environment variables that torch reads when it starts."""
        if at_least_one("--threads", self.threads) > MAX_THREADS:
            raise ValueError(f"--threads is {self.threads}; expected at most {MAX_THREADS}")
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True)
class TrainingFlags:
    """Where runs are stored, and how many are trained at a time."""

    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Folder for the runs."""
    workers: OptionalCount = None
    """Worker processes; default: the number of available cores, or one on a GPU."""
    side_by_side: Count = 8
    """Runs trained at a time on one GPU."""
    checkpoint_every: Seconds = 60.0
    """Seconds between checkpoints; there is also one at the end of each task."""

    def prepare(self) -> None:
        """Check the values."""
        if self.workers is not None:
            at_least_one("--workers", self.workers)
        at_least_one("--side-by-side", self.side_by_side)
        if not 0 < self.checkpoint_every < float("inf"):
            raise ValueError(
                f"--checkpoint-every is {self.checkpoint_every:g}; expected a number above 0"
            )

    def width(self, device: str) -> int:
        """Jobs that run at a time on this machine."""
        default = cores() if device == "cpu" else 1
        return default if self.workers is None else self.workers


@dataclass(frozen=True)
class OutputFlags:
    """What is printed."""

    json: Switch = False
    """Print results as JSON, one object per line."""
    quiet: Switch = False
    """Print no progress, notes or table."""


def _stream_help() -> str:
    options = (
        f"perdure.{make.__name__} ({', '.join(file_options(kind))})"
        for kind, make in FILE_STREAMS.items()
    )
    return (
        "A stream's name, or your own: module:function, images:FOLDER or table:FILE,target=COLUMN. "
        "Options follow the path, as in images:FOLDER,size=64,tasks=5; they are arguments of "
        f"{' and '.join(options)}."
    )


@dataclass(frozen=True)
class LearnerOptions:
    """What `run` and `tune` have in common."""

    stream: Annotated[Positional[str], arg(metavar="[STREAM]", help=_stream_help())] = "s-mnist"
    method: Annotated[str, arg(metavar="NAME")] = "clser"
    """A method's name, or your own as module:class."""
    buffer_size: BufferSize = None
    """Samples that the memory holds; default: 500."""
    buffer_bytes: Annotated[str | None, arg(metavar="SIZE", help_behavior_hint="")] = None
    """Instead of --buffer-size: bytes that the memory's samples may take, such as 64MB."""
    memory_device: Annotated[str | None, one_of("cpu"), NO_HINT] = None
    """cpu: keep stored inputs in host memory although the network is on a GPU."""
    memory_folder: Folder = None
    """Keep stored inputs in a temporary file in this folder instead of in memory."""
    data: StreamFlags = field(default_factory=StreamFlags)
    hyperparameters: Annotated[Hyperparameters, arg(name="hyperparameter")] = field(
        default_factory=Hyperparameters
    )
    optimizer: OptimizerFlags = field(default_factory=OptimizerFlags)
    set: Annotated[Repeated, arg(metavar="NAME=VALUE", help_behavior_hint="")] = ()
    """A hyperparameter that has no flag, such as one of your own method. May be repeated."""
    execution: ExecutionFlags = field(default_factory=ExecutionFlags)
    output: OutputFlags = field(default_factory=OutputFlags)

    def given(self) -> dict[str, float]:
        """The hyperparameters that have a value, those of the optimizer included."""
        return self.hyperparameters.given() | self.optimizer.given() | _assignments(self.set)

    def resolve(self, method: str, given: Mapping[str, float], **further: Any) -> RunConfig:
        """The configuration that these options and further arguments of `resolve` describe."""
        return resolve(
            self.stream,
            method,
            self.buffer_size,
            given=given,
            **vars(self.data),
            **self.execution.settings(),
            optimizer=self.optimizer.optimizer,
            buffer_bytes=self.buffer_bytes,
            memory_device=self.memory_device,
            memory_folder=self.memory_folder,
            progress=not self.output.quiet,
            **further,
        )


def at_least_one(flag: str, value: int) -> int:
    """The value of a flag. Raises ValueError if it is below 1."""
    if value < 1:
        raise ValueError(f"{flag} is {value}; expected 1 or more")
    return value


def _assignments(texts: tuple[str, ...]) -> dict[str, float]:
    """The values of `--set NAME=VALUE`."""
    found: dict[str, float] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        try:
            if not (sign and name.isidentifier()):
                raise ValueError
            found[name] = int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            raise ValueError(f"--set {text!r}; expected NAME=NUMBER") from None
    return found


def listed(flag: str, text: str | None, kind: Callable[[str], T]) -> list[T] | None:
    """The values of a flag that takes several, separated by commas."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    try:
        if not all(parts):
            raise ValueError
        return [kind(part) for part in parts]
    except ValueError:
        what = "names" if kind is str else "numbers"
        raise ValueError(f"{flag} is {text!r}; expected {what} separated by commas") from None


def writable(folder: Path, flag: str = "--out") -> None:
    """Create a folder. Raises ValueError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{secrets.token_hex(8)}"
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ValueError(f"{flag} {folder} cannot be written: {error.strerror}") from None
