"""Class-incremental streams: each task introduces the next classes of a dataset."""

from __future__ import annotations

from functools import partial

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams.augment import Scale
from perdure.streams.stream import Augment, Normaliser, Stream, Task, Test, checksum_of, rows_of


def split(
    dataset: Dataset,
    tasks: int,
    name: str,
    *,
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
) -> Stream:
    """Create a class-incremental stream: S-MNIST, S-CIFAR, S-Tiny-ImageNet.

    The composition is deterministic. Each task is tested on the test images of its classes. An
    epoch omits the last batch if it is smaller than the others.

    Args:
        dataset: The dataset to split.
        tasks: Number of tasks; must divide the number of classes.
        name: Name for results.
        augment: Augmentation of raw training inputs, such as `CropFlip`.
        normalise: Turns raw inputs into the float tensor that the network expects; by default
            bytes are scaled to [0, 1].

    >>> import torch
    >>> inputs = torch.zeros(12, 1, 2, 2, dtype=torch.uint8)
    >>> samples = Samples(inputs, torch.arange(12) % 4)
    >>> stream = split(Dataset("four", samples, samples, classes=4, checksum=""), 2, "s-four")
    >>> [task.samples().labels.unique().tolist() for task in stream.tasks]
    [[0, 1], [2, 3]]
    """
    if tasks < 1 or dataset.classes % tasks:
        raise ValueError(f"{dataset.classes} classes cannot be divided equally into {tasks} tasks")
    size = dataset.classes // tasks
    test = partial(Samples, *dataset.test)  # shared: all tests are evaluated in one pass
    parts, tests = [], []
    for task in range(tasks):
        classes = tuple(range(task * size, (task + 1) * size))
        label = f"classes {classes[0]} to {classes[-1]}"
        rows = rows_of(dataset.train.labels, classes)
        parts.append(Task(label, partial(dataset.train.rows, rows), size=len(rows)))
        test_rows = rows_of(dataset.test.labels, classes)
        tests.append(Test(label, test, test_rows, classes, since=task))
    return Stream(
        name=name,
        data=dataset.name,
        classes=dataset.classes,
        shape=tuple(dataset.train.inputs.shape[1:]),
        tasks=parts,
        tests=tests,
        normalise=normalise or Scale(),
        augment=augment,
        checksum=checksum_of("split", name, dataset.checksum, tasks),
    )
