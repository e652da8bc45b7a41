"""Full and read-only disks, and folders that are removed during a run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from perdure.cli import main

from . import small
from .compare import contents, find_run

RUN = "run s-mnist --method sgd --dataset mnist5k --epochs 1 --max-steps 200 --quiet --workers 1"
NAMESPACE = ["unshare", "--map-root-user", "--mount"]
"""A process started with this may mount what nobody else sees, and what ends with it."""

COMMANDS = f"""
import os, resource, shutil, subprocess, sys, time, traceback
from pathlib import Path
from perdure.cli import main

disk = sys.argv[1]

def start(*more, file_size=None):
    '''A process that executes the command, without the time to import torch.'''
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            if file_size:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
            status = main([*{RUN.split()!r}, "--checkpoint-every", "0.05", "--out", disk, *more])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid

def end(pid):
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

def mount(*words):
    return subprocess.run(["mount", *words], stderr=subprocess.DEVNULL).returncode == 0
"""


def in_namespace(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script after `COMMANDS`, in a namespace if that is possible."""
    prefix = NAMESPACE if MOUNTS else []
    return subprocess.run(
        [*prefix, sys.executable, "-c", COMMANDS + dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = ["mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run([*NAMESPACE, *mount], capture_output=True).returncode == 0


MOUNTS = can_mount()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole")
    what = small.settings("sgd", max_steps=200)
    return contents(small.make(what, out).path)


def test_a_run_resumes_after_a_full_disk(tmp_path: Path, expected: dict[str, str]) -> None:
    """A file system of 1.2 MB has room for the checkpoints, but not for the results.

    Without permission to mount, the size of files is limited instead.
    """
    (tmp_path / "disk").mkdir()
    ended = in_namespace(
        """
        if mount("-t", "tmpfs", "-o", "size=1200k", "tmpfs", disk):
            end(start())
            assert mount("-o", "remount,size=50m", disk)
        else:
            end(start(file_size=153_600))
        end(start())
        shutil.copytree(disk, sys.argv[2])
        """,
        *(str(tmp_path / "disk"), str(tmp_path / "runs")),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["status", "1", "status", "0"]
    assert "Traceback" not in ended.stderr
    reason = "No space left on device" if MOUNTS else "File too large"
    failures = [line for line in ended.stderr.splitlines() if "seed 0 failed: " in line]
    assert len(failures) == 1
    assert f": {reason}; " in failures[0]
    assert "the same command" in failures[0]
    assert contents(find_run(tmp_path / "runs")) == expected


def test_a_disk_that_becomes_read_only_is_one_sentence(tmp_path: Path) -> None:
    if not MOUNTS:  # then only a folder that refuses everybody, root too, can stand for it
        assert main([*RUN.split(), "--out", "/proc/runs"]) == 2
        return
    ended = in_namespace(
        """
        assert mount("-t", "tmpfs", "-o", "size=50m", "tmpfs", disk)
        run = start("--epochs", "50", "--max-steps", "100000")
        while not [*Path(disk).glob("*/*/seed-0/checkpoints/*.json")]:
            time.sleep(0.05)
        assert mount("--bind", disk, disk)  # what is open stays writable, as on a failing disk
        while not mount("-o", "remount,bind,ro", disk):
            time.sleep(0.01)
        end(run)
        end(start())
        """,
        str(tmp_path),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["status", "1", "status", "2"]
    assert "Traceback" not in ended.stderr
    lines = ended.stderr.splitlines()
    assert any("seed 0 failed: " in line and "Read-only file system" in line for line in lines)
    assert lines[-1] == f"perdure: --out {tmp_path} cannot be written: Read-only file system"


VANISHING = """
    import shutil
    from pathlib import Path
    from perdure import SGD

    class Vanishing(SGD):
        def __init__(self, network, *, seed=0, **common):
            super().__init__(network, seed=seed, **common)
            self.own_seed = seed

        def step(self, inputs, labels):
            super().step(inputs, labels)
            if self.own_seed == 1 and int(self.steps) == 50:
                (folder,) = Path("runs").glob("*/*/seed-1")
                shutil.rmtree(folder)
"""


def test_removing_the_folder_of_a_run_fails_that_seed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "vanishing.py").write_text(dedent(VANISHING))
    flags = "--method vanishing:Vanishing --dataset mnist5k --max-steps 200 --seeds 0:3"
    status = main(["run", *flags.split(), "--workers", "1", "--quiet"])
    assert status == 1
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "failed" in line)
    assert line.startswith("perdure: seed 1 failed: runs/s-mnist/vanishing.Vanishing-")
    assert "no longer exists" in line
    finished = sorted(path.parent.name for path in tmp_path.glob("runs/*/*/*/result.json"))
    assert finished == ["seed-0", "seed-2"]
