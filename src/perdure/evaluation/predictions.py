"""Scores of a predictor for the samples of tests, computed once for all measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from perdure.streams import Test
from perdure.structures import Inputs, chunk_size, select

ScoreFunction = Callable[[Inputs], Tensor]
"""Raw inputs to scores [n, classes], such as logits. Learners' predictors are such functions."""


class Predictions(NamedTuple):
    """Scores for one set of samples that tests share."""

    tests: list[int]
    """Numbers of the tests."""
    scores: Tensor
    """[n, classes], one row for each sample that a test uses, in order; -inf for classes that the
    predictor does not have yet."""
    labels: Tensor
    """[n]."""
    position: Tensor
    """Maps a row of the samples to its row in `scores`."""


def predict(score: ScoreFunction, tests: Sequence[Test]) -> list[Predictions]:
    """Compute the scores of all samples that tests use, each once; one item per set of samples."""
    groups: dict[int, list[int]] = {}
    for i, test in enumerate(tests):
        groups.setdefault(id(test.samples), []).append(i)
    found = []
    for group in groups.values():
        samples = tests[group[0]].samples()
        used = torch.zeros(len(samples.labels), dtype=torch.bool, device=samples.labels.device)
        for i in group:
            chosen = tests[i].rows
            used[slice(None) if chosen is None else chosen] = True
        rows = used.nonzero().squeeze(1)
        position = torch.empty(len(samples.labels), dtype=torch.int64, device=rows.device)
        position[rows] = torch.arange(len(rows), device=rows.device)
        scores = predict_rows(score, samples.inputs, rows)
        found.append(Predictions(group, scores, samples.labels[rows], position))
    known = [test.classes for test in tests if test.classes]
    classes = 1 + max([int(p.labels.max()) for p in found] + [max(each) for each in known])
    missing = max(0, classes - found[0].scores.shape[1])
    return [p._replace(scores=F.pad(p.scores, (0, missing), value=-torch.inf)) for p in found]


def predict_rows(score: ScoreFunction, inputs: Inputs, rows: Tensor) -> Tensor:
    """Scores [n, classes] of these rows, computed in chunks."""
    chunks = torch.split(rows, chunk_size(inputs))
    return torch.cat([score(select(inputs, chunk)) for chunk in chunks])


def count_rows(tests: Sequence[Test]) -> int | None:
    """Number of samples that `predict` scores; None if that takes loading them to find out."""
    rows: dict[int, list[Tensor]] = {}
    for test in tests:
        if test.rows is None:
            return None
        rows.setdefault(id(test.samples), []).append(test.rows)
    return sum(len(set(torch.cat(parts).tolist())) for parts in rows.values())
