"""Where to search: a range or a choice for each hyperparameter, as a user or a paper names it."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from perdure.data import Dataset
from perdure.training import Settings
from perdure.training.build import build_run
from perdure.training.plan import whole_settings

FORMS = "name=low:high, name=low:high:log, name=a,b,c or a file of such, say space.toml"
LINES = "lr = { low = 0.01, high = 0.5, log = true } or batch = [16, 32]"


@dataclass(frozen=True)
class Range:
    """Every number from `low` to `high`, both ends included."""

    low: float
    high: float
    log: bool = False
    """Whether orders of magnitude are equally likely."""
    whole: bool = False
    """Whether only whole numbers are meant."""

    def extremes(self) -> tuple[float, ...]:
        """The values that a setting must allow, or it does not allow all of them."""
        return self.low, self.high

    def holds(self, value: float) -> bool:
        """Whether a value lies in it."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[float, ...]

    def extremes(self) -> tuple[float, ...]:
        """The values that a setting must allow: all of them."""
        return self.values

    def holds(self, value: float) -> bool:
        """Whether a value is one of them."""
        return value in self.values


Space = dict[str, Range | Choice]


def default_space(method: str) -> Space:
    """Where a method of the catalog is searched: the paper's space, where it names one.

    >>> default_space("mean-er")["decay"]
    Choice(values=(0.99, 0.999))
    """
    file = resources.files("perdure.tuning").joinpath("spaces.toml")
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    if method not in tables:
        raise ValueError(f"there is no search space for {method}; give one: --space {FORMS}")
    return {name: _from_toml(name, form) for name, form in tables[method].items()}


def read_space(texts: Sequence[str]) -> Space:
    """A space as the command takes it; of what is named twice, the last counts.

    >>> read_space(["lr=0.01:1:log", "memory_batch=16,32"])["memory_batch"]
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
        raise ValueError(f"--space {path}: there is no such file; expected {FORMS}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"--space {path} cannot be read: {error}") from None
    if not tables:
        raise ValueError(f"--space {path} names no hyperparameter; a line may be {LINES}")
    return {name: _from_toml(f"--space {path}: {name}", form) for name, form in tables.items()}


def _from_text(text: str, form: str) -> Range | Choice:
    if choice := _numbers(form.split(",")):
        return _choice(f"--space {text!r}", choice)
    low, *rest = form.split(":")
    ends, log = _numbers([low, *rest[:1]]), rest[1:]
    if len(ends) != 2 or log not in ([], ["log"]):
        raise ValueError(f"--space {text!r}; expected {FORMS}")
    return _range(f"--space {text!r}", *ends, log=bool(log))


def _from_toml(said: str, form: Any) -> Range | Choice:
    match form:
        case list():
            if all(isinstance(value, int | float) for value in form):
                return _choice(said, form)
        case {"low": int() | float() as low, "high": int() | float() as high, **rest}:
            if not rest or (rest.keys() == {"log"} and isinstance(rest["log"], bool)):
                return _range(said, low, high, log=bool(rest.get("log")))
    raise ValueError(
        f"{said} is {form!r}; expected [a, b, …] or {{ low = …, high = …, log = true }}"
    )


def _range(said: str, low: float, high: float, *, log: bool) -> Range:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{said}: from {low} to {high} there is nothing to search")
    if log and low <= 0:
        raise ValueError(f"{said}: a logarithmic range must begin above 0")
    return Range(low, high, log)


def _choice(said: str, values: Sequence[float]) -> Choice:
    if len(set(values)) < max(2, len(values)) or not all(map(math.isfinite, values)):
        raise ValueError(f"{said}: expected two or more different numbers to choose from")
    return Choice(tuple(values))


def _numbers(words: Sequence[str]) -> list[float]:
    """What two or more words say, whole numbers as such; nothing if one of them is no number."""
    try:
        found = [int(word) if re.fullmatch(r"-?\d+", word) else float(word) for word in words]
    except ValueError:
        return []
    return found if len(found) > 1 else []


def fitted(space: Space, method: str) -> Space:
    """The space with whole numbers where the method's settings are whole numbers."""
    whole = whole_settings(method)
    return {name: _whole(name, part) if name in whole else part for name, part in space.items()}


def _whole(name: str, part: Range | Choice) -> Range | Choice:
    if not all(float(value).is_integer() for value in part.extremes()):
        raise ValueError(f"space {name!r}: expected whole numbers, not {list(part.extremes())}")
    if isinstance(part, Choice):
        return Choice(tuple(map(int, part.values)))
    return replace(part, low=int(part.low), high=int(part.high), whole=True)


def check(space: Space, settings: Settings, dataset: Dataset | None, seed: int) -> None:
    """ValueError if the method refuses a value of the space: better now than in trial 17."""
    for values in _at_extremes(space, settings.values):
        try:
            build_run(replace(settings, values=values), dataset, seed)
        except ValueError as error:
            raise ValueError(f"the search space does not fit: {error}") from None


def _at_extremes(space: Space, values: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Settings in which every extreme of every part occurs, and no two parts are moved at once."""
    inside = {name: part.extremes()[-1] for name, part in space.items()}
    for name, part in space.items():
        for extreme in part.extremes():
            yield {**values, **inside, name: extreme}
