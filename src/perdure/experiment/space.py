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
from perdure.config import LOOP_HYPERPARAMETERS, RunConfig
from perdure.data import Dataset
from perdure.experiment.build import build_run

FORMS = "NAME=LOW:HIGH, NAME=LOW:HIGH:log, NAME=A,B,C or a TOML file"
EXAMPLE = "lr = { low = 0.01, high = 0.5, log = true } or batch = [16, 32]"


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, both included.

    Attributes:
        low: The smallest value.
        high: The largest value.
        log: Whether to sample on a logarithmic scale.
        integer: Whether to sample whole numbers only.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    @property
    def extremes(self) -> tuple[float, ...]:
        """The values that a method must accept."""
        return self.low, self.high

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
        values: The values.
    """

    values: tuple[float, ...]

    @property
    def extremes(self) -> tuple[float, ...]:
        """The values that a method must accept."""
        return self.values

    def __contains__(self, value: float) -> bool:
        return value in self.values


Space = dict[str, Range | Choice]


def default_space(method: str) -> Space:
    """The search space of a method of the catalog: the paper's, if it names one.

    >>> default_space("mean-er")["decay"]
    Choice(values=(0.99, 0.999))
    """
    file = resources.files(__package__).joinpath("spaces.toml")
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    if method not in tables:
        raise ValueError(f"{method} has no default search space; use --space {FORMS}")
    return {name: _from_toml(name, form) for name, form in tables[method].items()}


def parse_space(texts: Sequence[str]) -> Space:
    """A search space from the values of `--space`; later ones replace earlier ones.

    >>> parse_space(["lr=0.01:1:log", "memory_batch=16,32"])["memory_batch"]
    Choice(values=(16, 32))
    """
    space: Space = {}
    for text in texts:
        name, sign, form = text.partition("=")
        if not sign:
            space |= _from_file(Path(text))
        elif not name.isidentifier():
            raise ValueError(f"--space {text!r}; expected {FORMS}")
        else:
            space[name] = _from_text(text, form)
    return space


def _from_file(path: Path) -> Space:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--space {path}: file not found; expected {FORMS}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"--space {path} cannot be read: {error}") from None
    if not tables:
        raise ValueError(f"--space {path} is empty; expected lines such as {EXAMPLE}")
    return {name: _from_toml(f"--space {path}: {name}", form) for name, form in tables.items()}


def _from_text(text: str, form: str) -> Range | Choice:
    if choice := _numbers(form.split(",")):
        return _choice(f"--space {text!r}", choice)
    low, *others = form.split(":")
    ends, log = _numbers([low, *others[:1]]), others[1:]
    if len(ends) != 2 or log not in ([], ["log"]):
        raise ValueError(f"--space {text!r}; expected {FORMS}")
    return _range(f"--space {text!r}", *ends, log=bool(log))


def _from_toml(what: str, form: Any) -> Range | Choice:
    match form:
        case list():
            if all(isinstance(value, int | float) for value in form):
                return _choice(what, form)
        case {"low": int() | float() as low, "high": int() | float() as high, **others}:
            if not others or (others.keys() == {"log"} and isinstance(others["log"], bool)):
                return _range(what, low, high, log=bool(others.get("log")))
    raise ValueError(
        f"{what} is {form!r}; expected [a, b, …] or {{ low = …, high = …, log = true }}"
    )


def _range(what: str, low: float, high: float, *, log: bool) -> Range:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{what}: the range from {low} to {high} is empty")
    if log and low <= 0:
        raise ValueError(f"{what}: a logarithmic range must start above 0")
    return Range(low, high, log)


def _choice(what: str, values: Sequence[float]) -> Choice:
    if len(set(values)) < max(2, len(values)) or not all(map(math.isfinite, values)):
        raise ValueError(f"{what}: expected at least two different numbers")
    return Choice(tuple(values))


def _numbers(words: Sequence[str]) -> list[float]:
    """Two or more numbers; empty if a word is not a number."""
    try:
        found = [int(word) if re.fullmatch(r"-?\d+", word) else float(word) for word in words]
    except ValueError:
        return []
    return found if len(found) > 1 else []


def fit_to_method(space: Space, method: str) -> Space:
    """The space with whole numbers wherever the method takes counts."""
    accepted = catalog.accepted(catalog.find_learner(method))
    counts = {name for name, p in accepted.items() if p.annotation in (int, "int")}
    counts |= set(LOOP_HYPERPARAMETERS)
    return {name: _integer(name, part) if name in counts else part for name, part in space.items()}


def _integer(name: str, part: Range | Choice) -> Range | Choice:
    if not all(float(value).is_integer() for value in part.extremes):
        raise ValueError(f"{name}: expected whole numbers, not {list(part.extremes)}")
    if isinstance(part, Choice):
        return Choice(tuple(map(int, part.values)))
    return replace(part, low=int(part.low), high=int(part.high), integer=True)


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
