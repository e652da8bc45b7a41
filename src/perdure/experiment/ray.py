"""Running jobs on a Ray cluster, which places them, retries them and notices dead nodes."""

from __future__ import annotations

import contextlib
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
from typing import Any, Literal

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.experiment.pool import Event, Failure, OnEvent
from perdure.experiment.run import Job, is_usable
from perdure.lock import LockedError
from perdure.processes import leave_out_compiler
from perdure.training.loop import Interrupted, Progress
from perdure.training.signals import Stop, graceful_stop

POLL_SECONDS = 0.5
"""Time between two looks at the reports of the tasks."""
CONNECT_SECONDS = 10
STATUS_SECONDS = 15
"""How long the head may take to answer, including the time to import Ray."""
PROBE_SECONDS = 120
LOCK_SECONDS = 120
"""How long a task waits for runs locked by a process on a node that Ray has given up."""
OBJECT_STORE_BYTES = 100 * 2**20
"""Object store of a new cluster; tasks exchange small messages only."""
Report = tuple[int, Literal["started", "progress", "failed"], Any]
"""What a task reports: the number of its job, what happened, and the progress or the failure."""
_ERROR_PREFIX = "ray.exceptions."
"""Starts the last line of the traceback of one of Ray's own errors."""
_FORWARDED = ("PERDURE_DATA", "PERDURE_CACHE", "CUBLAS_WORKSPACE_CONFIG")


