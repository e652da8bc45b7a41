"""Exemplars of iCaRL: ranked samples of each class, and a classifier from their class means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.memory.episodic import GroupedMemory, load_samples
from perdure.memory.frozen import copy_network, shared_names
from perdure.records import Samples, join
from perdure.state import State
from perdure.structures import Inputs, call, length
from perdure.undo import save_hooks

NO_MEAN_SCORE = -1e4
"""Score of a class without a mean: finite, but with zero probability after a softmax."""


def herd(features: Tensor, count: int) -> Tensor:
    """Return the indices of rows whose running mean approximates the mean of all rows.

    Greedy: row k minimises ‖μ − (φ + S)/k‖ over the rows not chosen yet, where S is the sum of the
    k − 1 rows chosen before.

    Args:
        features: Feature vectors [n, d].
        count: Number of rows to choose; at most n are chosen.

    Examples:
        >>> herd(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), 2)
        tensor([2, 0])
    """
    count = min(count, len(features))
    mean, squared_norms = features.mean(dim=0), features.square().sum(dim=1)
    residual = mean.clone()  # kμ − S
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    chosen = torch.empty(count, dtype=torch.int64, device=features.device)
    for k in range(count):
        distance = (squared_norms - 2 * (features @ residual)).masked_fill_(taken, torch.inf)
        row = distance.argmin(dim=0, keepdim=True)
        chosen[k : k + 1] = row
        taken.index_fill_(0, row, True)
        residual += mean - features.index_select(0, row)[0]
    return chosen


class ExemplarSet(GroupedMemory):
    """Divides the buffer equally between the classes so far; each keeps its best exemplars.

    If `buffer_size` is not a multiple of the number of classes, the earliest classes have one
    exemplar more. When new classes arrive, the last exemplars of each list are dropped.

    Args:
        buffer_size: Maximum number of samples. Give either this or `buffer_bytes`.
        buffer_bytes: Maximum size of the stored samples, such as 64_000_000 or "64MB".
        seed: Seed of the random draws.
        device: Device of the network, to which samples are drawn.
        storage: Where the stored inputs are kept; by default on `device`.

    Examples:
        >>> memory = ExemplarSet(5)
        >>> memory.add(Samples(torch.rand(8, 2), torch.tensor([0, 1] * 4)), lambda inputs: inputs)
        >>> memory.counts, len(memory.draw(8).labels)
        ({0: 3, 1: 2}, 5)
    """

    def add(self, samples: Samples, embed: Callable[[Inputs], Tensor]) -> None:
        """Choose exemplars for every class of a task.

        For a class that already has exemplars, they and the new samples are candidates.

        Args:
            samples: Training samples of the task.
            embed: Maps inputs [n, ...] to feature vectors [n, d].
        """
        self.reserve(samples)
        exemplars = self.groups()
        arrived = [int(label) for label in torch.unique(samples.labels)]
        classes = list(dict.fromkeys([*exemplars, *arrived]))
        shares = {c: len(range(i, self.buffer_size, len(classes))) for i, c in enumerate(classes)}
        for label in arrived:
            candidates = samples.rows((samples.labels == label).nonzero().squeeze(1))
            if label in exemplars:
                candidates = join(exemplars[label].to(self.device), candidates)
            exemplars[label] = candidates.rows(herd(embed(candidates.inputs), shares[label]))
        self._replace({c: e.slice(0, shares[c]) for c, e in exemplars.items()})

    def _check_groups(self, counts: dict[int, int], state: State) -> None:
        stored = load_samples(state)
        labels = [] if stored is None else stored.labels.tolist()
        if len(labels) != sum(counts.values()) or labels != [
            label for label, count in counts.items() for _ in range(count)
        ]:
            raise ValueError("the state has groups of exemplars that are not those of their class")


class NearestMeanClassifier(nn.Module):
    """Classifies by the nearest class mean in the feature space of a fixed copy of a network.

    Scores are negative Euclidean distances between unit vectors, from −2 to 0; classes without a
    mean have the score `NO_MEAN_SCORE`.

    Args:
        network: Network to copy; the input of its last linear layer is the feature vector.
    """

    saved_by_itself = ("means", "known")
    """Buffers that only the end of a task changes (see `Undoable`)."""
    means: Tensor
    """Unit-length class means [classes, features]."""
    known: Tensor
    """Whether each class has a mean, [classes]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        weight = _last_linear(network).weight
        self.network = copy_network(network).requires_grad_(False)
        self._shared = shared_names(self.network, network)
        self.register_buffer("means", torch.zeros_like(weight, dtype=torch.float32))
        self.register_buffer("known", weight.new_zeros(len(weight), dtype=torch.bool))
        self.eval()

    def forward(self, *positional: Inputs, **named: Inputs) -> Tensor:
        """Return scores [n, classes] for normalised inputs, the arguments of the network."""
        features = self.features(named or positional)
        if torch.compiler.is_exporting():  # ONNX has no cdist
            distances = torch.linalg.vector_norm(features[:, None] - self.means, dim=2)
        else:
            mode = "donot_use_mm_for_euclid_dist"  # matrix products round small distances to zero
            distances = torch.cdist(features, self.means, compute_mode=mode)
        return torch.where(self.known, -distances, NO_MEAN_SCORE)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Restore a state whose frozen weights are those of the copied network."""
        current = self.network.state_dict()
        for name in self._shared:
            if not current[name].equal(state_dict[f"network.{name}"].to(current[name].device)):
                raise ValueError(f"{name} is frozen here but was not when the state was saved")
        return super().load_state_dict(state_dict, strict, assign)

    def features(self, x: Inputs) -> Tensor:
        """Return φ(x) [n, features]: the input of the last linear layer, scaled to unit length."""
        captured: list[Tensor] = []
        head = _last_linear(self.network)
        save_hooks(head)
        with head.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0])):
            call(self.network, x)
        if not captured or captured[-1].shape != (length(x), head.in_features):
            raise ValueError(
                "the network's last linear layer does not receive one feature vector per sample"
            )
        return F.normalize(captured[-1].float(), dim=1)


def _last_linear(network: nn.Module) -> nn.Linear:
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("the network has no nn.Linear layer whose input could serve as features")
    return linear[-1]
