"""How well `perdure reproduce` uses the cores of this machine.

    python benchmarks/grid.py [--workers 2] [--runs 16] [--steps 6000] [--repeats 3]

Efficiency is the time of ideal workers divided by the time of the grid. Ideal workers are the same
number of processes, warmed up before the measurement, each of which only trains an equal share of
the runs; the grid is the whole command from start to end. Both are measured in turn, and the median
is reported.

On a busy machine, times are not meaningful. `efficiency_by_processor` compares the processor time
of both instead, which includes all work of the grid but no waiting.

The overhead of a run is the processor time that one more run of a single step costs the command
and its workers, minus the cost of that run alone. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from perdure.experiment.resolve import resolve
from perdure.experiment.run import PlannedRun, make_jobs

GOAL = 0.9
CORES = len(os.sched_getaffinity(0))


def make(seeds: range, steps: int, out: Path) -> None:
    """Train the runs in this process, one after the other."""
    config = resolve("s-mnist", "clser", 500, dataset="mnist5k", max_steps=steps)
    for job in make_jobs([PlannedRun(config, seed) for seed in seeds], out, resume=False):
        job.execute(lambda progress: None)


def ideal_workers(workers: int, runs: int, steps: int, out: Path) -> float:
    """Seconds for the runs by processes with equal shares."""
    command = [sys.executable, __file__, "--share", str(out), "--steps", str(steps), "--runs"]
    shares = [
        subprocess.Popen([*command, str(n)], stdin=-1, stdout=-1, text=True)
        for n in (len(range(i, runs, workers)) for i in range(workers))
    ]
    for share in shares:
        assert share.stdout is not None
        share.stdout.readline()  # warmed up
    began = time.perf_counter()
    for share in shares:
        assert share.stdin is not None
        share.stdin.write("go\n")
        share.stdin.close()
    for share in shares:
        share.wait()
    seconds = time.perf_counter() - began
    if any(share.returncode for share in shares):
        raise RuntimeError("an ideal worker failed")
    return seconds


def share(runs: int, steps: int, out: Path) -> None:
    """An ideal worker."""
    place = out / str(os.getpid())
    make(range(1), 50, place / "warm-up")
    print("warm", flush=True)
    sys.stdin.readline()
    make(range(runs), steps, place)


def grid(workers: int, runs: int, steps: int, out: Path) -> float:
    """Seconds for the same runs by the command."""
    words = (
        f"reproduce table1 --streams s-mnist --methods clser --buffer-sizes 500 --seeds 0:{runs}"
    )
    how = f"--dataset mnist5k --max-steps {steps} --workers {workers} --quiet --out {out}"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "perdure", *words.split(), *how.split()], check=True)
    return time.perf_counter() - began


def processor_time(who: int) -> float:
    """Processor time of this process, or of its descendants."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def overhead(folder: Path) -> float:
    """Seconds of processor time that one more run costs beyond itself."""
    costs = []
    for runs in (1, 21):
        before = processor_time(resource.RUSAGE_CHILDREN)
        grid(1, runs, 1, folder / str(runs))
        costs.append(processor_time(resource.RUSAGE_CHILDREN) - before)
    make(range(2), 1, folder / "warm-up")
    before = processor_time(resource.RUSAGE_SELF)
    make(range(20), 1, folder / "alone")
    return (costs[1] - costs[0] - (processor_time(resource.RUSAGE_SELF) - before)) / 20


def measure(workers: int, runs: int, steps: int, repeats: int) -> dict[str, object]:
    """Efficiency and overhead."""
    ideal, real, ideal_cpu, real_cpu = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            place = Path(folder, str(repeat))
            used = [processor_time(resource.RUSAGE_CHILDREN)]
            ideal_workers(workers, 0, steps, place / "start")  # what they compute before the clock
            used.append(processor_time(resource.RUSAGE_CHILDREN))
            ideal.append(ideal_workers(workers, runs, steps, place / "ideal"))
            used.append(processor_time(resource.RUSAGE_CHILDREN))
            real.append(grid(workers, runs, steps, place / "grid"))
            used.append(processor_time(resource.RUSAGE_CHILDREN))
            start, both, whole = (b - a for a, b in itertools.pairwise(used))
            ideal_cpu.append(both - start)
            real_cpu.append(whole)
        extra = overhead(Path(folder, "overhead"))
    efficiencies = [a / b for a, b in zip(ideal, real, strict=True)]
    return {
        "workers": workers,
        "cores": CORES,
        "runs": runs,
        "steps": steps,
        "efficiency": round(statistics.median(efficiencies), 3),
        "efficiencies": [round(value, 3) for value in efficiencies],
        "efficiency_by_processor": round(sum(ideal_cpu) / sum(real_cpu), 3),
        "goal": GOAL,
        "ideal_s": round(statistics.median(ideal), 2),
        "grid_s": round(statistics.median(real), 2),
        "overhead_s_per_run": round(extra, 4),
        "load_average": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=min(2, CORES))
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.share is not None:
        share(options.runs, options.steps, options.share)
    else:
        how = (options.workers, options.runs, options.steps, options.repeats)
        print(json.dumps(measure(*how)))


if __name__ == "__main__":
    main()
