"""What a predictor says of the samples that tests hold: asked once, read by every analysis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from perdure.records import Samples
from perdure.streams import Test

Predict = Callable[[Tensor], Tensor]
"""Raw images to scores [n, classes]."""
CHUNK = 1000
"""Images per forward pass: large enough to be fast, small enough for any device."""


class Answers(NamedTuple):
    """Scores for one set of samples, as far as tests use them."""

    tests: list[int]
    """Numbers of the tests that share these samples."""
    scores: Tensor
    """[n, classes], each row that a test uses once, in order."""
    labels: Tensor
    """[n]."""
    place: Tensor
    """From a row of the samples to its row here."""


def ask(predict: Predict, tests: Sequence[Test]) -> list[Answers]:
    """Ask about all tests; samples that tests share are asked about once."""
    found = []
    for group in _by_source(tests):
        samples = tests[group[0]].samples()
        rows = _rows_of([tests[i] for i in group], samples)
        place = torch.empty(len(samples.labels), dtype=torch.int64, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        scores = scores_of(predict, samples.inputs, rows)
        found.append(Answers(group, scores, samples.labels[rows], place))
    return found


def scores_of(predict: Predict, inputs: Tensor, rows: Tensor) -> Tensor:
    """Scores [n, classes] of these rows, a chunk at a time."""
    return torch.cat([predict(inputs[chunk]) for chunk in torch.split(rows, CHUNK)])


def _by_source(tests: Sequence[Test]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for i, test in enumerate(tests):
        groups.setdefault(id(test.samples), []).append(i)
    return list(groups.values())


def _rows_of(tests: Sequence[Test], samples: Samples) -> Tensor:
    """The rows that these tests use, each once, in order."""
    used = torch.zeros(len(samples.labels), dtype=torch.bool, device=samples.labels.device)
    for test in tests:
        used[slice(None) if test.rows is None else test.rows] = True
    return used.nonzero().squeeze(1)
