"""The run folder and the checkpoints of a distributed run: rank 0 writes them for all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch.distributed as dist

from perdure.results import RunFolder
from perdure.state import to_host
from perdure.training.checkpoint import Checkpointer, CheckpointStore
from perdure.training.distributed import from_all, from_rank_0
from perdure.training.loop import Run, TrainingError

P = ParamSpec("P")
T = TypeVar("T")


def _on_rank_0(
    method: Callable[Concatenate[RunFolder, P], T],
) -> Callable[Concatenate[RunFolder, P], T]:
    """The method called on rank 0 only, for a folder that only rank 0 accesses."""

    def call(folder: RunFolder, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return from_rank_0(lambda: method(RunFolder(folder.path), *args, **kwargs))

    return call


class SharedFolder(RunFolder):
    """The run folder of a distributed run. All ranks call its methods; rank 0 accesses files."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder on rank 0 inside the block."""
        with RunFolder(self.path).locked() if dist.get_rank() == 0 else contextlib.nullcontext():
            yield

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return from_rank_0(lambda: RunFolder(self.path).complete)

    refuse_if_locked = _on_rank_0(RunFolder.refuse_if_locked)
    check = _on_rank_0(RunFolder.check)
    read = _on_rank_0(RunFolder.read)
    finish = _on_rank_0(RunFolder.finish)

    def reopen(self, config: Mapping[str, Any]) -> None:
        """Reopen the folder. Raise a TrainingError if the ranks' configurations differ."""
        _check_equal(config)
        from_rank_0(lambda: RunFolder(self.path).reopen(config))

    def begin(self, config: Mapping[str, Any]) -> None:
        """Create the folder. Raise a TrainingError if the ranks' configurations differ."""
        _check_equal(config)
        from_rank_0(lambda: RunFolder(self.path).begin(config))

    def event(self, kind: str, **content: Any) -> None:
        """Append an event. Raise a TrainingError if the losses show that the ranks diverged.

        Ranks on different hardware may round differently; ranks that received different batches
        differ by far more.
        """
        losses = from_all(float(content.get("values", {}).get("loss", 0)))
        if any(abs(loss - losses[0]) > 1e-3 * abs(losses[0]) for loss in losses):
            raise TrainingError(
                "the ranks diverged: their losses differ, so they received different batches; a "
                "stream must supply the same batches to every process"
            )
        from_rank_0(lambda: RunFolder(self.path).event(kind, **content))


def _check_equal(config: Mapping[str, Any]) -> None:
    configs = from_all(dict(config))
    for rank, other in enumerate(configs):
        unequal = sorted(key for key in config if configs[0][key] != other[key])
        if unequal:
            raise TrainingError(
                f"the configuration of rank {rank} differs from that of rank 0: "
                f"{', '.join(unequal)}"
            )


class SharedCheckpointer(Checkpointer):
    """Checkpoints of a distributed run: rank 0 writes them, and reads them for all ranks."""

    def resume(self, runs: Sequence[Run]) -> bool:
        """Restore the runs on every rank from rank 0's newest checkpoint.

        Checkpoints do not contain the generators that ranks use for their own rows (dropout).
        """
        if not from_rank_0(lambda: super(SharedCheckpointer, self).resume(runs)):
            return False
        states = from_rank_0(lambda: [to_host(run.state_dict()) for run in runs])
        if dist.get_rank() > 0:
            for run, state in zip(runs, states, strict=True):
                run.load_state_dict(state)
        return True

    def checkpoint_due(self) -> bool:
        """Return whether a checkpoint is due; always False on ranks other than 0."""
        return dist.get_rank() == 0 and super().checkpoint_due()

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        """Copy the states of the runs on rank 0 and write them in the background."""
        if dist.get_rank() == 0:
            super().on_checkpoint(runs)

    def clear(self, *stores: CheckpointStore) -> None:
        """Remove all checkpoints, or those of some completed runs."""
        if dist.get_rank() == 0:
            super().clear(*stores)


def stop_on_rank_0(stop: Callable[[], int] | None) -> Callable[[], int] | None:
    """Restrict `stop` to rank 0; the other ranks end when they lose contact with it.

    Signals reach the ranks at different steps, and only rank 0 writes checkpoints.
    """
    return stop if dist.get_rank() == 0 else None
