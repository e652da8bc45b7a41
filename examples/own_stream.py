"""A stream from your own tensors, for the command and for `perdure.fit`.

    perdure run own_stream:stream --network mlp --batch 10 --stable-decay 0.9 --stable-rate 1
    python own_stream.py

Images of a bright bar on a noisy background. The row of the bar is the class; each of four tasks
has two classes.
"""

import torch
from torch import nn

import perdure


def bars(count: int, seed: int) -> perdure.Samples:
    """Images uint8 [count, 1, 8, 8] whose row `label` is bright."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 8
    inputs = torch.randint(0, 100, (count, 1, 8, 8), generator=draws, dtype=torch.uint8)
    inputs[torch.arange(count), 0, labels] += 100
    return perdure.Samples(inputs, labels)


def stream() -> perdure.Stream:
    """Four tasks of two classes; without `groups`, it would be one task without boundaries."""
    train, test = bars(800, seed=0), bars(160, seed=1)
    return perdure.from_tensors(
        train.inputs,
        train.labels,
        groups=[(0, 1), (2, 3), (4, 5), (6, 7)],
        test=(test.inputs, test.labels),
        name="bars",
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8))


if __name__ == "__main__":
    for learner in (perdure.SGD(network()), perdure.ER(network(), buffer_size=100)):
        record = perdure.fit(learner, stream(), batch=10, epochs=3)
        print(f"{type(learner).__name__}: accuracy on each task in percent")
        for task, row in enumerate(record.class_il["working"][1:], 1):
            print(f"  after task {task}:", *(f"{value:5.1f}" for value in row[:task]))
