"""Exemplars: for each class a ranked list of samples that together stand for its mean."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from perdure.memory.episodic import EpisodicMemory
from perdure.records import Samples, join
from perdure.state import State


def herd(features: Tensor, count: int) -> Tensor:
    """Rows of features [n, d] whose running average stays as near as it can to the mean of all.

    Greedy: the k-th row minimises ‖μ − (φ + S)/k‖, S being the sum of the k − 1 rows before it;
    no row is taken twice.

    >>> herd(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), 2)
    tensor([2, 0])
    """
    count = min(count, len(features))
    mean, lengths = features.mean(dim=0), features.square().sum(dim=1)
    missing = mean.clone()  # kμ − S
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    chosen = torch.empty(count, dtype=torch.int64, device=features.device)
    for k in range(count):
        distance = (lengths - 2 * (features @ missing)).masked_fill_(taken, torch.inf)
        row = distance.argmin(dim=0, keepdim=True)
        chosen[k : k + 1] = row
        taken.index_fill_(0, row, True)
        missing += mean - features.index_select(0, row)[0]
    return chosen


class Exemplars(EpisodicMemory):
    """At most `capacity` samples, shared equally by the classes seen, the best of each first.

    Where the capacity is no multiple of the number of classes, those that came first have one
    sample more than the others. As classes arrive the lists are cut from their ends.

    >>> memory = Exemplars(5)
    >>> memory.add(Samples(torch.rand(8, 2), torch.tensor([0, 1] * 4)), lambda inputs: inputs)
    >>> memory.counts, len(memory.draw(8).labels)
    ({0: 3, 1: 2}, 5)
    """

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
        self.counts: dict[int, int] = {}
        """How many samples of each class are stored, in the order in which the classes came."""

    def add(self, samples: Samples, embed: Callable[[Tensor], Tensor]) -> None:
        """Herd exemplars for every class of a task; `embed` gives the features of images.

        A class that has exemplars already is herded from these and the new samples together.
        """
        lists = self.lists()
        arrived = [int(label) for label in torch.unique(samples.labels)]
        classes = list(dict.fromkeys([*lists, *arrived]))
        shares = {c: len(range(i, self.buffer_size, len(classes))) for i, c in enumerate(classes)}
        for label in arrived:
            candidates = samples.rows((samples.labels == label).nonzero().squeeze(1))
            if label in lists:
                candidates = join(lists[label], candidates)
            lists[label] = candidates.rows(herd(embed(candidates.inputs), shares[label]))
        kept = [Samples(p.inputs[: shares[c]], p.labels[: shares[c]]) for c, p in lists.items()]
        self.counts = {c: len(p.labels) for c, p in zip(lists, kept, strict=True)}
        self.filled = sum(self.counts.values())
        self._write(torch.arange(self.filled, device=self.device), join(*kept))

    def lists(self) -> dict[int, Samples]:
        """The exemplars of each class, the best first, not copied."""
        stored = self.contents()
        if stored is None:
            return {}
        counts = list(self.counts.values())
        parts = map(Samples, torch.split(stored.inputs, counts), torch.split(stored.labels, counts))
        return dict(zip(self.counts, parts, strict=True))

    def state_dict(self) -> State:
        """Capacity, generator, classes with their counts, and the stored samples."""
        classes, counts = list(self.counts), list(self.counts.values())
        return {**super().state_dict(), "classes": classes, "counts": counts}

    def load_state_dict(self, state: State) -> None:
        """Become the memory that the state describes; the capacity must be the same."""
        counts = {int(c): int(n) for c, n in zip(state["classes"], state["counts"], strict=True)}
        if sum(counts.values()) != int(state["filled"]):
            raise ValueError(f"counts of {counts} do not add up to {state['filled']} samples")
        super().load_state_dict(state)
        self.counts = counts
