"""What runs the jobs of a grid: this machine, or a cluster (`cluster.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.training.job import Job
from perdure.training.loop import Interrupted
from perdure.training.signals import graceful_stop
from perdure.training.workers import Tell, in_workers

RETRIES = 2
"""How often a job that failed is tried again."""


class Engine(Protocol):
    """Does jobs; those that fail are tried again, and the rest goes on."""

    @property
    def width(self) -> int:
        """How many jobs it does at once."""

    def run(self, jobs: Sequence[Job], tell: Tell) -> None:
        """Do them all, telling what happens to each. Interrupted if asked to stop before."""


class Local:
    """Worker processes of this machine."""

    def __init__(self, workers: int, threads: int = 1) -> None:
        self.workers = workers
        self.threads = threads

    @property
    def width(self) -> int:
        """How many jobs it does at once."""
        return self.workers

    def run(self, jobs: Sequence[Job], tell: Tell) -> None:
        """Do them all, telling what happens to each."""
        how = {"workers": self.workers, "threads": self.threads, "retries": RETRIES}
        with graceful_stop() as stop:
            in_workers(jobs, tell=tell, stop=stop, **how)
        if stop():
            raise Interrupted(stop())
