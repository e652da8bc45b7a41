"""The configuration of a run: every setting once, each with its role.

Everything that depends on which settings matter is derived from the roles: the hash that
identifies a run, which runs may be compared, what tells variants apart, the command line that
reproduces a run, and which published figures may be shown next to it. A new setting is a field
here with a default (so that the hashes of earlier runs stay the same), an argument of
`experiment.resolve`, a flag in `cli`, and whatever it changes in `experiment.build`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perdure import catalog, presets
from perdure.evaluation.prequential import MAX_WINDOW, WINDOW
from perdure.learners import Learner
from perdure.sizes import format_bytes
from perdure.streams.from_files import FILE_STREAMS
from perdure.streams.gcil import MemoryDraws

Role = Literal["comparison", "method", "execution", "remark"]
"""What a setting is for.

comparison: Results may be compared only if this agrees (stream, data, network, length).
method: What is being compared: the method and its hyperparameters.
execution: How a run is carried out and observed; changes the last digits at most.
remark: Has no influence on the numbers; the only role that is not part of a run's identity.
"""

LOOP_HYPERPARAMETERS = {"batch": 32, "epochs": 1}
"""Hyperparameters of the training loop with their defaults; the others belong to the learner."""
NOT_HYPERPARAMETERS = frozenset(
    (
        *("seed", "optimizer", "augment", "normalise", "grow", "head", "tasks", "update"),
        *("buffer_size", "buffer_bytes", "memory_device", "memory_folder"),
    )
)
"""Arguments of learners that are settings of their own, or not numbers."""
DEFAULT_BUFFER_SIZE = 500
"""Samples that a memory holds; a budget in bytes uses the hyperparameters for this size."""
MAX_SEEDS = 10_000
MAX_SEED = 2**62
MAX_NUMBER = 1e38
"""Largest hyperparameter: about the largest number in single precision."""
PER_RUN = "per-run"
"""The stream seed of a new composition for each run."""
PUBLISHED = "published"
"""The stream seed of the stream that the paper's runs of the method and buffer size saw."""
SMALL_DATA_EPOCHS = 15
"""Passes over mnist5k for each pass over MNIST: about as many steps."""
DEVICE_DEFAULTS = {
    "cpu": {"precision": "fp32", "engine": "eager"},
    "cuda": {"precision": "bf16", "engine": "captured"},
}


