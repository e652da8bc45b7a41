"""CLS-ER on networks with dropout: the same masks for all networks, or separate ones.

    python experiments/dropout.py

trains on the shipped digits in the order of their classes, in batches of 8 with a buffer of 200,
and prints the mean accuracy in percent over three seeds. It takes two minutes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from perdure import CLSER, ER, Learner, MeanER
from perdure.data import load

DIGITS = load("mnist5k")
SEEDS = range(3)


class SeparateMasks(CLSER):
    """CLS-ER with separate dropout masks for each network."""

    def with_shared_draws(self, forward: Callable[[], Tensor]) -> Tensor:
        """Let each network draw its own masks."""
        return forward()


METHODS: dict[str, Callable[..., Learner]] = {
    "ER": ER,
    "Mean-ER": MeanER,
    "CLS-ER": CLSER,
    "CLS-ER, separate masks": SeparateMasks,
}


def make_network(dropout: float, normalised: bool, seed: int) -> nn.Module:
    """Return an MLP with two hidden layers."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for size in (784, 64):
        norm = [nn.BatchNorm1d(64)] if normalised else []
        layers += [nn.Linear(size, 64), *norm, nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def accuracy(method: Callable[..., Learner], dropout: float, normalised: bool, seed: int) -> float:
    """Return the accuracy on all digits after training, in percent."""
    learner = method(make_network(dropout, normalised, seed), buffer_size=200, seed=seed)
    labels = DIGITS.train.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = order[labels[order].argsort(stable=True)]
    for rows in torch.split(by_class, 8):
        learner.observe(DIGITS.train.inputs[rows], labels[rows])
    correct = learner.predict(DIGITS.test.inputs) == DIGITS.test.labels
    return 100 * float(correct.float().mean())


def main() -> None:
    """Print a table as Markdown."""
    torch.set_num_threads(1)
    print(f"| BatchNorm | dropout | {' | '.join(METHODS)} |")
    print(f"|---|---|{'---|' * len(METHODS)}")
    for normalised in (True, False):
        for dropout in (0.0, 0.1, 0.3, 0.5):
            cells = []
            for method in METHODS.values():
                found = [accuracy(method, dropout, normalised, seed) for seed in SEEDS]
                cells.append(f"{sum(found) / len(found):.1f}")
            print(f"| {'yes' if normalised else 'no'} | {dropout} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
