from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_confusion_matrix

from perdure.evaluation import agreement, confusion


@given(seed=st.integers(0, 10**6), count=st.integers(1, 100), classes=st.integers(2, 8))
def test_is_what_torchmetrics_says(seed: int, count: int, classes: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, classes, generator=draws)
    labels = torch.randint(classes, (count,), generator=draws)
    found = confusion(scores, labels)
    oracle = multiclass_confusion_matrix(scores.argmax(dim=1), labels, num_classes=classes)
    assert found.counts == oracle.tolist()
    assert found.classes == list(range(classes))


def test_agreement_is_the_share_of_equal_answers_right_or_wrong() -> None:
    answers = {"a": [0, 1, 2, 0], "b": [0, 1, 1, 1], "c": [2, 1, 2, 0]}
    found = agreement({name: torch.eye(3)[row] for name, row in answers.items()})
    assert found.predictors == ["a", "b", "c"]
    assert found.matrix == [[1, 0.5, 0.75], [0.5, 1, 0.25], [0.75, 0.25, 1]]
