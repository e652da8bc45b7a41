"""A grid on a real Ray cluster of two nodes, one of which dies; and addresses without a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cluster_utils

from .conftest import Call, Write
from .test_reproduce import files, lines, train, wait_for

Cluster: Any = cluster_utils.Cluster  # its types are half there
# Ray itself, not what we make of it.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each; a dead one is missed after two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_worker_niceness", "0")  # not 15: on a busy machine they would stand still
        watchful = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
        made = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": watchful})
        try:
            made.add_node(**NODE)
            made.wait_for_nodes()
            yield made
        finally:
            made.shutdown()


def start(address: str, grid: list[str]) -> subprocess.Popen[str]:
    words = ["reproduce", *grid, "--out", "out", "--backend", "ray", "--address", address]
    return subprocess.Popen(
        [sys.executable, "-m", "perdure", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FRAIL = """
    import asyncio
    from pathlib import Path
    from perdure import SGD
    from perdure.experiment import ray

    class Late(ray._Reports):
        '''Failures arrive late, as on a busy machine.'''
        async def add(self, number, kind, content):
            await asyncio.sleep(2 if kind == "failed" else 0)
            super().add(number, kind, content)

    ray._Reports = Late

    class Frail(SGD):
        '''Seed 1 fails twice, seed 2 always.'''
        def __init__(self, network, *, seed=0, **common):
            super().__init__(network, seed=seed, **common)
            self.own_seed = seed

        def step(self, inputs, labels):
            super().step(inputs, labels)
            if int(self.steps) != 5 or self.own_seed == 0:
                return
            here = Path(__file__).parent
            attempt = len(list(here.glob(f"attempt-{self.own_seed}-*"))) + 1
            (here / f"attempt-{self.own_seed}-{attempt}").touch()
            if self.own_seed == 2 or attempt < 3:
                raise KeyError(f"slot {attempt}")
"""


@pytest.mark.slow
def test_failed_runs_are_retried_twice_and_the_others_continue(
    cluster: Any, module: Write, here: Path
) -> None:
    module("frail", FRAIL)
    words = "table2 --methods frail:Frail --dataset mnist5k --max-steps 8 --seeds 0:3"
    process = start(cluster.address, words.split())
    try:
        printed, errors = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, errors
    *reasons, last = [line for line in errors.splitlines() if "seed 2" in line]
    assert last.startswith("perdure: 1 of 3 runs failed")
    assert last.endswith("frail:Frail on mnist-360, seed 2")
    assert reasons == [
        "seed 2 failed; trying again: KeyError: 'slot 1'",
        "seed 2 failed; trying again: KeyError: 'slot 2'",
        "perdure: seed 2 failed: KeyError: 'slot 3'",
    ]
    assert errors.count("Traceback") == errors.count("frail.py") == 2  # of each seed one
    assert "2 of 3" in printed
    assert [line["seeds"] for line in lines(here / "out/table2.jsonl")] == [[0, 1]]
    assert sorted(path.name for path in here.glob("attempt-*")) == [
        f"attempt-{seed}-{attempt}" for seed in (1, 2) for attempt in (1, 2, 3)
    ]


def kill(node: Any) -> None:
    """kill -9 of a node's raylet and of all that it started."""
    raylet = node.all_processes["raylet"][0].process.pid
    for pid in (raylet, *children(raylet)):  # the raylet first: it would start new ones
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


SLOW = """
    import time
    from perdure import ER

    class Slow(ER):
        def step(self, inputs, labels):
            super().step(inputs, labels)
            time.sleep(0.01)
"""


def holder(folder: Path) -> int | None:
    """The process that is at work on a run."""
    try:
        return int((folder / ".lock").read_text())
    except (OSError, ValueError):
        return None


