from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from perdure.evaluation import calibration


def scores_with(probabilities: list[float]) -> Tensor:
    """Scores of two classes; the first has these probabilities."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    return torch.stack([p, 1 - p], dim=1).log()


def test_an_example_computed_by_hand() -> None:
    # Two predictions at 0.7, one correct; two at 0.9, one correct.
    found = calibration(scores_with([0.7, 0.7, 0.9, 0.1]), torch.tensor([0, 1, 0, 0]), bins=5)
    assert found.ece == pytest.approx((2 * abs(0.5 - 0.7) + 2 * abs(0.5 - 0.9)) / 4)
    assert [part.count for part in found.bins] == [0, 0, 0, 2, 2]
    assert [(part.accuracy, part.confidence) for part in found.bins[:3]] == [(None, None)] * 3
    assert [found.bins[3].accuracy, found.bins[3].confidence] == pytest.approx([0.5, 0.7])
    assert [part.lower for part in found.bins] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert [part.upper for part in found.bins] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 300),
    classes=st.integers(2, 12),
    sharpness=st.floats(0.1, 4),
    bins=st.integers(1, 25),
)
def test_the_error_equals_torchmetrics(
    seed: int, count: int, classes: int, sharpness: float, bins: int
) -> None:
    from torchmetrics.functional.classification import multiclass_calibration_error  # takes 3 s

    draws = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, classes, generator=draws, dtype=torch.float64) * sharpness
    labels = torch.randint(classes, (count,), generator=draws)
    # torchmetrics uses float32 and puts a confidence of exactly 1 into a separate bin.
    confidence = scores.softmax(dim=1).max(dim=1).values
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    assume(float((confidence[:, None] - edges).abs().min()) > 1e-6)
    oracle = multiclass_calibration_error(
        scores.softmax(dim=1), labels, num_classes=classes, n_bins=bins
    )
    found = calibration(scores, labels, bins=bins)
    assert found.ece == pytest.approx(float(oracle), abs=2e-6)
    assert sum(part.count for part in found.bins) == count


def test_a_confidence_of_1_counts_in_the_last_bin() -> None:
    found = calibration(torch.tensor([[900.0, 0.0], [900.0, 0.0]]), torch.tensor([0, 1]), bins=10)
    assert found.bins[-1].count == 2
    assert found.ece == 0.5


def test_a_confidence_between_two_bins_counts_in_the_upper_one() -> None:
    found = calibration(torch.zeros(1, 2), torch.tensor([0]), bins=2)
    assert [part.count for part in found.bins] == [0, 1]


def test_float32_scores_do_not_round_to_a_confidence_of_1() -> None:
    found = calibration(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    assert 0 < found.ece < 1e-8
