"""Dividing samples into a training and a held-out part, by task and class."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.arguments import as_list, is_number
from perdure.randomness import generator


def hold_out(
    tasks: Sequence[Tensor], labels: Sequence[Tensor], share: float, seed: int = 0
) -> list[Tensor]:
    """Choose the held-out samples of each task.

    In every task the share of each class is held out, as closely as the ids allow, and at least
    one sample where the class has two ids or more. Samples with the same id are never separated,
    in whichever tasks they are. A class with a single id in a task is held out only if another
    class requires it.

    Args:
        tasks: The id of each sample, by task.
        labels: The label of each sample, by task.
        share: Share of the samples to hold out, between 0 and 1.
        seed: Seed of the choice.

    Returns:
        A mask of the held-out samples, by task.

    Raises:
        ValueError: If the share is not between 0 and 1, or a task cannot be divided.

    >>> ids, labels = torch.arange(8), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> (mask,) = hold_out([ids], [labels], 0.25)
    >>> labels[mask].tolist()
    [0, 1]
    """
    if not (is_number(share) and 0 < share < 1):
        raise ValueError(f"the share to hold out is {share!r}; expected a number between 0 and 1")
    draws = generator(seed, "hold out")
    chosen: set[int] = set()
    for ids, classes in zip(tasks, labels, strict=True):
        _, counts = np.unique(classes.cpu().numpy(), return_counts=True)
        by_class = ids.cpu().numpy()[np.argsort(classes.cpu().numpy(), kind="stable")]
        for members in np.split(by_class, counts.cumsum()[:-1]):
            found, sizes = np.unique(members, return_counts=True)
            order = torch.randperm(len(found), generator=draws).numpy()
            pairs = list(zip(found[order].tolist(), sizes[order].tolist(), strict=True))
            wanted = share * int(sizes.sum())
            held = sum(size for one, size in pairs if one in chosen)
            left = [(one, size) for one, size in pairs if one not in chosen]
            for one, size in left[:-1]:  # one id at least is trained on
                if not held or abs(held + size - wanted) < abs(held - wanted):
                    chosen.add(one)
                    held += size
    every = torch.cat([ids.cpu() for ids in tasks])
    held_out = torch.isin(every, torch.tensor(sorted(chosen), dtype=torch.int64))
    masks = list(torch.split(held_out, [len(ids) for ids in tasks]))
    for number, mask in enumerate(masks, 1):
        if not mask.any() or mask.all():
            what = "test" if not mask.any() else "train on"
            raise ValueError(
                f"holding out a share of {share:g} leaves no samples of task {number} to {what}: "
                "its classes have too few samples, or too many of them must be kept together"
            )
    return [mask.to(ids.device) for mask, ids in zip(masks, tasks, strict=True)]


def as_ids(values: Sequence[Hashable] | Tensor | npt.NDArray[np.generic], n: int) -> Tensor:
    """An id for each of n samples: equal values get equal ids.

    Raises:
        ValueError: If there is not one value per sample, or a value cannot be hashed.

    >>> as_ids(["anna", "ben", "anna"], 3)
    tensor([0, 1, 0])
    """
    plain = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    found = as_list("keep_together", plain, "a value for each sample")
    if len(found) != n:
        raise ValueError(f"keep_together has {len(found)} values for {n} training samples")
    known: dict[Hashable, int] = {}
    try:
        return torch.tensor([known.setdefault(value, len(known)) for value in found])
    except TypeError as error:
        raise ValueError(f"keep_together has values that cannot be compared: {error}") from None