@pytest.mark.slow
def test_runs_of_a_dead_node_resume_on_the_other(cluster: Any, module: Write, here: Path) -> None:
    module("slow", SLOW)
    words = "table2 --methods slow:Slow --buffer-sizes 200 --dataset mnist5k --max-steps 300"
    words += " --seeds 0:3 --checkpoint-every 0.3"
    process = start(cluster.address, words.split())
    try:
        other = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
        raylet = other.all_processes["raylet"][0].process.pid

        def half_done_there() -> list[Path]:
            """The runs that the other node is at, and that have a checkpoint."""
            return [
                folder
                for folder in here.glob("out/mnist-360/*/seed-*")
                if holder(folder) in children(raylet) and list(folder.glob("checkpoints/*.json"))
            ]

        hit = wait_for(half_done_there, "the other node has nothing to do")
        kill(other)
        _, errors = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "[3 of 3 done, 0 running, 0 failed, 0:00 left]" in errors
    assert len(hit) == 1
    (step,) = json.loads((hit[0] / "timing.json").read_text())["resumed"]
    assert 0 < step < 300
    train(here / "serial", [0, 1, 2], "mnist-360", "slow:Slow", 200, max_steps=300)
    assert files(here / "out") == files(here / "serial")


SMALL = "table2 --methods sgd --dataset mnist5k --max-steps 5 --seeds 0"
PREFACE = b"PRI * HTTP/2.0"
"""What Ray says first."""


class Server(socketserver.ThreadingMixIn, HTTPServer):
    """Keeps what it hears."""

    daemon_threads = True

    def __init__(self, handler: type[socketserver.BaseRequestHandler]) -> None:
        super().__init__(("", 0), handler)  # Ray takes 127.0.0.1 for the machine's own address
        self.heard: list[bytes] = []


class Silent(socketserver.BaseRequestHandler):
    """Never answers."""

    def handle(self) -> None:
        assert isinstance(self.server, Server)
        while heard := self.request.recv(4096):
            self.server.heard.append(heard)


class Web(BaseHTTPRequestHandler):
    """Answers with an error, as a web server does to what it does not know."""

    def log_message(self, format: str, *arguments: Any) -> None:
        assert isinstance(self.server, Server)
        self.server.heard.append(self.requestline.encode())


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[Server]:
    with Server(handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@pytest.mark.slow
def test_a_port_without_a_head_is_refused_in_seconds(here: Path) -> None:
    with serving(Silent) as silent, serving(Web) as web:
        began = time.monotonic()
        addresses = [f"127.0.0.1:{server.server_port}" for server in (silent, web)]
        processes = [start(address, SMALL.split()) for address in addresses]
        try:
            said = [process.communicate(timeout=60)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        elapsed = time.monotonic() - began
    assert [process.returncode for process in processes] == [2, 2], said
    for address, sentence in zip(addresses, said, strict=True):
        assert f"no Ray cluster at {address}" in sentence
        assert sentence.count("\n") == 1
    assert elapsed < 30  # 15, and the time to import torch and Ray on a busy machine
    assert any(PREFACE in heard for heard in silent.heard)
    assert any(PREFACE in heard for heard in web.heard)
    assert list(here.glob("out/*")) == []


def test_another_port_of_the_cluster_is_refused(cluster: Any, call: Call, here: Path) -> None:
    address = f"127.0.0.1:{cluster.head_node.node_manager_port}"
    before = children(os.getpid())
    how = ["--out", "out", "--backend", "ray", "--address", address]
    ended = call("reproduce", *SMALL.split(), *how)
    assert ended.status == 2
    assert f"no Ray cluster at {address}" in ended.err
    assert ended.err.count("\n") == 1
    assert not ray.is_initialized()
    assert children(os.getpid()) == before
    assert list(here.glob("out/*")) == []


def test_a_head_that_asks_for_a_token_is_not_taken_for_another_server(
    call: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    ray_start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    small = ["--num-cpus", "0", "--object-store-memory", str(80 * 2**20)]
    small += ["--include-dashboard", "false"]
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    # Not pytest's folder: the paths of Ray's sockets would be too long.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        head = subprocess.Popen(
            [*ray_start, *small, "--port", str(port), "--temp-dir", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables, "RAY_USAGE_STATS_ENABLED": "0"},
            start_new_session=True,
        )
        try:
            wait_for(lambda: is_open(port), "the head does not start")
            address = f"127.0.0.1:{port}"
            how = ["--out", "out", "--backend", "ray", "--address", address]
            ended = call("reproduce", *SMALL.split(), *how)
        finally:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
    assert ended.status == 2
    assert address in ended.err
    assert "RAY_AUTH_MODE=token" in ended.err
    assert ended.err.count("\n") == 1
    assert list(here.glob("out/*")) == []


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
