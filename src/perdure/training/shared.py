"""What the ranks of one run have in common on disk: rank 0's folder and checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from perdure.learners import Learner
from perdure.results import RunFolder
from perdure.state import to_host
from perdure.training.checkpoint import Checkpointer
from perdure.training.distributed import from_all, from_rank_0
from perdure.training.loop import Run, TrainingError

T = TypeVar("T")


class SharedFolder(RunFolder):
    """Rank 0's run folder as all ranks see it: rank 0 reads and writes, every rank takes part."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, rank 0 alone may write here."""
        with RunFolder(self.path).locked() if dist.get_rank() == 0 else contextlib.nullcontext():
            yield

    def refuse_if_locked(self) -> None:
        """LockedError if another process is at work here now."""
        from_rank_0(lambda: RunFolder(self.path).refuse_if_locked())

    @property
    def complete(self) -> bool:
        """Whether the run has ended well."""
        return from_rank_0(lambda: RunFolder(self.path).complete)

    def check(self, name: str) -> None:
        """DamagedError if a file of the finished run is not as it was written."""
        from_rank_0(lambda: RunFolder(self.path).check(name))

    def read(self, name: str, kind: type[T]) -> T:
        """Read a JSON file into a typed record."""
        return from_rank_0(lambda: RunFolder(self.path).read(name, kind))

    def begin(self, config: Mapping[str, Any]) -> None:
        """Make the folder. TrainingError if the ranks are about to train on different things."""
        _agree(config)
        from_rank_0(lambda: RunFolder(self.path).begin(config))

    def reopen(self, config: Mapping[str, Any]) -> None:
        """Make the folder one of an unfinished run. TrainingError as above."""
        _agree(config)
        from_rank_0(lambda: RunFolder(self.path).reopen(config))

    def event(self, kind: str, **content: Any) -> None:
        """Append a line. TrainingError if the losses show that the ranks have gone apart.

        Ranks on different hardware may round differently; ranks that were shown different
        batches differ by far more.
        """
        losses = from_all(float(content.get("values", {}).get("loss", 0)))
        if any(abs(loss - losses[0]) > 1e-3 * abs(losses[0]) for loss in losses):
            raise TrainingError(
                "the ranks have gone apart: their losses differ, so they were not shown the same "
                "batches; a stream must give every process the same"
            )
        from_rank_0(lambda: RunFolder(self.path).event(kind, **content))

    def finish(
        self, learner: Learner, result: Mapping[str, Any], timing: Mapping[str, Any]
    ) -> None:
        """Write what the run came to."""
        from_rank_0(lambda: RunFolder(self.path).finish(learner, result, timing))


def _agree(config: Mapping[str, Any]) -> None:
    configs = from_all(dict(config))
    for rank, other in enumerate(configs):
        unlike = sorted(key for key in config if configs[0][key] != other[key])
        if unlike:
            raise TrainingError(
                f"rank {rank} would train on something else than rank 0: its "
                f"{', '.join(unlike)} differ"
            )


class SharedCheckpointer(Checkpointer):
    """Rank 0 writes the checkpoints, all ranks being alike, and reads them for all."""

    def resume(self, runs: Sequence[Run]) -> bool:
        """Let the run go on from rank 0's newest checkpoint, on every rank; False if it has none.

        What a rank draws for itself (dropout) is not in it.
        """
        if not from_rank_0(lambda: super(SharedCheckpointer, self).resume(runs)):
            return False
        states = from_rank_0(lambda: [to_host(run.state_dict()) for run in runs])
        if dist.get_rank() > 0:
            for run, state in zip(runs, states, strict=True):
                run.load_state_dict(state)
        return True

    def checkpoint_due(self) -> bool:
        """Whether it is time for the next: never on another rank than 0."""
        return dist.get_rank() == 0 and super().checkpoint_due()

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        """Take the states of the runs and write them in the background."""
        if dist.get_rank() == 0:
            super().on_checkpoint(runs)

    def clear(self) -> None:
        """The runs are finished: remove their checkpoints."""
        if dist.get_rank() == 0:
            super().clear()


def from_rank_0_alone(stop: Callable[[], int] | None) -> Callable[[], int] | None:
    """Asks for a stop as `stop` does, on rank 0: the others end when it has.

    Signals reach the ranks at different steps, and only rank 0 has a checkpoint to write.
    """
    return stop if dist.get_rank() == 0 else None
