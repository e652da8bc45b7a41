"""GSS with the published code's update of the memory, to measure the effect of our two changes.

The samples of a batch compete one after another, each against the scores that the previous ones
left, and samples that fill free rows are stored with the score of their batch instead of their own.
Run from this folder, with the full MNIST installed:

    perdure run p-mnist --method gss --buffer-size 500 --seeds 0:3
    perdure run p-mnist --method gss_as_published:AsPublished --buffer-size 500 --seeds 0:3 \
        --lr 0.1 --batch 128 --memory-batch 128 --set gss_batch=10 --epochs 1 --network mlp
"""

from __future__ import annotations

import torch

from perdure.learners import GSS, gradient_similarity
from perdure.learners.gss import FIRST_SCORE
from perdure.learners.predictor import evaluation_mode
from perdure.records import Samples


class AsPublished(GSS):
    """GSS that processes one sample at a time, on the host."""

    capturable = False

    def select(self, batch: Samples) -> None:
        """Score the batch and the samples that are considered."""
        memory = self.memory
        memory.reserve(batch)
        stored = memory.draw(self.gss_batch)
        of_batch, of_each = FIRST_SCORE, torch.zeros(0)
        if stored is not None:
            x = Samples(self.normalise(batch.inputs), batch.labels)
            x_m = Samples(self.normalise(stored.inputs), stored.labels)
            with evaluation_mode(self.network):
                compared = gradient_similarity.compare_linear_layers(self.network, x, x_m)
                of_batch = float(compared.batch)
                if of_batch < 1:
                    of_each = compared.per_sample()
        for i in range(len(batch.labels)):
            sample = Samples(batch.inputs[i : i + 1], batch.labels[i : i + 1])
            if not memory.full:
                row, score = memory.filled, of_batch
                memory.filled += 1
            elif of_batch < 1:
                scores = memory.scores[: memory.buffer_size]
                row = int(torch.multinomial(scores, 1, generator=memory.insertion))
                score = float(of_each[i])
                coin = float(torch.rand((), generator=memory.insertion))
                if coin >= scores[row] / (scores[row] + score):
                    continue
            else:
                return
            memory.scores[row] = score
            memory._write(torch.tensor([row]), sample)
