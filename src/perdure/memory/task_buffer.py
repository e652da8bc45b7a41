"""Memories that are divided between tasks and filled when a task ends."""

from __future__ import annotations

import torch

from perdure.memory.episodic import GroupedMemory
from perdure.memory.storage import Storage
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import State


class TaskBuffer(GroupedMemory):
    """Keeps `buffer_size // tasks` random samples of each task that has ended.

    The ring buffers of the literature keep the last samples of a task, which are a random sample
    because tasks are shuffled. Here that sample is drawn when the task ends.

    Args:
        buffer_size: Maximum number of samples. Give either this or `buffer_bytes`.
        buffer_bytes: Maximum size of the stored samples, such as 64_000_000 or "64MB".
        tasks: Number of tasks of the stream.
        seed: Seed of the random draws.
        device: Device of the network, to which samples are drawn.
        storage: Where the stored inputs are kept; by default on `device`.

    Examples:
        >>> memory = TaskBuffer(7, tasks=3)
        >>> memory.add(Samples(torch.rand(5, 2), torch.zeros(5, dtype=torch.int64)))
        >>> memory.counts, len(memory.draw(8).labels)
        ({0: 2}, 2)
    """

    _settings = ("tasks",)

    def __init__(
        self,
        buffer_size: int | None = None,
        *,
        tasks: int,
        buffer_bytes: int | str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        storage: Storage | None = None,
    ) -> None:
        if tasks < 1:
            raise ValueError(f"tasks is {tasks}; expected 1 or more")
        self.tasks = tasks
        super().__init__(
            buffer_size, buffer_bytes=buffer_bytes, seed=seed, device=device, storage=storage
        )
        self.choice = generator(seed, "task samples", self.device)

    def _set_size(self, size: int) -> None:
        if 0 < size < self.tasks:
            raise ValueError(
                f"buffer_size is {size}; expected at least one sample for each of "
                f"{self.tasks} tasks"
            )
        super()._set_size(size)

    @property
    def share(self) -> int:
        """Number of samples that each task may store; 0 until the size is known."""
        return self.buffer_size // self.tasks

    def add(self, samples: Samples) -> None:
        """Store random samples of a task that has ended.

        Args:
            samples: Training samples of the task.

        Raises:
            ValueError: If more tasks end than the buffer was created for.
        """
        if len(self.counts) == self.tasks:
            raise ValueError(
                f"task {self.tasks + 1} has ended, but the memory is divided between "
                f"{self.tasks}; create the learner with the number of tasks in the stream"
            )
        self.reserve(samples)
        order = torch.randperm(len(samples.labels), generator=self.choice, device=self.device)
        kept = samples.to(self.device).rows(order[: self.share])
        self._replace({**self.groups(), len(self.counts): kept})

    def _parts(self) -> dict[str, object]:
        return {**super()._parts(), "choice": self.choice}

    def _check_groups(self, counts: dict[int, int], state: State) -> None:
        share = int(state["buffer_size"]) // self.tasks
        if len(counts) > self.tasks:
            raise ValueError(f"the state has {len(counts)} tasks; expected at most {self.tasks}")
        _check_tasks(counts, [share] * len(counts))
        if 0 in counts.values():
            raise ValueError("the state has a task without samples")


class BalancedTaskBuffer(GroupedMemory):
    """Divides the buffer equally between the tasks so far; the shares of older tasks shrink.

    With T tasks, task k (counted from 0) may hold ⌈(buffer_size − k) / T⌉ samples. These shares add
    up to `buffer_size` and never grow with T. The first samples of a task are kept the longest, so
    samples added in random order are dropped at random.

    Args:
        buffer_size: Maximum number of samples. Give either this or `buffer_bytes`.
        buffer_bytes: Maximum size of the stored samples, such as 64_000_000 or "64MB".
        seed: Seed of the random draws.
        device: Device of the network, to which samples are drawn.
        storage: Where the stored inputs are kept; by default on `device`.

    Examples:
        >>> memory = BalancedTaskBuffer(10)
        >>> for task in range(3):
        ...     memory.add(Samples(torch.full((20, 2), float(task)), torch.arange(20)))
        >>> memory.counts
        {0: 4, 1: 3, 2: 3}
    """

    @property
    def next_share(self) -> int:
        """Number of samples that the next task may store."""
        return self.buffer_size // (len(self.counts) + 1)

    def add(self, samples: Samples) -> None:
        """Cut every older task to its new share and store the first samples of a new task.

        Args:
            samples: Samples of the task, in random order.
        """
        self.reserve(samples)
        groups = {**self.groups(), len(self.counts): samples.to(self.device)}
        shares = _balanced(self.buffer_size, len(groups))
        self._replace({k: group.slice(0, shares[k]) for k, group in groups.items()})

    def _check_groups(self, counts: dict[int, int], state: State) -> None:
        _check_tasks(counts, _balanced(int(state["buffer_size"]), len(counts)))


def _balanced(size: int, tasks: int) -> list[int]:
    """Return the share of each task: ⌈(size − k) / tasks⌉ samples for task k."""
    return [-((k - size) // tasks) for k in range(tasks)]


def _check_tasks(counts: dict[int, int], shares: list[int]) -> None:
    """Raise ValueError unless the groups are tasks in order, each within its share."""
    if list(counts) != list(range(len(counts))):
        raise ValueError(f"the state has the tasks {[*counts]}; expected 0 to {len(counts) - 1}")
    for task, share in enumerate(shares):
        if counts[task] > share:
            raise ValueError(
                f"the state has {counts[task]} samples of task {task}; its share is {share}"
            )
