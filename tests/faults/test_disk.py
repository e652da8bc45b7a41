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
COMMAND = [sys.executable, "-m", "perdure", *RUN.split(), "--checkpoint-every", "0.05"]


def in_namespace(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount what nobody else sees, and that ends with it."""
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-ec", dedent(script), "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return in_namespace("mount -t tmpfs tmpfs /mnt").returncode == 0


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
    limited = """
        disk=$1; results=$2; shift 2
        if (mount -t tmpfs -o size=1200k tmpfs "$disk") 2>/dev/null; then
            "$@" --out "$disk" && exit 9 || echo $? >"$results/status"
            mount -o remount,size=50m "$disk"
        else
            (ulimit -f 300; exec "$@" --out "$disk") && exit 9 || echo $? >"$results/status"
        fi
        "$@" --out "$disk"
        cp -r "$disk" "$results/runs"
    """
    (tmp_path / "disk").mkdir()
    script = (limited, str(tmp_path / "disk"), str(tmp_path), *COMMAND)
    if MOUNTS:
        ended = in_namespace(*script)
    else:
        ended = subprocess.run(
            ["sh", "-ec", dedent(limited), "sh", *script[1:]],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "status").read_text() == "1\n"
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
        disk=$1; shift
        mount -t tmpfs -o size=50m tmpfs "$disk"
        "$@" --out "$disk" --epochs 50 --max-steps 100000 & run=$!
        until ls "$disk"/*/*/seed-0/checkpoints/*.json >/dev/null 2>&1; do sleep 0.05; done
        mount --bind "$disk" "$disk"  # what is open already stays writable, as on a failing disk
        until mount -o remount,bind,ro "$disk" 2>/dev/null; do sleep 0.01; done
        wait $run && exit 9 || echo "status $?"
        "$@" --out "$disk" && exit 9 || echo "status $?"
        """,
        *(str(tmp_path), *COMMAND),
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
