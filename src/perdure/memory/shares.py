"""A memory whose budget is divided equally over the tasks seen so far."""

from __future__ import annotations

import torch

from perdure.memory.episodic import EpisodicMemory
from perdure.records import Samples
from perdure.state import State


class TaskShares(EpisodicMemory):
    """Each task seen has an equal share of the rows, to within one; older shares shrink.

    Of T tasks the k-th, counted from 0, may hold ⌈(capacity − k) / T⌉ samples: whole numbers that
    add up to the capacity and only ever fall as T grows. A task's samples are kept from the
    front, so whoever adds them in random order has random samples dropped.

    >>> memory = TaskShares(10)
    >>> for task in range(3):
    ...     memory.add_task(Samples(torch.full((20, 2), float(task)), torch.arange(20)))
    >>> memory.held
    [4, 3, 3]
    """

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
        self.held: list[int] = []
        """How many samples of each task are stored; rows are in the order of the tasks."""

    @property
    def next_share(self) -> int:
        """How many samples the next task may bring."""
        return self.buffer_size // (len(self.held) + 1)

    def add_task(self, samples: Samples) -> None:
        """Cut every older task down to its new share and put the new task's samples behind."""
        offered = [*self.held, len(samples.labels)]
        tasks = len(offered)
        held = [min(n, -((k - self.buffer_size) // tasks)) for k, n in enumerate(offered)]
        older = self.contents()
        if older is not None:
            per_task = torch.split(torch.arange(self.filled, device=self.device), self.held)
            kept = torch.cat([rows[:n] for rows, n in zip(per_task, held, strict=False)])
            self._write(torch.arange(len(kept), device=self.device), older.rows(kept))
        self.held = held
        self.filled = sum(held)
        new = torch.arange(self.filled - held[-1], self.filled, device=self.device)
        self._write(new, samples.rows(torch.arange(held[-1], device=samples.labels.device)))

    def state_dict(self) -> State:
        """Capacity, generator, stored samples and how many belong to each task."""
        return {**super().state_dict(), "held": list(self.held)}

    def load_state_dict(self, state: State) -> None:
        """Become the memory that the state describes; the capacity must be the same."""
        held = [int(n) for n in state["held"]]
        if sum(held) != int(state["filled"]):
            raise ValueError(f"shares of {held} do not add up to {state['filled']} samples")
        super().load_state_dict(state)
        self.held = held