class RayCluster(AbstractContextManager["RayCluster"]):
    """A connection to a cluster, where every job is a task.

    Args:
        address: Host and port of the head, or "auto"; by default $RAY_ADDRESS, or else a new
            cluster on this machine.
        device: "auto", "cpu" or "cuda"; with "cuda" each job requests a GPU.
        threads: Cores that each job requests.
        retries: How often Ray attempts a failed job again.

    Raises:
        ValueError: If the cluster cannot be reached or has no room for a job.
    """

    def __init__(
        self, address: str | None, device: str, threads: int = 1, retries: int = 2
    ) -> None:
        self.threads = threads
        self.retries = retries
        _connect(address or os.environ.get("RAY_ADDRESS"))
        try:
            self.nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            gpus = sum(node["Resources"].get("GPU", 0) for node in self.nodes)
            if device == "cuda" and not gpus:
                raise ValueError("--device cuda: the cluster has no GPU")
            self.device = "cuda" if gpus and device != "cpu" else "cpu"
            self.needs = {"CPU": threads} | ({"GPU": 1} if self.device == "cuda" else {})
            self.width = sum(
                int(min(node["Resources"].get(name, 0) // n for name, n in self.needs.items()))
                for node in self.nodes
            )
            if not self.width:
                raise ValueError(f"no node of the cluster has {threads} cores for a run")
        except BaseException:
            ray.shutdown()
            raise

    def __exit__(self, *exception: object) -> None:
        ray.shutdown()

    def check(self, out: Path) -> None:
        """Raise ValueError if a node cannot import perdure or does not see the output folder."""
        token = out.absolute() / f".probe-{uuid.uuid4().hex}"
        token.touch()
        probe = _remote(_exists, num_cpus=0, max_retries=0)
        try:
            for node in self.nodes:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                name = node["NodeManagerHostname"]
                try:
                    answer = probe.options(scheduling_strategy=there).remote(str(token))
                    visible = ray.get(answer, timeout=PROBE_SECONDS)
                except GetTimeoutError:
                    raise ValueError(f"node {name} of the cluster does not respond") from None
                except RayError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise ValueError(f"node {name} cannot run perdure: {reason}") from None
                if not visible:
                    raise ValueError(
                        f"node {name} of the cluster does not see {out}; choose an --out on "
                        "storage that all nodes share"
                    )
        finally:
            token.unlink()

    def run(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        """Execute all jobs. Raises Interrupted if SIGINT or SIGTERM arrived."""
        with graceful_stop() as stop:
            self._run(jobs, on_event, stop)
        if stop():
            raise Interrupted(stop())

    def _run(self, jobs: Sequence[Job], on_event: OnEvent, stop: Stop) -> None:
        # On this node, so that the reports survive the loss of any other.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        reports: Any = _remote(_Reports, num_cpus=0, scheduling_strategy=here).remote()
        task = _remote(
            _execute,
            max_retries=self.retries,
            retry_exceptions=True,
            num_cpus=self.needs["CPU"],
            num_gpus=self.needs.get("GPU", 0),
        )
        pending = {task.remote(n, job, self.threads, reports): n for n, job in enumerate(jobs)}
        attempts: Counter[int] = Counter()
        failures: dict[int, Failure] = {}

        def forward(received: Sequence[Report]) -> None:
            for number, kind, content in received:
                if kind == "started":
                    attempts[number] += 1
                    on_event(Event(number, "started"))
                elif kind == "progress":
                    on_event(Event(number, "progress", content))
                else:
                    failures[number] = content
                    if attempts[number] <= self.retries:  # the last failure comes from Ray
                        on_event(Event(number, "retry", failure=content))

        while pending and not stop():
            ended, _ = ray.wait(list(pending), num_returns=len(pending), timeout=POLL_SECONDS)
            received = ray.get(reports.drain.remote())
            for reference in ended:  # everything about one job before the next starts
                number = pending.pop(reference)
                forward([report for report in received if report[0] == number])
                on_event(_outcome(number, jobs[number], failures.get(number), reference))
            running = set(pending.values())
            forward([report for report in received if report[0] in running])


def _remote(what: Any, **options: Any) -> Any:
    """ray.remote, whose types do not know the names of the options."""
    return ray.remote(**options)(what)


def _connect(address: str | None) -> None:
    """Connect to a cluster, or start one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    variables = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
    if variables:
        options["runtime_env"] = {"env_vars": variables}
    if address is None:
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    else:
        _check_reachable(address)
    try:
        ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, RayError, ValueError) as error:
        raise _refused(address, error) from None


def _refused(address: str | None, error: Exception) -> ValueError:
    hint = ""
    if isinstance(error, ConnectionError) and address and "RAY_AUTH_MODE" not in os.environ:
        hint = "; if the cluster requires a token, set RAY_AUTH_MODE=token"
    reason = " ".join(str(error).split())
    return ValueError(f"cannot use Ray at {address or 'this machine'}: {reason}{hint}")


def _check_reachable(address: str) -> None:
    """Raise ValueError within seconds, where Ray would retry for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or "/" in host:
        raise ValueError(f"--address is {address!r}; expected HOST:PORT of the cluster's head")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no Ray cluster at {address} ({error}); start one with `ray start --head`"
        ) from None
    _check_head(address)


def _check_head(address: str) -> None:
    """Raise ValueError if the port is not that of a head, or the head refuses us.

    Runs `ray status` in a process that can be killed; connecting within Ray cannot be cancelled.
    Other problems, such as another version, are left to `ray.init`, whose messages are better.
    """
    # What the command `ray` does, without relying on the path or the current folder.
    ask = [sys.executable, "-P", "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(
            ask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STATUS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        error, reason = "RpcError", f"waited {STATUS_SECONDS} seconds"
    else:
        raised = [line for line in asked.stderr.splitlines() if line.startswith(_ERROR_PREFIX)]
        if not (asked.returncode and raised):
            return
        error, _, reason = raised[-1].removeprefix(_ERROR_PREFIX).partition(": ")
    if error != "RpcError":
        raise _refused(address, ConnectionError(reason.partition(". ")[0]))
    raise ValueError(
        f"no Ray cluster at {address}, although the port is open ({reason.rstrip(': ')}); the "
        "port of the head is 6379, or the one given to `ray start --head --port`"
    )


def _outcome(number: int, job: Job, reported: Failure | None, reference: Any) -> Event:
    """How a task ended; `reported` is the last failure that it reported."""
    try:
        ray.get(reference)
    except RayTaskError as error:
        # The last attempt may have been unable to report. The error itself has no traceback.
        reason = job.explain(error.cause).reason
        trace = f"{error}\n" if reported is None else reported.trace
        return Event(number, "failed", failure=Failure(reason, trace))
    except RayError as error:  # its worker or node died too often
        return Event(number, "failed", failure=Failure(str(error).strip().splitlines()[0]))
    return Event(number, "done")


# -- executed on the nodes ------------------------------------------------------------------


def _exists(path: str) -> bool:
    """Task: whether the node sees a file. Importing this module checks the installation too."""
    return os.path.exists(path)


def _execute(number: int, job: Job, threads: int, reports: Any) -> None:
    """Task: execute a job. Ray tries again if it raises."""
    torch.set_num_threads(threads)
    leave_out_compiler()
    reports.add.remote(number, "started", None)
    try:
        _execute_when_unlocked(job, lambda p: reports.add.remote(number, "progress", p))
    except Exception as error:
        traceback.print_exc()  # goes to the worker's log
        # Reports from different processes arrive in any order: wait before the next attempt starts.
        with contextlib.suppress(RayError):
            ray.get(reports.add.remote(number, "failed", job.explain(error)))
        raise


def _execute_when_unlocked(job: Job, report: Callable[[Progress], None]) -> None:
    """Execute a job as soon as no other process is executing it, unless it is complete by then.

    Processes of a node that Ray has given up may continue for a while.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while not all(is_usable(run.folder(job.out)) for run in job.runs):
        try:
            job.execute(report)
            return
        except LockedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1)


class _Reports:
    """Actor that collects the reports of tasks."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def add(self, *report: *Report) -> None:
        self.reports.append(report)

    def drain(self) -> list[Report]:
        reports, self.reports = self.reports, []
        return reports