def _setting(role: Role, **options: Any) -> Any:
    return dataclasses.field(metadata={"role": role}, **options)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run except its seed, resolved to plain values.

    Attributes:
        stream: A name of the catalog, or a user's `module:function`.
        dataset: The dataset's name; None if the user's own stream supplies the data.
        data_checksum: Fingerprint of the data.
        network: A name of the catalog, or a user's `module:function`.
        stream_seed: Seed of the stream's composition; None for the stream's own, "per-run" for
            a new composition with each run's seed, "published" for the GCIL stream that the
            paper's runs of this method and buffer size saw.
        validation: Share of the training samples that replaces the test set.
        max_steps: Steps after which the stream ends.
        method: A name of the catalog, or a user's `module:class`.
        buffer_size: Samples that the memory holds; None for methods without one, and if the
            budget is given in bytes.
        buffer_bytes: Bytes that the memory's samples may take, instead of `buffer_size`.
        hyperparameters: `batch` and `epochs` of the loop and settings of the optimizer; the
            others are arguments of the learner. `batch` is missing if the stream is a user's
            that supplies the batches.
        optimizer: "sgd", "adam", "adamw", or a user's `module:function`.
        update: How clser and mean-er choose the steps that update their semantic memories.
        device: "cpu" or "cuda".
        precision: "fp32" or "bf16".
        engine: "eager", "captured" or "compiled".
        deterministic: Whether a GPU computes bit-identical results, at the cost of speed.
        ranks: Processes that share the work of one learner.
        prequential: Whether each batch is predicted before it is learned.
        prequential_window: Samples of the sliding window of these predictions.
        initial_evaluation: Whether the untrained networks are evaluated on a CPU, too.
        data_root: Folder with the datasets, if the user named one.
        memory_device: "cpu" if stored inputs are in host memory although the network is on a GPU.
        memory_folder: Folder for a temporary file with the stored inputs, if they are in one.
        notes: What was substituted or assumed, one sentence each.
    """

    stream: str = _setting("comparison")
    dataset: str | None = _setting("comparison")
    data_checksum: str = _setting("comparison")
    network: str = _setting("comparison")
    stream_seed: int | str | None = _setting("comparison", default=None)
    validation: float | None = _setting("comparison", default=None)
    max_steps: int | None = _setting("comparison", default=None)
    method: str = _setting("method")
    buffer_size: int | None = _setting("method")
    buffer_bytes: int | None = _setting("method", default=None)
    hyperparameters: Mapping[str, int | float] = _setting("method")
    optimizer: str = _setting("method", default="sgd")
    update: Literal["random", "regular"] = _setting("method", default="random")
    device: str = _setting("execution", default="cpu")
    precision: Literal["fp32", "bf16"] = _setting("execution", default="fp32")
    engine: Literal["eager", "captured", "compiled"] = _setting("execution", default="eager")
    deterministic: bool = _setting("execution", default=False)
    ranks: int = _setting("execution", default=1)
    prequential: bool = _setting("execution", default=False)
    prequential_window: int = _setting("execution", default=WINDOW)
    initial_evaluation: bool = _setting("execution", default=False)
    data_root: str | None = _setting("remark", default=None)
    memory_device: Literal["cpu"] | None = _setting("remark", default=None)
    memory_folder: str | None = _setting("remark", default=None)
    notes: tuple[str, ...] = _setting("remark", default=())

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If one is invalid; settings are named as flags of the command.
        """
        counts = ("batch", "epochs", "--buffer-size", "--buffer-bytes", "--max-steps", "--ranks")
        settings = self.select("comparison", "method", "execution")
        values = {as_flag(name): value for name, value in settings.items()}
        for name, value in {**values, **self.hyperparameters}.items():
            if not isinstance(value, int | float):
                continue
            if name == "--validation" and not 0 < value < 1:
                raise ValueError(f"{name} is {value}; expected a number between 0 and 1")
            if not abs(value) <= MAX_NUMBER:
                text = f"{name} is {str(value)[:20]}"
                raise ValueError(f"{text}; expected a finite number of at most {MAX_NUMBER:g}")
            if name in counts and value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more")
            if name == "--prequential-window" and not 1 <= value <= MAX_WINDOW:
                raise ValueError(f"{name} is {value}; expected 1 to {MAX_WINDOW:,}")
        if isinstance(self.stream_seed, str) and self.stream_seed not in (PER_RUN, PUBLISHED):
            text = f"--stream-seed is {self.stream_seed!r}"
            raise ValueError(f"{text}; expected a number, {PER_RUN} or {PUBLISHED}")
        required = LOOP_HYPERPARAMETERS.keys() - ({"batch"} if self.dataset is None else set())
        if missing := required - self.hyperparameters.keys():
            raise ValueError(f"hyperparameters lack {', '.join(sorted(missing))}")

    def select(self, *roles: Role) -> dict[str, Any]:
        """The settings with these roles, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["role"] in roles
        }

    def comparable(self) -> dict[str, Any]:
        """What must agree for results to be comparable.

        The settings with the role "comparison" and, for a published stream, what it depends on.
        """
        found = self.select("comparison")
        if self.stream_seed == PUBLISHED:
            run = presets.gcil_run(self.method, self.stream, self.buffer_size)
            found |= {"buffer_size": self.buffer_size, "reads": None if run is None else run.reads}
            found |= {"batch": self.batch, "epochs": self.epochs}
        return found

    def identity(self) -> dict[str, Any]:
        """The settings that determine a run's numbers."""
        found = self.select("comparison", "method", "execution")
        return {**found, "hyperparameters": dict(self.hyperparameters)}

    def non_defaults(self) -> dict[str, Any]:
        """The identifying settings that have a default and differ from it."""
        return _changed(self.identity(), self._defaults())

    @property
    def hash(self) -> str:
        """Eight hex digits that identify the settings.

        Settings that equal their default are left out, so that a new setting does not change the
        hash of earlier runs.
        """
        defaults = self._defaults()
        required = {k: v for k, v in self.identity().items() if k not in defaults}
        return short_hash({**required, **self.non_defaults()})

    def to_json(self) -> dict[str, Any]:
        """The part of `config.json` that describes the settings."""
        return {**self.identity(), "hash": self.hash, "notes": list(self.notes)}

    def user_code(self) -> dict[str, str]:
        """The names that are not in the catalog but refer to a user's code: `module:name`."""
        known: dict[str, Container[str]] = {
            "stream": catalog.STREAMS,
            "network": catalog.NETWORKS,
            "method": catalog.METHODS,
            "optimizer": catalog.OPTIMIZERS,
        }
        found = {what: name for what in known if (name := getattr(self, what)) not in known[what]}
        if self.stream.partition(":")[0] in FILE_STREAMS:  # reads files, runs no code
            del found["stream"]
        return found

    @property
    def batch(self) -> int:
        """Samples of the stream in each step, unless the stream supplies the batches."""
        return int(self.hyperparameters.get("batch", LOOP_HYPERPARAMETERS["batch"]))

    @property
    def epochs(self) -> int:
        """Passes over each task."""
        return int(self.hyperparameters["epochs"])

    @property
    def method_title(self) -> str:
        """The method as its paper spells it."""
        return method_title(self.method)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, own_name: str = "") -> str:
        """The method, the stream and the buffer; a user's stream by the name it has given itself.

        Args:
            own_name: Name of the stream object.
        """
        buffer = f", buffer {self.buffer}" if self.buffer else ""
        return f"{self.method} on {self.stream_title(own_name)}{buffer}"

    def stream_title(self, own_name: str) -> str:
        """The stream's name in the catalog, or the name that a user's stream has given itself."""
        unnamed = own_name in ("", "own", *catalog.STREAMS)
        return self.stream if self.stream in catalog.STREAMS or unnamed else own_name

    @property
    def buffer(self) -> str:
        """Capacity of the memory: samples or bytes; empty for methods without a memory."""
        if self.buffer_bytes is not None:
            return format_bytes(self.buffer_bytes)
        return "" if self.buffer_size is None else str(self.buffer_size)

    def can_share_a_device(self, other: RunConfig) -> bool:
        """Whether runs of the two can take their steps side by side in one process.

        Not if the stream supplies the batches: both would read the same iterable in turn.
        """
        if "batch" not in self.hyperparameters:
            return False

        def shared(config: RunConfig) -> tuple[Any, ...]:
            settings = {**config.comparable(), **config.select("execution")}
            joint = catalog.is_joint(config.method)
            return settings, config.data_root, config.batch, config.epochs, joint

        return shared(self) == shared(other)

    def usual(self) -> dict[str, Any]:
        """What the command chooses by default, for the settings that have a default."""
        return {**self._defaults(), **DEVICE_DEFAULTS.get(self.device, {})}

    def _defaults(self) -> dict[str, Any]:
        fields = dataclasses.fields(self)
        return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}

    def departures(self) -> dict[str, float]:
        """The hyperparameters that differ from those the command chooses by default.

        All of them for a user's own method, whose defaults are not looked up.
        """
        if self.method not in catalog.METHODS:
            return dict(self.hyperparameters)
        size = self.buffer_size if self.buffer_bytes is None else DEFAULT_BUFFER_SIZE
        usual = default_hyperparameters(
            self.stream, self.method, size, self.dataset, self.optimizer
        )
        missing = usual.values.keys() - self.hyperparameters.keys() - LOOP_HYPERPARAMETERS.keys()
        off = {name: 0.0 for name in usual.values if name in missing}
        return {
            name: value
            for name, value in {**self.hyperparameters, **off}.items()
            if usual.values.get(name) != value
        }

    def unusual(self, *roles: Role) -> dict[str, Any]:
        """The hyperparameters and the settings with these roles that differ from the defaults."""
        return self.departures() | _changed(self.select(*roles), self.usual())

    def command(self, seeds: Sequence[int]) -> str:
        """The command that reproduces these runs.

        Data is named, not located: `--data DIR` may have to be added.
        """
        program = ["perdure"]
        if self.ranks > 1:
            program = ["torchrun", "--nproc-per-node", str(self.ranks), "-m", "perdure"]
        words = [*program, "run", self.stream, "--method", self.method]
        if self.buffer_size is not None:
            words += ["--buffer-size", str(self.buffer_size)]
        # Several ranks train one seed at a time.
        groups = [[seed] for seed in seeds] if self.ranks > 1 else [list(seeds)]
        return " && ".join(
            shlex.join([*words, "--seeds", format_seeds(group), *self._flags()]) for group in groups
        )

    def _flags(self) -> list[str]:
        """Flags for the settings that differ from the command's defaults."""
        entry = catalog.STREAMS.get(self.stream)
        words, flags = [], set(LOOP_HYPERPARAMETERS)
        if self.method in catalog.METHODS:
            flags |= catalog.accepted(catalog.find_learner(self.method)).keys()
        if self.optimizer in catalog.OPTIMIZERS:
            flags.update(catalog.OPTIMIZERS[self.optimizer].settings)
        for name, value in self.departures().items():
            if name in flags:
                words += [as_flag(name), repr(value)]
            else:
                words += ["--set", f"{name}={value!r}"]
        usual = {
            **self.usual(),
            "network": None if entry is None else entry.network,
            # Named wherever there is a choice, since it depends on what is installed.
            "dataset": self.dataset if entry is None or len(entry.datasets) == 1 else None,
            "device": None,
            "ranks": self.ranks,  # an option of torchrun
        }
        settings = self.select("comparison", "method", "execution")
        for name, value in _changed(settings, usual).items():
            words += [as_flag(name)] if value is True else [as_flag(name), str(value)]
        return words

    def memory_draws(self) -> MemoryDraws | None:
        """What the memory drew between the phases of a published GCIL stream.

        None if the composition of the stream does not depend on the learner.
        """
        if self.stream_seed != PUBLISHED:
            return None
        run = presets.gcil_run(self.method, self.stream, self.buffer_size)
        if run is None or self.buffer_size is None:
            raise ValueError(f"the paper has no run of {self}")
        return MemoryDraws(self.buffer_size, run.reads, self.epochs, self.batch)

    def published_figures(self, table: str | None = None) -> list[presets.Figure]:
        """The paper's figures for these settings, compared by their resolved values.

        Empty unless stream, data, network and length are the paper's and the hyperparameters are
        the published ones (for a row of a sensitivity table, with the values of that row).

        Args:
            table: Number of the paper's table ("1" to "S3"); all tables if None.
        """
        entry = catalog.STREAMS.get(self.stream)
        preset = presets.find(self.method, self.stream, self.buffer_size)
        own = presets.has_own_stream(self.method, self.stream, self.buffer_size)
        changed = set(self.non_defaults()) - {"stream_seed", *self.select("execution")}
        if (
            entry is None
            or self.stream_seed not in ((PUBLISHED,) if own else (None, entry.seed))
            or preset is None
            or preset.notes
            or self.dataset != entry.datasets[0]
            or self.network != entry.network
            or changed
        ):
            return []
        return [
            figure
            for figure in presets.paper_figures(table, self.stream, self.method, self.buffer_size)
            if {**preset.values, **figure.settings} == self.hyperparameters
        ]

    def published_task_il(self) -> presets.Figure | None:
        """The published Task-IL accuracy for these settings; None if there is none."""
        found = presets.readme_figures("task_il", self.stream, self.method, self.buffer_size)
        return found[0] if found and self.is_published else None

    @property
    def is_published(self) -> bool:
        """Whether the paper reports a figure for exactly these settings."""
        return any(not figure.settings for figure in self.published_figures())


