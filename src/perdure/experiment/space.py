"""Search spaces: a range or a choice of values for each hyperparameter."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from perdure import catalog
from perdure.config import RunConfig, is_count
from perdure.data import Dataset
from perdure.experiment.build import build_run
from perdure.files import read_bytes

FORMS = "NAME=LOW:HIGH, NAME=LOW:HIGH:log, NAME=A,B,C or a TOML file"
EXAMPLE = "lr = { low = 0.01, high = 0.5, log = true } or batch = [16, 32]"


@dataclass(frozen=True)
class Range:
    """All numbers, or all whole numbers, from `low` to `high`; log: on a logarithmic scale."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"the range from {self.low} to {self.high} is empty")
        if self.log and self.low <= 0:
            raise ValueError("a logarithmic range must start above 0")

    @property
    def extremes(self) -> tuple[float, ...]:
        """The values that a method must accept."""
        return self.low, self.high

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        values = self.values
        if len(set(values)) < max(2, len(values)) or not all(map(math.isfinite, values)):
            raise ValueError("expected at least two different numbers")

    @property
    def extremes(self) -> tuple[float, ...]:
        """The values that a method must accept."""
        return self.values

    def __contains__(self, value: float) -> bool:
        return value in self.values


Space = dict[str, Range | Choice]


def default_space(method: str, optimizer: str = "sgd", *, own_stream: bool = False) -> Space:
    """The search space of a method of the catalog.

    On a stream of the catalog it is the paper's, if it names one. On a user's own stream it
    includes the learning rate, whose range depends on the optimizer.

    >>> default_space("mean-er")["decay"]
    Choice(values=(0.99, 0.999))
    >>> default_space("er", "adam", own_stream=True)["lr"]
    Range(low=0.0001, high=0.01, log=True, integer=False)
    """
    file = resources.files(__package__).joinpath("spaces.toml")
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    own, rates = tables.pop("own"), tables.pop("lr")
    if method not in tables:
        raise ValueError(f"{method} has no default search space; use --space {FORMS}")
    forms = dict(own.get(method, tables[method]) if own_stream else tables[method])
    if own_stream or (optimizer != "sgd" and "lr" in forms):
        forms = {"lr": rates.get(optimizer, rates["other"]), **forms}
        forms["lr"] = rates.get(optimizer, rates["other"])
    return {name: _from_toml(form) for name, form in forms.items()}


def parse_space(texts: Sequence[str]) -> Space:
    """A search space from the values of `--space`; later ones replace earlier ones.

    >>> parse_space(["lr=0.01:1:log", "memory_batch=16,32"])["memory_batch"]
    Choice(values=(16, 32))
    """
    space: Space = {}
    for text in texts:
        name, sign, form = text.partition("=")
        try:
            if not sign:
                space |= _from_file(Path(text))
            elif not name.isidentifier():
                raise ValueError(f"expected {FORMS}")
            else:
                space[name] = _from_text(form)
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"--space {text}: {error}") from None
    return space


def _from_file(path: Path) -> Space:
    if not path.exists():
        raise ValueError(f"file not found; expected {FORMS}")
    tables = tomllib.loads(read_bytes(path).decode())
    if not tables:
        raise ValueError(f"the file is empty; expected lines such as {EXAMPLE}")
    space: Space = {}
    for name, form in tables.items():
        try:
            space[name] = _from_toml(form)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return space


def _from_text(form: str) -> Range | Choice:
    ends = form.split(":")
    is_range, log = len(ends) > 1, ends[2:]
    try:
        numbers = [_number(word) for word in (ends[:2] if is_range else form.split(","))]
    except ValueError:
        numbers = []
    if not numbers or log not in ([], ["log"]):
        raise ValueError(f"expected {FORMS}")
    return Range(numbers[0], numbers[1], bool(log)) if is_range else Choice(tuple(numbers))


def _number(word: str) -> float:
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)


def _from_toml(form: Any) -> Range | Choice:
    match form:
        case list() if all(isinstance(value, int | float) for value in form):
            return Choice(tuple(form))
        case {"low": int() | float() as low, "high": int() | float() as high, **others}:
            if not others or (others.keys() == {"log"} and isinstance(others["log"], bool)):
                return Range(low, high, bool(others.get("log")))
    raise ValueError(f"expected [a, b, …] or {{ low = …, high = …, log = true }}, not {form!r}")


def fit_to_method(space: Space, method: str) -> Space:
    """The space with whole numbers wherever the method takes counts."""
    accepted = catalog.accepted(catalog.find_learner(method))
    fitted = dict(space)
    for name, part in space.items():
        if not is_count(name, accepted):
            continue
        if not all(float(value).is_integer() for value in part.extremes):
            raise ValueError(f"{name}: expected whole numbers, not {list(part.extremes)}")
        if isinstance(part, Range):
            fitted[name] = replace(part, low=int(part.low), high=int(part.high), integer=True)
        else:
            fitted[name] = Choice(tuple(map(int, part.values)))
    return fitted


def check_space(space: Space, config: RunConfig, dataset: Dataset | None, seed: int) -> None:
    """Build a run with each extreme value, so that invalid values are reported before the search.

    Raises:
        ValueError: If the method refuses a value.
    """
    usual = {name: part.extremes[-1] for name, part in space.items()}
    for name, part in space.items():
        for value in part.extremes:
            values = {**config.hyperparameters, **usual, name: value}
            try:
                build_run(replace(config, hyperparameters=values), dataset, seed)
            except ValueError as error:
                raise ValueError(f"the search space is invalid: {error}") from None
