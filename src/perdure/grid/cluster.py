"""The jobs of a grid on a Ray cluster: Ray does placement, retries and liveness."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.grid.engines import RETRIES
from perdure.lock import LockedError
from perdure.training.job import Failure, Job, execute, explain
from perdure.training.loop import Interrupted, Progress
from perdure.training.seeds import usable
from perdure.training.signals import Stop, graceful_stop
from perdure.training.workers import Event, Tell

LISTEN_EVERY = 0.5
"""Seconds between looks at what the tasks have said."""
CONNECT_S = 10
ANSWER_S = 15
"""How long the head may take to answer, with the time to import Ray once more."""
PROBE_S = 120
OBJECT_STORE = 100 * 2**20
"""Bytes for a cluster of our own: tasks exchange a few words."""
PATIENCE_S = 120
"""How long a task waits for the process that has its runs: one of a node that is given up."""
Report = tuple[int, Literal["begun", "progress", "stumbled"], Any]
"""What a task says of its job."""
_RAISED = "ray.exceptions."
"""Begins the last line of a traceback that ends in one of Ray's own errors."""
_PASSED_ON = ("PERDURE_DATA", "PERDURE_CACHE", "CUBLAS_WORKSPACE_CONFIG")


class OnRay(AbstractContextManager["OnRay"]):
    """A cluster to run jobs on: the one at this address, else a new one of this machine.

    Every job is a task that asks for `threads` cores, and a GPU if it trains on one.
    """

    def __init__(self, address: str | None, device: str, threads: int = 1) -> None:
        self.threads = threads
        _connect(address or os.environ.get("RAY_ADDRESS"))
        try:
            self.nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            gpus = sum(node["Resources"].get("GPU", 0) for node in self.nodes)
            if device == "cuda" and not gpus:
                raise ValueError("--device cuda: the cluster has no GPU")
            self.device = "cuda" if gpus and device != "cpu" else "cpu"
            self.share = {"num_cpus": threads, "num_gpus": 1 if self.device == "cuda" else 0}
            self.width = sum(map(self._room, self.nodes))
            if not self.width:
                raise ValueError(f"no node of the cluster has {threads} cores for a run")
        except BaseException:
            ray.shutdown()
            raise

    def _room(self, node: dict[str, Any]) -> int:
        """How many jobs a node takes at once."""
        there = node["Resources"]
        return int(min(there.get(name, 0) // n for name, n in _resources(self.share).items() if n))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ray.shutdown()

    def check(self, out: Path) -> None:
        """ValueError if a node cannot import us, or does not see the folder for the runs."""
        token = out.absolute() / f".probe-{uuid.uuid4().hex}"
        token.touch()
        look = _remote(_sees, num_cpus=0, max_retries=0)
        try:
            for node in self.nodes:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                name = node["NodeManagerHostname"]
                try:
                    answer = look.options(scheduling_strategy=there).remote(str(token))
                    sees = ray.get(answer, timeout=PROBE_S)
                except GetTimeoutError:
                    raise ValueError(f"node {name} of the cluster does not answer") from None
                except RayError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise ValueError(f"node {name} cannot run perdure: {reason}") from None
                if not sees:
                    raise ValueError(
                        f"node {name} of the cluster does not see {out}; give an --out on storage "
                        "that all nodes share"
                    )
        finally:
            token.unlink()

    def run(self, jobs: Sequence[Job], tell: Tell) -> None:
        """Do them all, telling what happens to each."""
        with graceful_stop() as stop:
            self._run(jobs, tell, stop)
        if stop():
            raise Interrupted(stop())

    def _run(self, jobs: Sequence[Job], tell: Tell, stop: Stop) -> None:
        # With us, so that it lives as long as we do, whichever other node dies.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        reports: Any = _remote(_Reports, num_cpus=0, scheduling_strategy=here).remote()
        task = _remote(_do, max_retries=RETRIES, retry_exceptions=True, **self.share)
        pending = {task.remote(n, job, self.threads, reports): n for n, job in enumerate(jobs)}
        attempts: Counter[int] = Counter()
        failures: dict[int, Failure] = {}
        while pending and not stop():
            ended, _ = ray.wait(list(pending), num_returns=len(pending), timeout=LISTEN_EVERY)
            heard = ray.get(reports.drain.remote())
            for reference in ended:  # all of one job before the next takes its place
                number = pending.pop(reference)
                mine = [report for report in heard if report[0] == number]
                _pass_on(mine, attempts, failures, tell)
                tell(_outcome(number, jobs[number], failures.get(number), reference))
            running = set(pending.values())
            rest = [report for report in heard if report[0] in running]
            _pass_on(rest, attempts, failures, tell)


def _remote(what: Any, **options: Any) -> Any:
    """Ray's types know neither the options' names nor what they make of a class."""
    return ray.remote(**options)(what)


def _pass_on(
    heard: Sequence[Report], attempts: Counter[int], failures: dict[int, Failure], tell: Tell
) -> None:
    for number, kind, content in heard:
        if kind == "begun":
            attempts[number] += 1
            tell(Event(number, "begun"))
        elif kind == "progress":
            tell(Event(number, "progress", progress=content))
        else:
            failures[number] = content
            if attempts[number] <= RETRIES:  # else Ray hands it over
                tell(Event(number, "again", reason=content.reason, trace=content.trace))


def _connect(address: str | None) -> None:
    """Join a cluster, or start one. ValueError if the one that was named cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    how: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if variables:
        how["runtime_env"] = {"env_vars": variables}
    if address is None:
        how |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    else:
        _check_reachable(address)
    try:
        ray.init(address=address or "local", **how)
    except (OSError, RuntimeError, RayError, ValueError) as error:
        raise _refused(address, error) from None


def _refused(address: str | None, error: Exception) -> ValueError:
    """One line, which names the token where that may be what is missing."""
    hint = "; if it asks for a token, set RAY_AUTH_MODE=token"
    settled = address is None or "RAY_AUTH_MODE" in os.environ
    return ValueError(
        f"Ray at {address or 'this machine'}: {' '.join(str(error).split())}"
        f"{hint if isinstance(error, ConnectionError) and not settled else ''}"
    )


def _check_reachable(address: str) -> None:
    """In seconds, where Ray would try for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or "/" in host:
        raise ValueError(f"--address is {address!r}; expected HOST:PORT of the cluster's head")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`"
        ) from None
    _check_head(address)


def _check_head(address: str) -> None:
    """ValueError if what listens there is no head, or does not let us in.

    `ray status` asks, as a process that can be killed: connecting within Ray cannot be given up.
    What else it finds amiss, such as another version, `ray.init` finds at once and says better.
    """
    # What the command `ray` does, which need not be on the path; nothing of the current folder.
    ask = [sys.executable, "-P", "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(
            ask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        error, reason = "RpcError", f"waited {ANSWER_S} seconds"
    else:
        raised = [line for line in asked.stderr.splitlines() if line.startswith(_RAISED)]
        if not (asked.returncode and raised):
            return
        error, _, reason = raised[-1].removeprefix(_RAISED).partition(": ")
    if error != "RpcError":
        what, _, _advice = reason.partition(". ")
        raise _refused(address, ConnectionError(what))
    raise ValueError(
        f"no Ray cluster answers at {address}, though the port is open ({reason.rstrip(': ')}); "
        "the head's port is 6379, or what `ray start --head --port` was given"
    )


def _resources(share: dict[str, int]) -> dict[str, int]:
    return {"CPU": share["num_cpus"], "GPU": share["num_gpus"]}


def _outcome(number: int, job: Job, said: Failure | None, reference: Any) -> Event:
    """What became of a task, of which `said` is the last failure that was heard."""
    try:
        ray.get(reference)
    except RayTaskError as error:
        # The error is that of the last attempt, of which we may not have heard yet; but it comes
        # without the traceback that tells a failure from another.
        reason = explain(error.cause, job).reason
        trace = f"{error}\n" if said is None else said.trace
        return Event(number, "failed", reason=reason, trace=trace)
    except RayError as error:  # its worker or its node died, more often than Ray tries again
        return Event(number, "failed", reason=str(error).strip().splitlines()[0])
    return Event(number, "done")


# -- what runs on the nodes -----------------------------------------------------------------


def _sees(path: str) -> bool:
    return os.path.exists(path)


def _do(number: int, job: Job, threads: int, reports: Any) -> None:
    """A task: the runs of one job. What it raises makes Ray try again."""
    torch.set_num_threads(threads)
    reports.note.remote(number, "begun", None)
    try:
        _patiently(job, lambda progress: reports.note.remote(number, "progress", progress))
    except Exception as error:
        traceback.print_exc()  # into the worker's log
        reports.note.remote(number, "stumbled", explain(error, job))
        raise


def _patiently(job: Job, tell: Callable[[Progress], None]) -> None:
    """Execute a job once nobody else is at it, unless it has been done by then.

    A node that is given up may still be at its runs for a while, until its workers notice.
    """
    deadline = time.monotonic() + PATIENCE_S
    folders = [settings.folder(Path(job.out), seed) for settings, seed in job.members]
    while not all(map(usable, folders)):
        try:
            execute(job, tell)
            break
        except LockedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1)


class _Reports:
    """What tasks say on their way, until the driver asks."""

    def __init__(self) -> None:
        self.heard: list[Report] = []

    def note(self, *report: *Report) -> None:
        self.heard.append(report)

    def drain(self) -> list[Report]:
        heard, self.heard = self.heard, []
        return heard
