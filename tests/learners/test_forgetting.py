"""Every method remembers a first task that plain training forgets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from perdure.learners import (
    AGEM,
    CLSER,
    DER,
    DERPP,
    ER,
    ERACE,
    FDR,
    GEM,
    GSS,
    MER,
    SGD,
    ICaRL,
    Learner,
    MeanER,
)

from .toy import learn, network, task

METHODS: dict[str, Callable[..., Learner]] = {
    "AGEM": partial(AGEM, buffer_size=40, tasks=2),
    "CLSER": partial(CLSER, buffer_size=40, stable_rate=1.0, stable_decay=0.9),
    "DER": partial(DER, buffer_size=40, alpha=0.5, lr=0.1),
    "DERPP": partial(DERPP, buffer_size=40, lr=0.1),
    "ER": partial(ER, buffer_size=40),
    "ERACE": partial(ERACE, buffer_size=40, lr=0.1),
    "FDR": partial(FDR, buffer_size=40, lr=0.1),
    "GEM": partial(GEM, buffer_size=40, tasks=2),
    "GSS": partial(GSS, buffer_size=40, gss_batch=10, lr=0.1),
    "ICaRL": partial(ICaRL, buffer_size=20),
    "MER": partial(MER, buffer_size=40, memory_batch=20, beta=0.5, gamma=0.5, inner_steps=2),
    "MeanER": partial(MeanER, buffer_size=40, rate=1.0, decay=0.9),
}
TASKS = (task((0, 1), seed=0, count=800), task((2, 3), seed=1, count=800))


def accuracies(learner: Learner) -> list[float]:
    """Accuracy on each task after learning both."""
    for samples in TASKS:
        learn(learner, samples)
    return [float((learner.predict(s.inputs) == s.labels).float().mean()) for s in TASKS]


def test_sgd_forgets() -> None:
    first, second = accuracies(SGD(network()))
    assert first < 0.3
    assert second > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_method_remembers(method: str) -> None:
    assert min(accuracies(METHODS[method](network()))) > 0.8
