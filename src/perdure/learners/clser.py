"""CLS-ER: two semantic memories and an episodic one (Arani, Sarfraz and Zonooz, ICLR 2022)."""

from __future__ import annotations

import math
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.arguments import check_weights, is_number
from perdure.learners.checks import Augment
from perdure.learners.consistency import ConsistentReplay, ReplayLogits
from perdure.learners.predictor import Normalise, Predictor
from perdure.memory import AgeHistogram, AgeTrackingReservoir, SemanticMemory, Update
from perdure.structures import Inputs

_SHORT = 100
"""Steps with `window_ratio` new samples for each replayed one up to which a stream is short."""


class CLSER(ConsistentReplay):
    """Complementary learning systems: a stable and a plastic memory of the working network.

    The defaults suit streams of any length. The paper's settings, which use the published warm-up
    (windows of None) and differ by stream and buffer, are presets of `perdure run`.

    Args:
        network: Working network θ_W to train, in place. It maps inputs [n, ...] to logits
            [n, classes].
        buffer_size: Maximum number of samples in the episodic memory M.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
        consistency_weight: Weight λ of the consistency loss.
        stable_window: Share of the past updates that the stable memory θ_S averages over; None
            for the published warm-up (see `SemanticMemory`).
        stable_decay: Decay α_S of the stable memory, which limits the length of its average.
        stable_rate: Share r_S of the steps that update the stable memory.
        plastic_window: Share of the past updates that the plastic memory θ_P averages over.
        plastic_decay: Decay α_P of the plastic memory.
        plastic_rate: Share r_P of the steps that update the plastic memory.
        window_ratio: Ratio of new to replayed samples per step below which the windows are shorter
            at the start of a stream: if steps with this ratio would number k, the windows count at
            most k · max(1, k / 100) past updates. None for all updates.
        update: When the memories are updated: at "random" steps, as published, or at "regular"
            intervals with the same mean rate.
        lr: Learning rate of the default optimizer, plain SGD; 0.1 by default.
        optimizer: Any torch optimizer over parameters of `network` whose `step` needs no closure,
            instead of `lr`.
        augment: Random augmentation `augment(inputs, generator)` of new and replayed samples.
        normalise: Maps raw inputs to network inputs; by default, scales uint8 to [0, 1].
        grow: Whether the networks grow when a label arrives for which they have no output.
        head: Name of the layer that grows, an `nn.Linear`; by default the last one.
        memory_device: "cpu" keeps stored inputs in host memory although the network is on a GPU.
        memory_folder: Folder for a temporary file that holds the stored inputs instead of memory.
        seed: Seed of all random draws.

    Examples:
        >>> learner = CLSER(nn.Linear(4, 3), buffer_size=20)
        >>> for _ in range(3):
        ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
        >>> list(learner.predictors())
        ['stable', 'plastic', 'working']
    """

    changes_weights_last = True
    memory: AgeTrackingReservoir

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        memory_batch: int = 32,
        consistency_weight: float = 0.5,
        stable_window: float | None = 0.05,
        stable_decay: float = 0.9999,
        stable_rate: float = 1.0,
        plastic_window: float | None = 0.03,
        plastic_decay: float = 0.9999,
        plastic_rate: float = 1.0,
        window_ratio: float | None = 0.5,
        update: Update = "random",
        lr: float | None = None,
        optimizer: Optimizer | None = None,
        augment: Augment | None = None,
        normalise: Normalise | None = None,
        grow: bool = False,
        head: str | None = None,
        memory_device: torch.device | str | None = None,
        memory_folder: str | PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            network,
            buffer_size=buffer_size,
            buffer_bytes=buffer_bytes,
            memory_batch=memory_batch,
            lr=lr,
            optimizer=optimizer,
            augment=augment,
            normalise=normalise,
            grow=grow,
            head=head,
            memory_device=memory_device,
            memory_folder=memory_folder,
            seed=seed,
        )
        check_weights(consistency_weight=consistency_weight)
        self.consistency_weight = consistency_weight
        if not (window_ratio is None or (is_number(window_ratio) and 0 < window_ratio < math.inf)):
            raise ValueError(
                f"window_ratio is {window_ratio!r}; expected a number above 0, or None"
            )
        self.window_ratio = window_ratio
        average = partial(SemanticMemory, network, update=update, seed=seed)
        self.plastic = average(
            window=plastic_window, decay=plastic_decay, rate=plastic_rate, name="plastic"
        )
        self.stable = average(
            window=stable_window, decay=stable_decay, rate=stable_rate, name="stable"
        )
        self.replay_ages = AgeHistogram(self.device)

    def create_memory(self, buffer_size: int | None, **options: Any) -> AgeTrackingReservoir:
        """Create the memory, whose clock is the number of steps."""
        return AgeTrackingReservoir(buffer_size, clock=self.steps, **options)

    def replay_logits(self, x: Inputs, y: Tensor) -> ReplayLogits:
        """Lines 4 and 5 of Algorithm 1: use the memory that is surer of each sample's class.

        The paper compares probabilities; odds give the same order but do not saturate, whereas
        in float32 a probability rounds to 1 from a margin of 17. Ties go to the stable memory.

        Args:
            x: Prepared inputs X_m of the replayed samples.
            y: Their labels [n].
        """
        plastic = self.with_shared_draws(lambda: self.plastic(x))
        stable = self.with_shared_draws(lambda: self.stable(x))
        doubt_plastic, doubt_stable = _log_odds_against(torch.stack([plastic, stable]), y)
        use_plastic = doubt_plastic < doubt_stable
        return ReplayLogits(torch.where(use_plastic[:, None], plastic, stable), use_plastic)

    def consolidate(self) -> None:
        """Lines 8 to 10: update each memory at its own steps."""
        counted = self._counted_steps()
        self.plastic.update(self.steps, counted)
        self.stable.update(self.steps, counted)

    def _counted_steps(self) -> Tensor | None:
        """Return the number of past steps whose updates the windows count at most; None for all.

        If a step had `window_ratio` new samples for each replayed one, the samples so far would
        make k steps; the windows count k · max(1, k / 100). With fewer new samples per step, the
        windows of a short stream are therefore shorter.
        """
        if self.window_ratio is None:
            return None
        full = self.memory.seen / (self.window_ratio * self.memory_batch)
        return full * (full / _SHORT).clamp(min=1)

    def predictors(self) -> dict[str, Predictor]:
        """Return the stable memory, which predicts, the plastic memory and the working network."""
        return {
            "stable": Predictor(self.stable.network, self.normalise),
            "plastic": Predictor(self.plastic.network, self.normalise),
            **super().predictors(),
        }

    # -- diagnostics ------------------------------------------------------------------------

    def record_sources(self, source: Tensor | None) -> None:
        """Count, by the age of the samples, which memory provided the replay logits."""
        if source is not None:
            self.replay_ages.add(self.memory.drawn_ages(), source)

    def totals(self) -> dict[str, float]:
        """Return all sums, including how many replay logits each memory provided."""
        counts = self.replay_ages.read()
        plastic = sum(counts.marked)
        used = {"plastic_used": float(plastic), "stable_used": float(sum(counts.total) - plastic)}
        return {**super().totals(), **used}

    def histograms(self) -> dict[str, dict[str, list[int]]]:
        """Return the histogram "ages": how often the stable memory, and any, provided logits.

        Bin k counts samples that were stored `edges[k]` to `edges[k + 1] - 1` steps before.
        """
        edges, total, plastic = self.replay_ages.read()
        stable = [t - p for t, p in zip(total, plastic, strict=True)]
        return {"ages": {"edges": edges, "stable": stable, "total": total}}


def _log_odds_against(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-odds [m, n] against each sample's class, for logits [m, n, classes]."""
    own = labels.expand(len(logits), -1).unsqueeze(2)
    others = logits.scatter(2, own, -torch.inf).logsumexp(2)
    return others - logits.gather(2, own).squeeze(2)
