"""What every learner and every stream keeps to, as checks for a method or stream of your own.

`check_learner` and `check_stream` run all of them. `LEARNER_CHECKS` and `STREAM_CHECKS` hold them
one by one, for a test framework to name and count:

    @pytest.mark.parametrize("check", LEARNER_CHECKS, ids=lambda check: check.__name__)
    def test_my_learner(check):
        check(partial(MyLearner, buffer_size=20))

A rule that is broken is an AssertionError that names the learner or stream, the rule, and what was
found. Nothing here needs a test framework.
"""

from __future__ import annotations

from perdure.streams import Stream
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

    Learners are made for small networks (linear; with dropout; with BatchNorm) and see two tasks
    with four classes. The memory, if there is one, should be small: at most 100 samples.

    >>> from functools import partial
    >>> from perdure import ER
    >>> check_learner(partial(ER, buffer_size=20))
    """
    for check in LEARNER_CHECKS:
        check(make)


def check_stream(stream: Stream, batch: int = 8) -> None:
    """Run every check of `STREAM_CHECKS`, reading the whole stream several times.

    A stream over an iterator can be read only once, and so cannot be checked.

    >>> import torch
    >>> from perdure import from_tensors
    >>> inputs, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 4
    >>> check_stream(from_tensors(inputs, labels, groups=[(0, 1), (2, 3)], test=(inputs, labels)))
    """
    for check in STREAM_CHECKS:
        check(stream, batch)
