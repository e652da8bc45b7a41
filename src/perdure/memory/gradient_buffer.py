"""Memory of gradient-based sample selection: prefers samples with dissimilar gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from perdure.memory.episodic import EpisodicMemory
from perdure.randomness import generator
from perdure.records import Samples
from perdure.undo import save_generator, save_rows

_BLOCK = 1024
"""Scores that are added up together."""
_BLOCKS_FROM = 8192
"""Size of the smallest memory whose scores are added up in blocks."""


class GradientBuffer(EpisodicMemory):
    """Stores samples with a similarity score; samples with high scores are replaced first.

    Free rows are filled in order. After that, a candidate with score c selects stored sample i
    with probability s_i / Σ s, where s are the stored scores, and replaces it with probability
    s_i / (s_i + c). All candidates of a batch compete at once, against the scores at the time the
    last free row was filled. If several win the same row, the last one is kept.

    Scores are added up in blocks, so that a competition takes the same time in memories of ten
    thousand and of a million samples.

    Args:
        buffer_size: Maximum number of samples. Give either this or `buffer_bytes`.
        buffer_bytes: Maximum size of the stored samples, such as 64_000_000 or "64MB".
        seed: Seed of the random draws.
        device: Device of the network, to which samples are drawn.
        storage: Where the stored inputs are kept; by default on `device`.

    Examples:
        >>> memory = GradientBuffer(3)
        >>> batch = Samples(torch.rand(5, 2), torch.arange(5))
        >>> memory.add(batch, torch.tensor([1.5, 1.25, 0.25, 0.75, 1]), torch.tensor(False))
        >>> memory.contents().labels.tolist(), memory.scores[:3].tolist()
        ([0, 1, 2], [1.5, 1.25, 0.25])
    """

    saved_by_itself = (*EpisodicMemory.saved_by_itself, "insertion", "scores", "_sums")

    def _create_state(self, seed: int) -> None:
        self.insertion = generator(seed, "gradient selection", self.device)

    def _set_size(self, size: int) -> None:
        super()._set_size(size)
        self._block = size + 1 if size < _BLOCKS_FROM else _BLOCK
        self.scores = torch.zeros(0, dtype=torch.float64, device=self.device)
        """Score of each stored sample when it was added; empty until storage is allocated."""
        self._sums = self.scores
        """Sums of the blocks of scores, if there are several."""

    def _create_rows(self) -> None:
        blocks = self.buffer_size // self._block + 1
        self.scores = self.scores.new_zeros(blocks * self._block)
        self._sums = self.scores.new_zeros(blocks)

    def add(self, samples: Samples, scores: Tensor, replace: Tensor) -> None:
        """Present samples with their scores.

        Args:
            samples: Candidates.
            scores: Their scores [n].
            replace: Boolean scalar on the device: whether the candidates may replace stored
                samples. If not, they only fill free rows.
        """
        count = len(samples.labels)
        scores = scores.double()
        self.reserve(samples)
        rows = self.filled + torch.arange(count, device=self.device)
        if self.filled + count > self.buffer_size:
            rows = self._compete(rows, scores, replace)
        self._set_scores(rows, scores)
        self._write(rows, samples)
        self.filled = min(self.buffer_size, self.filled + count)

    def _compete(self, rows: Tensor, scores: Tensor, replace: Tensor) -> Tensor:
        """Return the row of each sample; samples without a free row must win one."""
        free = rows < self.buffer_size
        if not self.full:
            self._set_scores(rows.clamp(max=self.buffer_size), scores)
        save_generator(self.insertion)
        selection, acceptance = torch.rand(
            2, len(rows), dtype=torch.float64, device=self.device, generator=self.insertion
        )
        victims = self._select(selection)
        stored = self.scores[victims]
        wins = replace & (acceptance < stored / (stored + scores))
        rows = torch.where(free, rows, victims.masked_fill_(~wins, self.buffer_size))
        return self._keep_last(rows)

    def _select(self, uniform: Tensor) -> Tensor:
        """Select rows with probabilities proportional to their scores, given uniform numbers.

        If all scores are zero, the row is one without a sample, whose score is zero, too.
        """
        if len(uniform) >= len(self._sums):  # one block, or blocks would take more memory
            cumulative = self.scores[: self.buffer_size].cumsum(0)
            return torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
        cumulative = self._sums.cumsum(0)
        goals = uniform * cumulative[-1]
        blocks = torch.searchsorted(cumulative, goals, right=True).clamp_(max=len(cumulative) - 1)
        goals -= (cumulative - self._sums)[blocks]
        within = self._blocks(blocks).cumsum(1)
        rows = torch.searchsorted(within, goals[:, None], right=True).squeeze(1)
        return rows.clamp_(max=self._block - 1).add_(blocks * self._block)

    def _blocks(self, numbers: Tensor) -> Tensor:
        return self.scores.view(-1, self._block).index_select(0, numbers)

    def _set_scores(self, rows: Tensor, scores: Tensor) -> None:
        save_rows(self.scores, rows)
        self.scores.index_copy_(0, rows, scores.masked_fill(rows == self.buffer_size, 0))
        if len(self._sums) > 1:
            every = torch.arange(len(self._sums), device=self.device)
            blocks = every if len(rows) >= len(every) else rows // self._block
            save_rows(self._sums, blocks)
            self._sums.index_copy_(0, blocks, self._blocks(blocks).sum(1))

    def _parts(self) -> dict[str, object]:
        own = {"insertion": self.insertion, "scores": self.scores[: self.filled]}
        sums = {"sums": self._sums} if len(self._sums) > 1 else {}
        return {**super()._parts(), **own, **sums}
