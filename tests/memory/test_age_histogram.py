from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perdure.memory import AgeHistogram


@given(st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), min_size=1, max_size=20))
def test_bins_double_in_width(samples: list[tuple[int, bool]]) -> None:
    histogram = AgeHistogram()
    for part in (samples[:7], samples[7:]):
        if part:
            ages, marked = zip(*part, strict=True)
            histogram.add(torch.tensor(ages), torch.tensor(marked))
    bins = [age.bit_length() - 1 for age, _ in samples]
    marked_bins = [age.bit_length() - 1 for age, mark in samples if mark]
    counts = histogram.read()
    assert counts.edges == [2**k for k in range(max(bins) + 2)]
    assert counts.total == [bins.count(k) for k in range(max(bins) + 1)]
    assert counts.marked == [marked_bins.count(k) for k in range(max(bins) + 1)]


def test_empty_histogram() -> None:
    assert AgeHistogram().read() == ([1], [], [])


def test_state_contains_the_counts() -> None:
    one, other = AgeHistogram(), AgeHistogram()
    one.add(torch.tensor([1, 5, 5]), torch.tensor([True, True, False]))
    other.load_state_dict(one.state_dict())
    assert other.read() == one.read() == ([1, 2, 4, 8], [1, 0, 2], [1, 0, 1])
    one.add(torch.tensor([1]), torch.tensor([True]))
    assert other.read() != one.read()


@pytest.mark.parametrize("marked", [False, True])
def test_counts_of_more_than_32_bits_are_exact(marked: bool) -> None:
    histogram, many = AgeHistogram(), 2**40 - 1
    histogram.add(torch.tensor([8]), torch.tensor([marked]))
    state = histogram.state_dict()
    state["counts"] *= many
    histogram.load_state_dict(state)
    histogram.add(torch.tensor([9, 10]), torch.tensor([False, True]))
    counts = histogram.read()
    assert counts.total[3] == many + 2
    assert counts.marked[3] == (many + 1 if marked else 1)


def test_counts_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="earlier version"):
        AgeHistogram().load_state_dict({"counts": torch.zeros(32, dtype=torch.int64)})
