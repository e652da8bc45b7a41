"""The commands that make a setting's numbers again, rebuilt from its files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure import catalog
from perdure.analysis import AnalysisSettings
from perdure.report.runs import Setting, departures
from perdure.training.build import TRAINING_KEYS
from perdure.training.plan import whole_settings

_FOLLOWS = {
    "cpu": {"precision": "fp32", "engine": "eager"},
    "cuda": {"precision": "bf16", "engine": "captured"},
}
"""What a device means for the settings that were not given."""


def command(setting: Setting) -> str | None:
    """`perdure run …` with which these seeds can be had again; None where no flags say it.

    Data is named, not where it lies: `--data DIR` may have to be added.
    """
    config = setting.config
    values = _values(config)
    if values is None:
        return None
    ranks = config.get("ranks", 1)
    program = ["perdure"]
    if ranks > 1:
        program = ["torchrun", "--nproc-per-node", str(ranks), "-m", "perdure"]
    buffer_size = [] if setting.buffer_size is None else ["--buffer", str(setting.buffer_size)]
    words = [*program, "run", setting.stream, "--method", setting.method, *buffer_size]
    # Ranks train one seed at a time.
    groups = [[seed] for seed in setting.seeds] if ranks > 1 else [setting.seeds]
    others = [*values, *_others(config)]
    return " && ".join(shlex.join([*words, "--seeds", seeds(g), *others]) for g in groups)


def analysis_command(setting: Setting) -> str | None:
    """`perdure analyze …` with which the analyses of its runs can be had; None without any."""
    analysed = [run for run in setting.runs if run.analysis is not None]
    if not analysed:
        return None
    asked = analysed[0].analysis or {}
    usual = AnalysisSettings().plain()
    words = ["perdure", "analyze"]
    words += dict.fromkeys(run.place.rpartition("/")[0] or run.place for run in analysed)
    for name, value in asked.get("settings", usual).items():
        if name in usual and value != usual[name]:
            said = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name}", said]
    return shlex.join(words)


def seeds(numbers: Sequence[int]) -> str:
    """As the command takes them.

    >>> seeds([0, 1, 2]), seeds([0, 4]), seeds([7])
    ('0:3', '0,4', '7')
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 1 and list(numbers) == list(range(first, last + 1)):
        return f"{first}:{last + 1}"
    return ",".join(map(str, numbers))


def _values(config: Mapping[str, Any]) -> list[str] | None:
    """Flags for the hyperparameters that are not what the command would take by itself."""
    departs = departures(config)
    if departs is None:
        return None  # no flag takes a setting away
    try:
        whole = whole_settings(config["method"])
    except ValueError:
        whole = frozenset(TRAINING_KEYS)
    words: list[str] = []
    assigned: list[str] = []
    for name, value in departs.items():
        # Where any number may stand a flag makes 1.0 of 1, another setting; --set does not.
        if config["method"] in catalog.METHODS and (isinstance(value, float) or name in whole):
            words += [f"--{name.replace('_', '-')}", repr(value)]
        else:
            assigned.append(f"{name}={value!r}")
    return [*words, *(word for text in assigned for word in ("--set", text))]


def _others(config: Mapping[str, Any]) -> Iterator[str]:
    """Flags for everything else that decides the numbers."""
    entry = catalog.STREAMS.get(config["stream"])
    if entry is None or config["network"] != entry.network:
        yield from ("--network", str(config["network"]))
    if entry is not None and len(entry.datasets) > 1:
        yield from ("--dataset", str(config["dataset"]))
    for key in ("update", "stream_seed", "validation", "max_steps"):
        if config.get(key) is not None:
            yield from (f"--{key.replace('_', '-')}", str(config[key]))
    device = str(config.get("device", "cpu"))
    yield from ("--device", device)
    for key, usual in _FOLLOWS.get(device, {}).items():
        if config.get(key, usual) != usual:
            yield from (f"--{key}", str(config[key]))
    if config.get("deterministic"):
        yield "--deterministic"