def as_flag(name: str) -> str:
    """The flag of the command for a setting or hyperparameter."""
    return f"--{name.replace('_', '-')}"


def _changed(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that have a usual value and differ from it."""
    return {name: value for name, value in settings.items() if value != usual.get(name, value)}


def short_hash(content: Mapping[str, Any]) -> str:
    """Eight hex digits of plain values.

    >>> short_hash({"lr": 0.1}) == short_hash({"lr": 0.2})
    False
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def default_hyperparameters(
    stream: str,
    method: str,
    buffer_size: int | None,
    dataset: str | None,
    optimizer: str = "sgd",
) -> presets.Preset:
    """The published hyperparameters, or the closest substitute, with notes on what was assumed.

    A user's method is imported. mnist5k is trained for more epochs than MNIST, and published
    learning rates are for SGD only. The source is empty if nothing is published for such a stream.
    """
    learner = catalog.find_learner(method)
    accepted = catalog.accepted(learner)
    values: dict[str, float] = dict(LOOP_HYPERPARAMETERS)
    notes, source = tuple[str, ...](), ""
    preset = presets.find(method, stream, buffer_size)
    common = {*accepted, *LOOP_HYPERPARAMETERS}
    other = "er" if buffer_size is not None else "sgd"
    if preset is not None:
        values |= {k: v for k, v in preset.values.items() if k in common}
        notes, source = preset.notes, preset.source
        if not preset.is_published:
            notes += (f"the settings of {method} on {stream} are not published: {preset.source}",)
    elif (substitute := presets.find(other, stream, buffer_size)) is not None:
        values |= _learner_defaults(learner)
        values |= {k: v for k, v in substitute.values.items() if k in common}
        notes = (f"{method} has no published settings for {stream}; using those of {other}",)
        source = substitute.source
    else:
        values |= _learner_defaults(learner)
    if dataset == "mnist5k":
        values["epochs"] *= SMALL_DATA_EPOCHS
    if optimizer != "sgd":
        values.pop("lr", None)
        known = catalog.OPTIMIZERS.get(optimizer)
        if known is not None and known.lr is not None:
            values["lr"] = known.lr
    return presets.Preset(normalised(values, accepted), notes, source)


def is_optional(argument: inspect.Parameter) -> bool:
    """Whether a hyperparameter can be switched off by None in Python and by 0 in a configuration.

    One that a configuration does not list is off.
    """
    return str(argument.annotation) == "float | None" and argument.default is not None


def is_count(name: str, accepted: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a hyperparameter is a whole number; `accepted` are the learner's arguments."""
    is_int = name in accepted and accepted[name].annotation in (int, "int")
    return is_int or name in LOOP_HYPERPARAMETERS


def _learner_defaults(learner: type[Learner]) -> dict[str, float]:
    """The default values of a learner's hyperparameters."""
    return {"lr": learner.default_lr} | {
        name: argument.default
        for name, argument in catalog.accepted(learner).items()
        if name not in NOT_HYPERPARAMETERS
        and isinstance(argument.default, int | float)
        and not isinstance(argument.default, bool)
    }


def normalised(
    values: Mapping[str, float], accepted: Mapping[str, inspect.Parameter]
) -> dict[str, float]:
    """Counts as int and other numbers as float, so that equal values are equal bytes.

    Optional hyperparameters that are off are left out; values of arguments with other annotations
    keep their type.

    Raises:
        ValueError: If a count is not a whole number.
    """
    found = dict(values)
    for name, value in values.items():
        annotation = accepted[name].annotation if name in accepted else None
        if is_count(name, accepted):
            if not float(value).is_integer():
                raise ValueError(f"{name} is {value}; expected a whole number")
            found[name] = int(value)
        elif name in accepted and is_optional(accepted[name]) and not value:
            del found[name]
        elif annotation in (float, "float", "float | None"):
            found[name] = float(value)
    return found


def method_title(method: str) -> str:
    """The method as its paper spells it; a user's own as it is named."""
    known = catalog.METHODS.get(method)
    return known.title if known else method


def parse_seeds(text: str) -> list[int]:
    """Seeds as the command takes them: one, several, or a half-open range.

    >>> parse_seeds("3"), parse_seeds("0,4,7"), parse_seeds("0:4")
    ([3], [0, 4, 7], [0, 1, 2, 3])
    """
    if match := re.fullmatch(r"(\d+):(\d+)", text, re.ASCII):
        start, end = int(match[1]), int(match[2])
        if end <= start:
            raise ValueError(f"--seeds {text} is empty: the end must exceed the start")
        if end - start > MAX_SEEDS:
            raise ValueError(f"--seeds {text} names {end - start} seeds; at most {MAX_SEEDS}")
        seeds = list(range(start, end))
    elif re.fullmatch(r"\d+(,\d+)*", text, re.ASCII):
        seeds = [int(part) for part in text.split(",")]
    else:
        raise ValueError(f"--seeds is {text!r}; expected 3, or 0,4,7, or 0:10 (10 excluded)")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds {text} names a seed twice")
    if max(seeds) > MAX_SEED:
        raise ValueError(f"--seeds {text} names a seed above {MAX_SEED}")
    return seeds


def format_seeds(seeds: Iterable[int]) -> str:
    """Seeds as `--seeds` takes them.

    >>> format_seeds([0, 1, 2]), format_seeds([0, 4]), format_seeds([7])
    ('0:3', '0,4', '7')
    """
    numbers = list(seeds)
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 1 and numbers == list(range(first, first + len(numbers))):
        return f"{first}:{last + 1}"
    return ",".join(map(str, numbers))
