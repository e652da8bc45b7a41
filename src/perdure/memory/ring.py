"""A memory with a fixed share for every task of the stream, filled when the task ends."""

from __future__ import annotations

import torch

from perdure.memory.episodic import EpisodicMemory
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import State, give, take


class TaskMemory(EpisodicMemory):
    """`capacity // tasks` random samples of each task that has ended, one task after another.

    The ring buffers of the literature keep the last samples of a task, which is a random sample
    of a shuffled one; with the whole task at hand that sample is drawn at once.

    >>> memory = TaskMemory(7, tasks=3)
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
                f"buffer_size is {buffer_size}; expected at least one row for each of {tasks} tasks"
            )
        self.tasks = tasks
        self.share = buffer_size // tasks
        self.counts: list[int] = []
        """How many samples of each past task are stored: the share, or all of a smaller task."""
        self.choice = generator(seed, "task samples", device)

    def add(self, samples: Samples) -> None:
        """Keep a random share of a task; ValueError, and nothing changed, if it is one too many."""
        if len(self.counts) == self.tasks:
            raise ValueError(
                f"task {self.tasks + 1} has ended, but the memory is divided between "
                f"{self.tasks}; build the learner with as many tasks as the stream has"
            )
        order = torch.randperm(len(samples.labels), generator=self.choice, device=self.device)
        kept = samples.to(self.device).rows(order[: self.share])
        self.counts.append(len(kept.labels))
        self.filled += len(kept.labels)
        start = self.filled - len(kept.labels)
        self._write(torch.arange(start, self.filled, device=self.device), kept)

    def state_dict(self) -> State:
        """Capacity, shares, generators and the stored samples."""
        return {
            **super().state_dict(),
            "tasks": self.tasks,
            "counts": list(self.counts),
            "choice": take(self.choice),
        }

    def load_state_dict(self, state: State) -> None:
        """Become the memory that the state describes; capacity and tasks must be the same."""
        counts = [int(count) for count in state["counts"]]
        if int(state["tasks"]) != self.tasks:
            raise ValueError(f"the memory was divided between {state['tasks']}, not {self.tasks}")
        if sum(counts) != int(state["filled"]):
            raise ValueError(f"shares of {counts} do not add up to {state['filled']} samples")
        super().load_state_dict(state)
        give(self.choice, state["choice"])
        self.counts = counts
