"""How a rule is stated and what becomes of a broken one."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import numpy as np
import torch
from torch import Tensor

from perdure.records import Samples
from perdure.streams import Stream

_P = ParamSpec("_P")


class Broken(Exception):
    """What was found in place of what the rule asks for."""


def rule(check: Callable[_P, None]) -> Callable[_P, None]:
    """Whatever goes wrong in the check becomes an AssertionError with the name of the rule."""
    stated = check.__name__.replace("_", " ")

    @functools.wraps(check)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        subject = next(iter([*args, *kwargs.values()]))
        try:
            check(*args, **kwargs)
        except Broken as error:
            raise AssertionError(f"{called(subject)}: {stated}: {error}") from error.__cause__
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{called(subject)}: {stated}: {found}") from error

    return checked


def called(subject: object) -> str:
    """The name of a learner's maker or of a stream."""
    if isinstance(subject, Stream):
        return f"stream {subject.name}"
    while isinstance(subject, functools.partial):
        subject = subject.func
    return str(getattr(subject, "__name__", subject))


def require(condition: bool | Tensor, otherwise: str) -> None:
    """Break the rule, saying what was found, unless the condition holds."""
    if not condition:
        raise Broken(otherwise)


def refused(what: str, call: Callable[[], object]) -> None:
    """Require a ValueError."""
    try:
        call()
    except ValueError:
        return
    except Exception as error:
        raise Broken(f"{what} raised {type(error).__name__}, not ValueError: {error}") from error
    raise Broken(f"{what} was taken without a ValueError")


@contextmanager
def global_random_untouched() -> Iterator[None]:
    """Inside, nothing may draw from the generators that all programs share."""

    def states() -> tuple[object, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())

    before = states()
    yield
    for name, old, new in zip(("torch", "random", "numpy.random"), before, states(), strict=True):
        require(old == new, f"the global state of {name} has moved")


def equal(one: Samples, other: Samples) -> bool:
    """Whether images and labels are the same."""
    return one.inputs.equal(other.inputs) and one.labels.equal(other.labels)
