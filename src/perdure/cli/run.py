"""`perdure run`."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from perdure.cli.values import (
    Count,
    Folder,
    Name,
    Precision,
    Real,
    Seconds,
    Several,
    Steps,
    Switch,
    Whole,
    above_zero,
    at_least_one,
    thread_count,
    writable,
)

if TYPE_CHECKING:
    from perdure.training import Progress, Settings
    from perdure.training.seeds import Outcome


@dataclass(frozen=True)
class RunOptions:
    """Train and evaluate a method on a stream.

    With no arguments: CLS-ER on s-mnist with a buffer of 500, by the paper's settings.
    Hyperparameters that you do not give are the published ones for this method, stream and buffer
    (`perdure list` shows what there is).
    """

    stream: Annotated[Positional[str], arg(metavar="STREAM")] = "s-mnist"
    """A stream's name, or your own as module:function."""
    method: Annotated[str, arg(metavar="NAME")] = "clser"
    """A method's name, or your own as module:class."""
    buffer_size: Annotated[Whole, arg(aliases=["--buffer"])] = None
    """Samples that the memory may hold; 500 unless given."""
    seeds: Annotated[str, arg(metavar="SEEDS")] = "0"
    """One run per seed: 3, or 0,4,7, or 0:10 (10 left out)."""

    lr: Real = None
    """Learning rate of SGD."""
    batch: Whole = None
    """Samples of the stream in each step."""
    memory_batch: Whole = None
    """Samples of the memory in each step."""
    epochs: Whole = None
    """Passes over each task."""
    consistency_weight: Real = None
    """clser, mean-er: λ, the weight of the consistency loss."""
    stable_rate: Real = None
    """clser: r_S, how often the stable memory is updated."""
    stable_decay: Real = None
    """clser: α_S, how slowly it moves."""
    plastic_rate: Real = None
    """clser: r_P, how often the plastic memory is updated."""
    plastic_decay: Real = None
    """clser: α_P, how slowly it moves."""
    rate: Real = None
    """mean-er: how often its memory is updated."""
    decay: Real = None
    """mean-er: how slowly it moves."""
    update: Literal["random", "regular"] = "random"
    """clser, mean-er: update the memories at random steps, or at regular ones as often."""
    alpha: Real = None
    """der, derpp: weight of the stored logits."""
    beta: Real = None
    """derpp: weight of the stored labels; mer: rate within a batch."""
    gamma: Real = None
    """gem: margin; mer: rate across batches."""
    gss_batch: Whole = None
    """gss: stored samples that a new one is compared with."""
    inner_steps: Whole = None
    """gss, mer: steps on each batch."""
    weight_decay: Real = None
    """icarl: weight decay of SGD."""
    set: Annotated[Several, arg(metavar="NAME=VALUE", help_behavior_hint="")] = ()
    """Further settings of your own method."""

    network: Name = None
    """mlp, resnet18, or your own as module:function, called with (image shape, classes)."""
    data: Folder = None
    """Folder with the datasets, and the only one searched; else $PERDURE_DATA, then the cache."""
    dataset: Name = None
    """mnist or mnist5k (5,000 digits that ship with perdure), for streams made from either."""
    stream_seed: Name = None
    """Composition of r-mnist, p-mnist and gcil: a number, or per-run for a new one each seed."""
    validation: Real = None
    """Evaluate on this share of the training samples instead of the test set, say 0.1."""
    max_steps: Whole = None
    """Leave the stream after so many steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Precision = None
    """Arithmetic on a GPU; bf16 unless given."""
    engine: Steps = None
    """On a GPU: steps one operation at a time, as CUDA graphs (the default), or those compiled."""
    deterministic: Switch = False
    """On a GPU: the same bits again for the same seed, a little slower."""
    side_by_side: Count = 8
    """Seeds trained at once on one GPU."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Folder for the runs."""
    again: Switch = False
    """Train again what is there already."""
    resume: Switch = False
    """Go on with unfinished runs from their last checkpoints."""
    checkpoint_every: Seconds = 60.0
    """Seconds from one checkpoint to the next; the end of a task has one as well."""
    tensorboard: Folder = None
    """Log losses, accuracies and the memory's classes for TensorBoard in this folder."""
    workers: Whole = None
    """Worker processes; as many as cores unless given."""
    threads: Count = 1
    """Threads of each run; more change the last digits of the results."""
    json: Switch = False
    """End with one JSON line."""
    quiet: Switch = False
    """No progress and no table."""


HYPERPARAMETERS = (  # those with a flag of their own
    *("lr", "batch", "memory_batch", "epochs", "consistency_weight", "stable_rate"),
    *("stable_decay", "plastic_rate", "plastic_decay", "rate", "decay"),
    *("alpha", "beta", "gamma", "gss_batch", "inner_steps", "weight_decay"),
)


