"""Tools for writing conformance checks."""

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
from perdure.structures import Inputs, layout, leaves

_P = ParamSpec("_P")


class Violation(Exception):
    """A violated rule, with what was found."""


def rule(suite: list[Callable[_P, None]]) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Add a check to a suite.

    Every error in the check becomes an AssertionError that names the subject and the rule.
    """

    def add(check: Callable[_P, None]) -> Callable[_P, None]:
        name = check.__name__.replace("_", " ")

        @functools.wraps(check)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
            subject = _subject_name(next(iter([*args, *kwargs.values()])))
            try:
                check(*args, **kwargs)
            except Violation as error:
                raise AssertionError(f"{subject}: {name}: {error}") from error.__cause__
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
                raise AssertionError(f"{subject}: {name}: {found}") from error

        suite.append(checked)
        return checked

    return add


def _subject_name(subject: object) -> str:
    if isinstance(subject, Stream):
        return f"stream {subject.name}"
    while isinstance(subject, functools.partial):
        subject = subject.func
    return str(getattr(subject, "__name__", subject))


def require(condition: bool | Tensor, otherwise: str) -> None:
    """Raise a Violation with the message `otherwise` unless the condition holds."""
    if not condition:
        raise Violation(otherwise)


def require_value_error(what: str, call: Callable[[], object]) -> None:
    """Raise a Violation unless the call raises ValueError."""
    try:
        call()
    except ValueError:
        return
    except Exception as error:
        raise Violation(f"{what} raised {type(error).__name__}, not ValueError: {error}") from error
    raise Violation(f"{what} did not raise ValueError")


@contextmanager
def global_random_untouched() -> Iterator[None]:
    """Require that the body does not use the global random generators."""

    def states() -> tuple[object, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())

    before = states()
    yield
    for name, old, new in zip(("torch", "random", "numpy.random"), before, states(), strict=True):
        require(old == new, f"the global state of {name} has changed")


def equal(one: Samples, other: Samples) -> bool:
    """Return whether inputs and labels are equal."""
    return equal_inputs(one.inputs, other.inputs) and one.labels.equal(other.labels)


def equal_inputs(one: Inputs, other: Inputs) -> bool:
    """Return whether two structures of tensors are equal."""
    pairs = zip(leaves(one), leaves(other), strict=False)
    return layout(one) == layout(other) and all(a.equal(b) for a, b in pairs)
