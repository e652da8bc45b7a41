"""Conformance suites for your own learners and streams.

`check_learner` and `check_stream` run all checks. `LEARNER_CHECKS` and `STREAM_CHECKS` list them
for use with a test framework:

    @pytest.mark.parametrize("check", LEARNER_CHECKS, ids=lambda check: check.__name__)
    def test_my_learner(check):
        check(partial(MyLearner, buffer_size=20))

A violated rule raises an AssertionError with the name of the learner or stream, the rule, and what
was found. The suites do not depend on a test framework.
"""

from __future__ import annotations

from perdure.streams import Stream
from perdure.testing import inputs as inputs  # adds to LEARNER_CHECKS
from perdure.testing.learners import LEARNER_CHECKS, LearnerCheck, MakeLearner
from perdure.testing.streams import STREAM_CHECKS, StreamCheck

__all__ = [
    "LEARNER_CHECKS",
    "STREAM_CHECKS",
    "LearnerCheck",
    "MakeLearner",
    "StreamCheck",
    "check_learner",
    "check_stream",
]


def check_learner(make: MakeLearner) -> None:
    """Run every check of `LEARNER_CHECKS`.

    The checks create learners for small networks (linear, with dropout, with BatchNorm) and show
    them two tasks with four classes.

    Args:
        make: The learner's class, with its own arguments bound by `functools.partial`. A memory
            should hold at most 100 samples.

    Raises:
        AssertionError: If the learner violates a rule.

    Examples:
        >>> from functools import partial
        >>> from perdure import ER
        >>> check_learner(partial(ER, buffer_size=20))
    """
    for check in LEARNER_CHECKS:
        check(make)


def check_stream(stream: Stream, batch: int = 8) -> None:
    """Run every check of `STREAM_CHECKS`.

    The checks read the whole stream several times, so a stream over an iterator, which can be read
    only once, cannot be checked.

    Args:
        stream: Stream to check.
        batch: Batch size.

    Raises:
        AssertionError: If the stream violates a rule.

    Examples:
        >>> import torch
        >>> from perdure import from_tensors
        >>> x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 4
        >>> check_stream(from_tensors(x, y, groups=[(0, 1), (2, 3)], test=(x, y)))
    """
    for check in STREAM_CHECKS:
        check(stream, batch)
