"""iCaRL: Incremental Classifier and Representation Learning (Rebuffi et al., CVPR 2017)."""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from perdure.arguments import check_weights
from perdure.learners.checks import Augment
from perdure.learners.input_spec import InputSpec
from perdure.learners.learner import Learner
from perdure.learners.predictor import Normalise, Predictor
from perdure.memory import ExemplarSet, NearestMeanClassifier, Storage
from perdure.records import Samples
from perdure.state import get_state
from perdure.structures import Inputs, call, chunk_size, length, select, to_device
from perdure.undo import save_rows, save_tensors


class ICaRL(Learner):
    """Trains with labels and distillation; predicts with the nearest mean of exemplars.

    In the paper's symbols, g_y(x) are the sigmoids of the network's outputs, q_y(x) those of the
    network at the end of the last task, and φ(x) is the unit-length input of the last linear layer.
    A class is new if the current task contains it, and old if it has exemplars and is not new;
    outputs of other classes are not trained. Each batch is trained together with as many
    exemplars, drawn at random.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes] and ends
            with a linear layer.
        buffer_size: Maximum number K of exemplars.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        weight_decay: Weight decay of the default optimizer. Ignored if `optimizer` is given.
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
        >>> learner = ICaRL(nn.Linear(4, 3), buffer_size=6)
        >>> inputs, labels = torch.rand(12, 4), torch.tensor([0, 1] * 6)
        >>> learner.observe(inputs, labels)
        >>> learner.end_task(Samples(inputs, labels))
        >>> learner.memory.counts, list(learner.predictors())
        ({0: 3, 1: 3}, ['nearest_mean', 'working'])
    """

    saved_by_itself = (*Learner.saved_by_itself, "new")
    changes_weights_last = True
    needs_boundaries = True
    replays_with_batch = True
    memory: ExemplarSet

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        weight_decay: float = 1e-5,
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
            lr=lr,
            optimizer=optimizer,
            augment=augment,
            normalise=normalise,
            grow=grow,
            head=head,
            seed=seed,
        )
        check_weights(weight_decay=weight_decay)
        if optimizer is None:
            self.optimizer.param_groups[0]["weight_decay"] = weight_decay
            self._first_settings = get_state(self.optimizer)["groups"]
        self.memory = ExemplarSet(
            buffer_size,
            buffer_bytes=buffer_bytes,
            seed=seed,
            device=self.device,
            storage=Storage(memory_device, memory_folder),
        )
        self.previous = NearestMeanClassifier(network)
        self.new = torch.zeros_like(self.previous.known)

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Algorithm 3 for one batch: learn new classes from labels, distil old ones.

        The loss is the paper's sum over classes, averaged over the batch. Old classes are always
        distilled, even on their own exemplars.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        batch = Samples(inputs, labels)
        save_rows(self.new, labels)
        self.new.index_fill_(0, labels, True)
        exemplars = self.memory.draw(len(labels))
        x, y = self.prepare(batch, exemplars)
        outputs = self.logits(x).float()
        targets = torch.zeros_like(outputs).scatter_(1, y[:, None], 1)
        trained = self.new
        if exemplars:
            with torch.no_grad():
                q = call(self.previous.network, x).float().sigmoid()
            targets = torch.where(self.new, targets, q)
            trained = self.new | self.previous.known
        losses = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        self.optimizer_step((losses * trained).sum(dim=1).mean())

    @torch.no_grad()
    def end_task(self, samples: Samples) -> None:
        """Algorithms 4 and 5: select exemplars of the task's classes and recompute all means.

        Args:
            samples: Training samples of the task.
        """
        previous = self.previous
        changed = [*previous.network.parameters(), previous.means, previous.known, self.new]
        save_tensors(self, changed)
        self.previous.network.load_state_dict(self.network.state_dict())
        self.memory.add(samples, self._embed)
        for label, exemplars in self.memory.groups().items():
            if len(exemplars.labels):
                mean = self._embed(exemplars.to(self.device).inputs).mean(dim=0)
                self.previous.means[label] = F.normalize(mean, dim=0)
                self.previous.known[label] = True
        self.new.zero_()

    def predictors(self) -> dict[str, Predictor]:
        """Return the nearest-mean classifier as of the last task's end and the working network.

        Before the first task has ended, both are the working network.
        """
        working = super().predictors()["working"]
        means = Predictor(self.previous, self.normalise) if self.memory.filled else working
        return {"nearest_mean": means, "working": working}

    def per_class(self) -> list[Tensor]:
        """Return the means of the classes, and which are known and new."""
        return [self.new, self.previous.means, self.previous.known]

    def _embed(self, inputs: Inputs) -> Tensor:
        size = chunk_size(inputs)
        starts = range(0, length(inputs), size)
        parts = (self.normalise(select(inputs, slice(k, k + size))) for k in starts)
        return torch.cat([self.previous.features(part) for part in parts])

    def _find_spec(self, inputs: Inputs) -> InputSpec:
        spec = super()._find_spec(inputs)
        if spec.classes != len(self.new):
            raise ValueError(
                f"the network has {spec.classes} outputs but its last linear layer has "
                f"{len(self.new)}; iCaRL needs a network that ends with a linear layer"
            )
        self._embed(to_device(select(inputs, slice(0, 1)), self.device))
        return spec
