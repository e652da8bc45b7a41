"""The processes that add trials to a study: this one, or several that die with it."""

from __future__ import annotations

import multiprocessing
import signal

import optuna
import torch

from perdure.display import tell_user
from perdure.training.workers import _die_with_parent, _without_ctrl_c
from perdure.tuning.study import Search, Trial, begin, break_off_lost, trials_of, work


def tune(
    search: Search, trials: int, *, workers: int = 1, threads: int = 1, quiet: bool = False
) -> tuple[list[Trial], int]:
    """Add trials until the study has so many; returns them, and how many workers died of it."""
    study = begin(search)
    missing = trials - len(trials_of(study))
    died = 0
    if min(workers, missing) > 1:
        died = _in_workers(search, trials, min(workers, missing), threads, quiet)
        break_off_lost(study)
    elif missing > 0:
        torch.set_num_threads(threads)
        work(search, trials, _silent if quiet else _speaking)
    return trials_of(study), died


def _silent(trial: Trial, study: optuna.Study) -> None:
    pass


def _speaking(trial: Trial, study: optuna.Study) -> None:
    """A line for a trial that has ended."""
    params = ", ".join(f"{name} {value:.4g}" for name, value in trial.params.items())
    if trial.value is None:
        tell_user(f"trial {trial.number} failed: {trial.reason} ({params})")
        return
    best = max(t.value for t in trials_of(study) if t.value is not None)
    tell_user(f"trial {trial.number}: {trial.value:.2f} % ({params}); best {best:.2f} %")


def _in_workers(search: Search, trials: int, workers: int, threads: int, quiet: bool) -> int:
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's thread pools
    arguments = (search, trials, threads, quiet)
    started = [context.Process(target=_live, args=arguments, daemon=True) for _ in range(workers)]
    try:
        for worker in started:
            with _without_ctrl_c():
                worker.start()
        for worker in started:
            worker.join()
    finally:
        for worker in started:
            if worker.is_alive():
                worker.terminate()
                worker.join()
    return sum(worker.exitcode != 0 for worker in started)


def _live(search: Search, trials: int, threads: int, quiet: bool) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    _die_with_parent()
    torch.set_num_threads(threads)
    work(search, trials, _silent if quiet else _speaking)
