from __future__ import annotations

import torch

from perdure.records import Samples, join


def test_rows_are_copies_in_the_given_order() -> None:
    samples = Samples(torch.arange(8).view(4, 2), torch.arange(4), torch.arange(12.0).view(4, 3))
    chosen = samples.rows(torch.tensor([3, 0, 3]))
    assert chosen.inputs.tolist() == [[6, 7], [0, 1], [6, 7]]
    assert chosen.labels.tolist() == [3, 0, 3]
    assert chosen.logits is not None
    assert chosen.logits[:, 0].tolist() == [9, 0, 9]
    chosen.inputs.fill_(-1)
    assert samples.inputs.min() == 0


def test_rows_of_samples_without_logits() -> None:
    assert Samples(torch.zeros(2, 1), torch.zeros(2)).rows(torch.tensor([1])).logits is None


def test_join_keeps_the_order() -> None:
    parts = [Samples(torch.full((n, 2), n), torch.full((n,), n)) for n in (2, 1, 3)]
    both = join(*parts)
    assert both.labels.tolist() == [2, 2, 1, 3, 3, 3]
    assert both.inputs[:, 1].tolist() == [2, 2, 1, 3, 3, 3]


def test_to_does_not_copy_samples_on_the_same_device() -> None:
    samples = Samples(torch.zeros(2, 1), torch.zeros(2))
    assert samples.to("cpu").inputs is samples.inputs
    moved = Samples(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2, 3)).to("meta")
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in moved)
