"""A process that has torch loaded and forks a child for every requested command.

A child executes `perdure …` without the time to import torch, so that tests can kill commands by
the hundred. Run as a program, the server reads JSON lines: a command to start, answered with the
child's pid, or a pid to wait for, answered with its status. A pid is not reused before that.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import struct
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

STEPS = struct.Struct("qqqq")
"""First step, last step, and steps in a row started while a checkpoint was due: the maximum and the
current number."""

IMPORTS = (
    *("perdure.experiment.progress", "perdure.experiment.tune", "perdure.experiment.analyze"),
    *("perdure.results.terminal", "perdure.report", "matplotlib.figure", "quadprog"),
)
"""Modules that commands import late."""


# -- the child ------------------------------------------------------------------------------


def watch(log: Path) -> None:
    """Log every step, in memory that outlives the process, and every checkpoint."""
    from perdure.training.checkpoint import Checkpointer
    from perdure.training.engine import Eager, Recorded

    log.mkdir(parents=True, exist_ok=True)
    with (log / "steps").open("wb+") as file:
        file.write(STEPS.pack(-1, -1, 0, 0))
        file.flush()
        memory = mmap.mmap(file.fileno(), STEPS.size)
    keepers: list[Checkpointer] = []
    keep, begin = Checkpointer.on_checkpoint, Checkpointer.__init__
    steps: dict[type, Any] = {kind: kind.step for kind in (Eager, Recorded)}

    def noted_begin(self: Checkpointer, *args: Any) -> None:
        begin(self, *args)
        keepers.append(self)

    def noted_step(self: Eager, learner: Any, batch: Any) -> None:
        first, _, most, overdue = STEPS.unpack_from(memory)
        first = int(learner.steps) if first < 0 else first
        overdue = overdue + 1 if keepers[-1].checkpoint_due() else 0
        steps[type(self)](self, learner, batch)
        most = max(most, overdue)
        STEPS.pack_into(memory, 0, first, int(learner.steps), most, overdue)

    def noted_keep(self: Checkpointer, runs: Any) -> None:
        self.wait()  # for the last one, which must not count as being written any more
        first, last, most, _ = STEPS.unpack_from(memory)
        STEPS.pack_into(memory, 0, first, last, most, 0)
        with (log / "taken").open("a") as file:
            file.write(json.dumps([runs[0].position, time.monotonic()]) + "\n")
        keep(self, runs)

    patches: Any = (Checkpointer, "on_checkpoint", noted_keep), (Eager, "step", noted_step)
    patches += (Checkpointer, "__init__", noted_begin), (Recorded, "step", noted_step)
    for kind, name, function in patches:
        setattr(kind, name, function)


def execute_command(order: dict[str, Any]) -> None:
    """Execute the command and exit."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{order['log']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    status: object = 70
    try:
        os.chdir(order["folder"])
        sys.path.insert(0, order["folder"])
        if order["argv"][0] == "run":
            watch(Path(order["log"]))
        from perdure.cli import main

        status = main(order["argv"])
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 70)


def serve() -> None:
    """Answer the lines on stdin."""
    import torch

    from perdure.cli import parse
    from perdure.experiment.build import build_run, read_dataset
    from perdure.experiment.resolve import resolve

    torch.set_num_threads(1)
    for module in IMPORTS:
        importlib.import_module(module)
    parse(["run"])
    config = resolve("s-mnist", "gem", dataset="mnist5k")
    build_run(config, read_dataset(config), 0)  # triggers torch's lazy imports
    warnings.simplefilter("error")  # not before: old versions of other packages warn on import
    warnings.filterwarnings("ignore", module="matplotlib|pyparsing")  # old ones, while drawing
    for line in sys.stdin:
        order = json.loads(line)
        if isinstance(order, int):
            print(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            execute_command(order)
        print(pid, flush=True)


# -- the client -----------------------------------------------------------------------------


class Seen(NamedTuple):
    """The log of a run that has ended."""

    first: int
    """The step at which it started; -1 if it executed none."""
    last: int
    overdue: int
    """Maximum number of steps in a row that started while a checkpoint was due."""
    taken: list[tuple[list[int], float]]
    """Position in the stream and time of every checkpoint."""


class Life:
    """A child process."""

    def __init__(self, server: Server, pid: int, log: Path) -> None:
        self.server = server
        self.log = log
        self.pid = pid
        self.status: int | None = None

    def wait(self) -> int:
        """Its exit status, or minus the signal that ended it."""
        if self.status is None:
            self.status = self.server.ask(self.pid)
        return self.status

    @property
    def errors(self) -> str:
        return Path(f"{self.log}.err").read_text()

    @property
    def output(self) -> str:
        return Path(f"{self.log}.out").read_text()

    def seen(self) -> Seen:
        steps = b""
        with contextlib.suppress(FileNotFoundError):
            steps = (self.log / "steps").read_bytes()
        if len(steps) < STEPS.size:  # it has not executed a step
            steps = STEPS.pack(-1, -1, 0, 0)
        first, last, overdue, _ = STEPS.unpack(steps)
        taken = self.log / "taken"
        lines = taken.read_text().splitlines() if taken.exists() else []
        return Seen(first, last, overdue, [tuple(json.loads(line)) for line in lines])


class Server:
    """Starts commands."""

    def __init__(self) -> None:
        self.lives = 0
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, folder: Path, *argv: str) -> Life:
        """Start `perdure ARGV` in a folder."""
        self.lives += 1
        log = folder / "logs" / str(self.lives)
        log.parent.mkdir(exist_ok=True)
        order = {"argv": argv, "folder": str(folder), "log": str(log)}
        return Life(self, self.ask(order), log)

    def ask(self, order: object) -> int:
        """Send a line and read the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def serving() -> Iterator[Server]:
    """A server that stops at the end of the block."""
    server = Server()
    try:
        yield server
    finally:
        server.process.communicate(timeout=60)


if __name__ == "__main__":
    serve()
