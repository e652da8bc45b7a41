"""Memories that are divided between tasks and filled when a task ends."""

from __future__ import annotations

import torch

from perdure.memory.episodic import EpisodicMemory
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import State, get_state, load_state


class TaskBuffer(EpisodicMemory):
    """Keeps `buffer_size // tasks` random samples of each task that has ended.

    The ring buffers of the literature keep the last samples of a task, which are a random sample
    because tasks are shuffled. Here that sample is drawn when the task ends.

    Args:
        buffer_size: Maximum number of samples.
        tasks: Number of tasks of the stream.
        seed: Seed of the random draws.
        device: Device that holds the samples.

    Examples:
        >>> memory = TaskBuffer(7, tasks=3)
        >>> memory.add(Samples(torch.rand(5, 2), torch.zeros(5, dtype=torch.int64)))
        >>> memory.counts, len(memory.draw(8).labels)
        ([2], 2)
    """

    def __init__(
        self, buffer_size: int, tasks: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
        if tasks < 1:
            raise ValueError(f"tasks is {tasks}; expected 1 or more")
        if buffer_size < tasks:
            raise ValueError(
                f"buffer_size is {buffer_size}; expected at least one sample for each of "
                f"{tasks} tasks"
            )
        self.tasks = tasks
        self.share = buffer_size // tasks
        self.counts: list[int] = []
        """Number of stored samples of each task so far."""
        self.choice = generator(seed, "task samples", device)

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
        order = torch.randperm(len(samples.labels), generator=self.choice, device=self.device)
        kept = samples.to(self.device).rows(order[: self.share])
        filled = self.filled + len(kept.labels)
        self._write(torch.arange(self.filled, filled, device=self.device), kept)
        self.counts.append(len(kept.labels))
        self.filled = filled

    def state_dict(self) -> State:
        """Return the stored samples, their number per task and the generators."""
        return {
            **super().state_dict(),
            "tasks": self.tasks,
            "counts": list(self.counts),
            "choice": get_state(self.choice),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state of a buffer of the same size and number of tasks."""
        if int(state["tasks"]) != self.tasks:
            raise ValueError(f"the state has {state['tasks']} tasks; expected {self.tasks}")
        counts = _read_counts(state)
        super().load_state_dict(state)
        load_state(self.choice, state["choice"])
        self.counts = counts


class BalancedTaskBuffer(EpisodicMemory):
    """Divides the buffer equally between the tasks so far; the shares of older tasks shrink.

    With T tasks, task k (counted from 0) may hold ⌈(buffer_size − k) / T⌉ samples. These shares add
    up to `buffer_size` and never grow with T. The first samples of a task are kept the longest, so
    samples added in random order are dropped at random.

    Args:
        buffer_size: Maximum number of samples.
        seed: Seed of the random draws.
        device: Device that holds the samples.

    Examples:
        >>> memory = BalancedTaskBuffer(10)
        >>> for task in range(3):
        ...     memory.add(Samples(torch.full((20, 2), float(task)), torch.arange(20)))
        >>> memory.counts
        [4, 3, 3]
    """

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
        self.counts: list[int] = []
        """Number of stored samples of each task so far; rows are ordered by task."""

    @property
    def next_share(self) -> int:
        """Number of samples that the next task may store."""
        return self.buffer_size // (len(self.counts) + 1)

    def add(self, samples: Samples) -> None:
        """Cut every older task to its new share and store the first samples of a new task.

        Args:
            samples: Samples of the task, in random order.
        """
        offered = [*self.counts, len(samples.labels)]
        tasks = len(offered)
        counts = [min(n, -((k - self.buffer_size) // tasks)) for k, n in enumerate(offered)]
        older = self.contents()
        if older is not None:
            per_task = torch.split(torch.arange(self.filled, device=self.device), self.counts)
            kept = torch.cat([rows[:n] for rows, n in zip(per_task, counts, strict=False)])
            self._write(torch.arange(len(kept), device=self.device), older.rows(kept))
        self.counts = counts
        self.filled = sum(counts)
        new = torch.arange(self.filled - counts[-1], self.filled, device=self.device)
        self._write(new, samples.rows(torch.arange(counts[-1], device=samples.labels.device)))

    def state_dict(self) -> State:
        """Return the stored samples, their number per task and the generator."""
        return {**super().state_dict(), "counts": list(self.counts)}

    def load_state_dict(self, state: State) -> None:
        """Restore a state of a buffer of the same size."""
        counts = _read_counts(state)
        super().load_state_dict(state)
        self.counts = counts


def _read_counts(state: State) -> list[int]:
    """Return the number of samples per task in a state."""
    counts = [int(n) for n in state["counts"]]
    if sum(counts) != int(state["filled"]):
        raise ValueError(f"counts {counts} do not add up to {state['filled']} samples")
    return counts
