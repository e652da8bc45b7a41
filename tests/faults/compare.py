"""Files that must be identical whether or not a run was interrupted."""

from __future__ import annotations

import hashlib
from pathlib import Path


def find_run(out: Path) -> Path:
    """The one run folder below a folder of runs."""
    (config,) = out.glob("*/*/seed-*/config.json")
    return config.parent


def contents(run: Path) -> dict[str, str]:
    """Checksums of the files that depend on configuration and seed alone, by name."""
    names = ["result.json", "learner.safetensors", "events.jsonl", "config.json"]
    models = sorted(str(path.relative_to(run)) for path in (run / "models").iterdir())
    return {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in (*names, *models)
    }


def left_over(run: Path) -> set[str]:
    """Files in the folder of a finished run that do not belong there."""
    known = {*contents(run), "timing.json", "manifest.json"}
    return {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()} - known
