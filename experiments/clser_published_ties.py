"""CLS-ER that chooses between its memories as the published code does.

It compares float32 probabilities of the true class, which saturate at 1, and gives ties to the
plastic memory. CLSER compares log-odds and gives ties to the stable memory, as Algorithm 1 does.
Everything else is the same, the random draws included, so a pair of runs with the same seed shows
the effect of the rule. Run from this folder; the settings are those of Table S4:

    perdure run s-cifar10 --method clser_published_ties:PublishedTies --buffer 200 --seeds 0,1 \
        --device cuda --lr 0.1 --batch 32 --memory-batch 32 --epochs 50 --consistency-weight 0.15 \
        --stable-rate 0.1 --stable-decay 0.999 --plastic-rate 0.3 --plastic-decay 0.999 \
        --stable-window 0 --plastic-window 0

With `--precision fp32`, training is in float32 too; CLSER itself in float32 is

    perdure run s-cifar10 --buffer 200 --seeds 0,1 --device cuda --precision fp32

`cifar_spread.toml` has these runs as a grid, except those in float32.
"""

import torch
from torch import Tensor

from perdure import CLSER
from perdure.learners.consistency import ReplayLogits
from perdure.structures import Inputs


class PublishedTies(CLSER):
    """CLS-ER with the published code's choice between the memories."""

    def replay_logits(self, x: Inputs, y: Tensor) -> ReplayLogits:
        """The stable memory's logits where its probability is strictly greater."""
        plastic = self.with_shared_draws(lambda: self.plastic(x))
        stable = self.with_shared_draws(lambda: self.stable(x))
        own = y.unsqueeze(1)
        p_plastic, p_stable = (
            logits.float().softmax(1).gather(1, own).squeeze(1) for logits in (plastic, stable)
        )
        use_plastic = ~(p_stable > p_plastic)
        return ReplayLogits(torch.where(use_plastic[:, None], plastic, stable), use_plastic)
