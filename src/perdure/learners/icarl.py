"""iCaRL: Incremental Classifier and Representation Learning (Rebuffi et al., CVPR 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from perdure.learners.learner import Learner
from perdure.learners.predictor import Predictor
from perdure.memory.exemplars import Exemplars
from perdure.memory.means import NearestMean
from perdure.records import Samples

CHUNK = 1000
"""Images per forward pass at the end of a task."""


class ICaRL(Learner):
    """Sigmoid outputs taught by labels and by the previous network; means of exemplars answer.

    In the paper's symbols: `buffer_size` is K, the budget of the exemplar lists P_y; g_y(x) are
    the sigmoids of the network's outputs, q_y those of the network as the last task left it; φ(x)
    is the input of its last linear layer, scaled to unit length.

    A class is new while the running task brings it, old if it has exemplars and is not new; other
    outputs are not taught. Each batch is joined by as many exemplars, drawn at random.
    `weight_decay` is that of the learner's own SGD; an `optimizer` that is given keeps its own.

    >>> learner = ICaRL(nn.Linear(4, 3), buffer_size=6)
    >>> inputs, labels = torch.rand(12, 4), torch.tensor([0, 1] * 6)
    >>> learner.observe(inputs, labels)
    >>> learner.end_task(Samples(inputs, labels))
    >>> learner.memory.counts, list(learner.predictors())
    ({0: 3, 1: 3}, ['nearest_mean', 'working'])
    """

    needs_boundaries = True

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        weight_decay: float = 1e-5,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(network, optimizer=optimizer, seed=seed, **common)
        if not 0 <= weight_decay < float("inf"):
            raise ValueError(f"weight_decay is {weight_decay}; expected a number from 0 on")
        if optimizer is None:
            self.optimizer.param_groups[0]["weight_decay"] = weight_decay
        self.memory = Exemplars(buffer_size, seed=seed, device=self.device)
        self.previous = NearestMean(network)
        self.new = torch.zeros_like(self.previous.known)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Algorithm 3 for one batch: new classes are taught by labels, old ones distilled.

        The loss is the paper's sum over classes, averaged over the batch. For an old class even
        an exemplar of its own has the previous network's answer as its target.
        """
        batch = Samples(inputs, labels)
        self.new.index_fill_(0, labels, True)
        exemplars = self.memory.draw(len(labels))
        x, y = self.prepare(batch, exemplars) if exemplars else self.prepare(batch)
        outputs = self.network(x).float()
        targets = torch.zeros_like(outputs).scatter_(1, y[:, None], 1)
        taught = self.new
        if exemplars:
            with torch.no_grad():
                q = self.previous.network(x).float().sigmoid()
            targets = torch.where(self.new, targets, q)
            taught = self.new | self.previous.known
        each = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        self.descend((each * taught).sum(dim=1).mean())

    @torch.no_grad()
    def end_task(self, samples: Samples) -> None:
        """Algorithms 4 and 5: cut the lists, herd the task's classes, take all means anew."""
        samples = Samples(*self._checked(samples.inputs, samples.labels, values=True))
        self.previous.network.load_state_dict(self.network.state_dict())
        self.memory.add(samples, self._embed)
        for label, exemplars in self.memory.lists().items():
            if len(exemplars.labels):
                mean = self._embed(exemplars.inputs).mean(dim=0)
                self.previous.means[label] = F.normalize(mean, dim=0)
                self.previous.known[label] = True
        self.new.zero_()

    def predictors(self) -> dict[str, Predictor]:
        """The nearest mean of exemplars, as of the last task's end; the network's own outputs.

        Before a task has ended there are no means, and the network's outputs serve as both.
        """
        working = super().predictors()["working"]
        means = Predictor(self.previous, self.normalise) if self.memory.filled else working
        return {"nearest_mean": means, "working": working}

    def host_state(self) -> int:
        """How much is stored decides the size of the batch that exemplars join."""
        return self.memory.filled

    def _embed(self, inputs: Tensor) -> Tensor:
        chunks = torch.split(inputs, CHUNK)
        return torch.cat([self.previous.features(self.normalise(chunk)) for chunk in chunks])

    def _probe(self, inputs: Tensor) -> dict[str, Any]:
        found = super()._probe(inputs)
        if found["classes"] != len(self.new):
            raise ValueError(
                f"the network has {found['classes']} outputs, but its last linear layer "
                f"{len(self.new)}; iCaRL takes the input of the layer that classifies as features"
            )
        self._embed(inputs[:1].to(self.device))
        return found