def run(options: RunOptions) -> int:
    """Plan, train what is missing, and show the results."""
    from perdure.cli.tables import show
    from perdure.display import results_table, tell_user
    from perdure.streams.from_batches import not_resumable
    from perdure.training.build import build_run, read_dataset
    from perdure.training.distributed import from_rank_0
    from perdure.training.launch import is_main_process, setup_ranks
    from perdure.training.plan import parse_seeds, plan

    if options.deterministic:  # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    given = {k: v for k in HYPERPARAMETERS if (v := getattr(options, k)) is not None}
    given |= dict(assignment(text) for text in options.set)
    seeds = parse_seeds(options.seeds)
    ranks = setup_ranks(seeds, options.device, options.engine)
    workers = (os.cpu_count() or 1) if options.workers is None else options.workers
    workers = at_least_one("--workers", workers)
    threads = thread_count(options.threads)
    side_by_side = at_least_one("--side-by-side", options.side_by_side)
    checkpoint_every = above_zero("--checkpoint-every", options.checkpoint_every)
    if options.again and options.resume:
        raise ValueError("--again starts anew and --resume goes on; leave out one of them")
    stream_seed = options.stream_seed
    settings = plan(
        options.stream,
        options.method,
        options.buffer_size,
        given=given,
        network=options.network,
        dataset=options.dataset,
        data_root=options.data,
        stream_seed=int(stream_seed) if stream_seed and stream_seed.isdecimal() else stream_seed,
        validation=options.validation,
        max_steps=options.max_steps,
        device=options.device,
        precision=options.precision,
        engine=options.engine if ranks == 1 else "eager",
        deterministic=options.deterministic,
        update=options.update,
        ranks=ranks,
    )
    first = build_run(settings, read_dataset(settings), seeds[0])  # refuses bad values at once
    if options.resume:
        for task in first.stream.tasks:
            if not task.resumable:
                raise ValueError(not_resumable(task))
    if ranks == 1:
        writable(options.out)
    else:  # rank 0 writes, and all must end if it cannot
        from_rank_0(lambda: writable(options.out))
    notes = [*settings.notes, *_left_behind(settings, seeds, options)]
    if options.tensorboard is not None:
        writable(options.tensorboard, "--tensorboard")
    if not options.quiet:
        for note in notes:
            tell_user(f"note: {note}")
    outcome, summary = train_seeds(
        settings,
        seeds,
        options.out,
        again=options.again,
        resume=options.resume,
        checkpoint_every=checkpoint_every,
        workers=workers,
        threads=threads,
        side_by_side=side_by_side,
        quiet=options.quiet,
        tensorboard=options.tensorboard if is_main_process() else None,
    )
    if summary is not None:
        if not options.quiet:
            show(results_table(summary, published=settings.published))
            tell_user(f"runs are in {settings.folder(options.out, seeds[0]).path.parent}")
        if options.json:
            print(json.dumps(summary), flush=True)
    return 1 if outcome.failed else 0


def _left_behind(settings: Settings, seeds: list[int], options: RunOptions) -> list[str]:
    """What earlier runs left that the user may have meant to go on from."""
    from perdure.training.seeds import made_from_other_data, waiting

    steps = {} if options.resume else waiting(settings, seeds, options.out)
    notes = [
        f"seed {seed} starts again, although a checkpoint of step {step} was there; next time, "
        "--resume goes on from it"
        for seed, step in steps.items()
    ]
    for folder, checksum in made_from_other_data(settings, options.out).items():
        notes.append(
            f"the data is not that of {folder} (checksum {settings.data_checksum or 'unknown'}, "
            f"there {checksum or 'unknown'}): its runs are left alone"
        )
    return notes


def train_seeds(
    settings: Settings,
    seeds: list[int],
    out: Path,
    *,
    quiet: bool,
    tensorboard: Path | None = None,
    **how: Any,
) -> tuple[Outcome, dict[str, Any] | None]:
    """Make the runs under a progress display, say what failed, and sum up the rest."""
    from perdure import results
    from perdure.display import ProgressDisplay, tell_user
    from perdure.integrations.tensorboard import TensorBoardLog
    from perdure.training.seeds import make_runs

    began = time.perf_counter()
    folders = [results.RunFolder(settings.folder(out, seed).path) for seed in seeds]
    with ProgressDisplay(quiet=quiet) as display, TensorBoardLog(tensorboard, folders) as log:

        def tell(seed: int, progress: Progress) -> None:
            display(seed, progress)
            log.update()

        outcome = make_runs(settings, seeds, out, tell=tell, **how)
    if outcome.reused and not quiet:
        tell_user(
            f"{outcome.reused} of {len(seeds)} runs were there already; --again trains them again"
        )
    for seed, reason in outcome.failed.items():
        tell_user(f"perdure: seed {seed} failed: {reason.removeprefix(f'seed {seed}: ')}")
    if not outcome.done:
        return outcome, None
    runs = [(f.read("config.json"), f.read("result.json")) for f in outcome.done.values()]
    return outcome, results.summary(runs, time.perf_counter() - began)


def assignment(text: str) -> tuple[str, float]:
    """What `--set name=value` says."""
    name, sign, value = text.partition("=")
    try:
        if not (sign and name.isidentifier()):
            raise ValueError
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise ValueError(f"--set {text!r}; expected name=number") from None
