"""GSS as its paper describes it: each sample is considered by its own score, not its batch's.

In the published code a full memory considers a batch only if the batch's mean gradient opposes all
stored gradients it is compared with, which is rare on R-MNIST and P-MNIST. Run from this folder,
with the full MNIST installed:

    perdure run p-mnist --method gss_per_sample:PerSample --buffer-size 500 --seeds 0:3 \
        --lr 0.1 --batch 128 --memory-batch 128 --set gss_batch=10 --epochs 1 --network mlp
"""

from __future__ import annotations

from perdure.learners import GSS, gradient_similarity
from perdure.learners.predictor import evaluation_mode
from perdure.records import Samples


class PerSample(GSS):
    """A sample competes for the memory if its own gradient opposes those it is compared with."""

    def select(self, batch: Samples) -> None:
        """Score the samples and present those with a score below 1."""
        stored = self.memory.draw(self.gss_batch)
        if stored is None:
            super().select(batch)
            return
        x = Samples(self.normalise(batch.inputs), batch.labels)
        x_m = Samples(self.normalise(stored.inputs), stored.labels)
        with evaluation_mode(self.network):
            scores = gradient_similarity.compare_linear_layers(self.network, x, x_m).per_sample()
        self.tally(considered=(scores < 1).sum())
        self.memory.add(batch, scores, scores < 1)
