"""What must be the same bytes after an interrupted run as after one that was left alone."""

from __future__ import annotations

import hashlib
from pathlib import Path


def find_run(out: Path) -> Path:
    """The one run folder below a folder of runs."""
    (config,) = out.glob("*/*/seed-*/config.json")
    return config.parent


def contents(run: Path) -> dict[str, str]:
    """Checksums of the files of a finished run that configuration and seed decide, by name."""
    names = ["result.json", "learner.safetensors", "events.jsonl", "config.json"]
    models = sorted(str(path.relative_to(run)) for path in (run / "models").iterdir())
    return {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in (*names, *models)
    }


def left_over(run: Path) -> set[str]:
    """Files in a finished run's folder that have no place there."""
    known = {*contents(run), "timing.json", "manifest.json"}
    return {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()} - known
