"""The paper's claims as checks: from finished runs and their analyses to whether each holds.

A pure function over what `config.json`, `result.json` and `analysis.json` hold. A claim that the
runs cannot speak to is neither held nor refuted: it says what would be needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from perdure.evaluation import mean_std

Run = Mapping[str, Any]
"""One run: {"config": …, "result": …, "analysis": … or None}, as its folder holds them."""
Numbers = dict[str, "Spread"]
RIVALS = ("er", "derpp")
"""What the paper compares CLS-ER's solutions with in Section 6."""


@dataclass(frozen=True)
class Spread:
    """A figure over the seeds of a setting."""

    mean: float
    std: float | None
    """Sample standard deviation; None for a single seed."""
    seeds: int


@dataclass(frozen=True)
class Evidence:
    """What one setting (stream, data, buffer) says about a claim."""

    setting: str
    holds: bool
    numbers: Numbers
    """The figures that decide, by method or predictor."""
    clear: bool | None = None
    """Whether the difference is more than two standard errors; None where that cannot be said."""
    also: dict[str, Numbers] = field(default_factory=dict)
    """Further figures, by what they measure."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper's, and what the runs say about it."""

    name: str
    text: str
    measure: str
    """What the deciding figures are, with their unit."""
    needs: str
    """Which runs can speak to it."""
    extent: Literal["most", "every"]
    """In how many settings it has to hold."""
    evidence: tuple[Evidence, ...]

    @property
    def holds(self) -> bool | None:
        """Whether the runs bear it out; None if they cannot say."""
        if not self.evidence:
            return None
        share = sum(e.holds for e in self.evidence) / len(self.evidence)
        return share > 0.5 if self.extent == "most" else share == 1

    def plain(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {**asdict(self), "holds": self.holds}


def check_claims(runs: Iterable[Run]) -> list[Claim]:
    """All of the paper's claims, in its order, each with what these runs say about it."""
    settings = _settings(runs)
    return [
        Claim(
            "stable_best",
            "The stable model is the best of the three networks in most settings.",
            "Class-IL accuracy, percent",
            "runs of clser",
            "most",
            _collect(settings, _stable_best),
        ),
        Claim(
            "lower_variance",
            "Two semantic memories give a lower variance over seeds than one (Mean-ER).",
            "standard deviation of the Class-IL accuracy over seeds, percentage points",
            "runs of clser and mean-er, two seeds of each at least",
            "every",
            _collect(settings, _lower_variance),
        ),
        Claim(
            "flatter_minima",
            "CLS-ER converges to flatter minima than ER and DER++.",
            "accuracy on training samples that is left under noise on the weights, as a share of "
            "that without noise, mean over the strengths",
            "analysed runs of clser, and of er or derpp",
            "every",
            _collect(settings, _flatter),
        ),
        Claim(
            "less_task_bias",
            "CLS-ER is less biased towards the last task than ER and DER++.",
            "distance of the last task's share of the probability from an equal share; where "
            "there are no tasks, total variation distance of the classes' shares from equal ones",
            "analysed runs of clser, and of er or derpp",
            "every",
            _collect(settings, _less_bias),
        ),
        Claim(
            "better_calibrated",
            "CLS-ER is better calibrated than ER and DER++.",
            "expected calibration error, share",
            "analysed runs of clser, and of er or derpp",
            "every",
            _collect(settings, _better_calibrated),
        ),
        Claim(
            "chance_helps",
            "Updating the memories at random steps is better than at regular ones.",
            "Class-IL accuracy, percent",
            "runs of clser or mean-er that differ in --update alone",
            "every",
            tuple(e for setting in settings for e in _chance_helps(setting)),
        ),
    ]


# -- runs by setting ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setting:
    """The runs that may be compared: one stream on the same data, one buffer."""

    name: str
    variants: Mapping[str, Sequence[Sequence[Run]]]
    """Method → its variants (hyperparameters, update), each the runs of one hash."""

    def chosen(self, method: str) -> Sequence[Run]:
        """The variant that stands for a method: published before others, then by its seeds."""
        plain = [runs for runs in self.variants.get(method, []) if "update" not in _config(runs)]
        order = sorted(plain, key=lambda runs: (not _config(runs).get("published"), -len(runs)))
        return order[0] if order else []


_SHARED = ("stream", "data", "network", "stream_seed", "validation", "max_steps", "buffer_size")


def _settings(runs: Iterable[Run]) -> list[_Setting]:
    grouped: dict[tuple[Any, ...], dict[str, dict[str, list[Run]]]] = {}
    for run in runs:
        config = run["config"]
        methods = grouped.setdefault(tuple(config.get(key) for key in _SHARED), {})
        methods.setdefault(config["method"], {}).setdefault(config["hash"], []).append(run)
    return [
        _Setting(_title(key), {method: list(v.values()) for method, v in methods.items()})
        for key, methods in grouped.items()
    ]


def _title(key: tuple[Any, ...]) -> str:
    """The setting in words: what every setting has, then what departs from the usual."""
    known = dict(zip(_SHARED, key, strict=True))
    usual = {"stream", "data", "network", "buffer_size"}
    parts = [f"{known['stream']} ({known['data']})", f"buffer {known['buffer_size']}"]
    parts += [f"{k.replace('_', ' ')} {v}" for k, v in known.items() if k not in usual and v]
    return ", ".join(parts)


def _config(runs: Sequence[Run]) -> Mapping[str, Any]:
    config: Mapping[str, Any] = runs[0]["config"]
    return config


def _collect(
    settings: Sequence[_Setting], look: Callable[[_Setting], Evidence | None]
) -> tuple[Evidence, ...]:
    found = (look(setting) for setting in settings)
    return tuple(evidence for evidence in found if evidence is not None)


# -- figures --------------------------------------------------------------------------------

Figure = Callable[[Run], float | None]


def over_seeds(runs: Sequence[Run], figure: Figure) -> Spread | None:
    """The figure over seeds; None unless every run has it."""
    values = [figure(run) for run in runs]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Spread(*mean_std(known), len(known))


def _accuracy(predictor: str | None = None) -> Figure:
    """Class-IL accuracy of a predictor; of the one that answers, unless another is named."""

    def figure(run: Run) -> float | None:
        predictors = run["result"]["predictors"]
        found = predictors[predictor or next(iter(predictors))]["class_il"]
        mean: float | None = None if found is None else found["mean"]
        return mean

    return figure


def _answering(run: Run) -> Mapping[str, Any] | None:
    """The analysis of the predictor that answers."""
    analysis = run.get("analysis")
    if not analysis:
        return None
    name = next(iter(run["result"]["predictors"]))
    found: Mapping[str, Any] | None = analysis["predictors"].get(name)
    return found


def calibration_error(run: Run) -> float | None:
    """Expected calibration error of the predictor that answers."""
    found = _answering(run)
    return None if found is None else float(found["calibration"]["ece"])


def accuracy_retained(run: Run) -> float | None:
    """How much of the accuracy on training samples noise on the weights leaves.

    The mean over the strengths above zero of accuracy under noise divided by accuracy without,
    so that a network is not called flat for being right more often.
    """
    found = _answering(run)
    curve = found and found.get("flatness")
    if not curve or 0 not in curve["sigmas"]:
        return None
    accuracy = dict(zip(curve["sigmas"], curve["accuracy"], strict=True))
    still = accuracy.pop(0)
    if not still or not accuracy or None in accuracy.values():
        return None
    return math.fsum(accuracy.values()) / len(accuracy) / float(still)


def last_task_excess(run: Run) -> float | None:
    """How far the last task's share of the probability lies from an equal share."""
    mass = _mass(run, "task")
    return None if mass is None else abs(mass[-1] - 1 / len(mass))


def distance_from_uniform(run: Run) -> float | None:
    """Total variation distance between the tasks' (or classes') shares and equal shares."""
    mass = _mass(run)
    return None if mass is None else math.fsum(abs(m - 1 / len(mass)) for m in mass) / 2


def _mass(run: Run, kind: str | None = None) -> Sequence[float] | None:
    found = _answering(run)
    if found is None or (kind and found["task_probabilities"]["kind"] != kind):
        return None
    mass: Sequence[float] = found["task_probabilities"]["mass"]
    return mass


def _agreement(run: Run) -> float | None:
    """On what share of the test samples the stable and the plastic memory answer alike."""
    found = (run.get("analysis") or {}).get("agreement")
    if not found or not {"stable", "plastic"} <= {*found["predictors"]}:
        return None
    i, j = (found["predictors"].index(name) for name in ("stable", "plastic"))
    return float(found["matrix"][i][j])


# -- the claims -----------------------------------------------------------------------------


def _stable_best(setting: _Setting) -> Evidence | None:
    runs = setting.chosen("clser")
    numbers = _known({n: over_seeds(runs, _accuracy(n)) for n in ("stable", "plastic", "working")})
    return _compared(setting, numbers, "stable", better=max) if len(numbers) == 3 else None


def _lower_variance(setting: _Setting) -> Evidence | None:
    methods = ("clser", "mean-er")
    accuracy = _known({m: over_seeds(setting.chosen(m), _accuracy()) for m in methods})
    numbers = {m: Spread(s.std, None, s.seeds) for m, s in accuracy.items() if s.std is not None}
    if len(numbers) < 2:
        return None
    found = _compared(setting, numbers, "clser", better=min, also={"accuracy": accuracy})
    # A standard deviation from n seeds has itself an error of about 1 in √(2n − 2).
    error = math.hypot(*(s.mean / math.sqrt(2 * s.seeds - 2) for s in numbers.values()))
    apart = abs(numbers["clser"].mean - numbers["mean-er"].mean)
    return replace(found, clear=apart > 2 * error)


def _flatter(setting: _Setting) -> Evidence | None:
    sigmas = {
        tuple(found["flatness"]["sigmas"])
        for method in ("clser", *RIVALS)
        for run in setting.chosen(method)
        if (found := _answering(run)) and found.get("flatness")
    }
    # Curves over different strengths cannot be compared.
    return _against_rivals(setting, accuracy_retained, better=max) if len(sigmas) == 1 else None


def _less_bias(setting: _Setting) -> Evidence | None:
    also = {"distance from uniform": _by_method(setting, distance_from_uniform)}
    return _against_rivals(setting, last_task_excess, better=min, also=also) or _against_rivals(
        setting, distance_from_uniform, better=min
    )


def _better_calibrated(setting: _Setting) -> Evidence | None:
    return _against_rivals(setting, calibration_error, better=min)


def _chance_helps(setting: _Setting) -> Iterable[Evidence]:
    for method, variants in setting.variants.items():
        alike: dict[str, dict[str, Sequence[Run]]] = {}
        for runs in variants:
            config = _config(runs)
            if _updates_always(config):  # then chance has no part in it
                continue
            key = repr(sorted((k, v) for k, v in config.items() if k in _DECIDING))
            alike.setdefault(key, {})[config.get("update", "random")] = runs
        for pair in alike.values():
            numbers = _known({u: over_seeds(runs, _accuracy()) for u, runs in pair.items()})
            if len(numbers) == 2:
                agreement = _known(
                    {u: over_seeds(_analysed(runs), _agreement) for u, runs in pair.items()}
                )
                also = {"agreement of stable and plastic": agreement} if agreement else {}
                named = _Setting(f"{method} on {setting.name}", setting.variants)
                yield _compared(named, numbers, "random", better=max, also=also)


def _updates_always(config: Mapping[str, Any]) -> bool:
    rates = [v for k, v in config["values"].items() if k == "rate" or k.endswith("_rate")]
    return bool(rates) and min(rates) >= 1


_DECIDING = ("values", "device", "precision", "engine", "deterministic", "data_checksum")


def _by_method(setting: _Setting, figure: Figure) -> Numbers:
    """A figure of the analyses, over the runs that were analysed."""
    methods = ("clser", *RIVALS)
    return _known({m: over_seeds(_analysed(setting.chosen(m)), figure) for m in methods})


def _analysed(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.get("analysis")]


def _against_rivals(
    setting: _Setting,
    figure: Figure,
    *,
    better: Callable[[Iterable[float]], float],
    also: dict[str, Numbers] | None = None,
) -> Evidence | None:
    numbers = _by_method(setting, figure)
    if "clser" not in numbers or len(numbers) < 2:
        return None
    return _compared(setting, numbers, "clser", better=better, also=also)


def _compared(
    setting: _Setting,
    numbers: Numbers,
    favourite: str,
    *,
    better: Callable[[Iterable[float]], float],
    also: dict[str, Numbers] | None = None,
) -> Evidence:
    """Whether the favourite beats all others (a tie does not), and how clearly the best of them."""
    mine = numbers[favourite]
    others = [spread for name, spread in numbers.items() if name != favourite]
    best = better(spread.mean for spread in others)
    holds = mine.mean != best and better([mine.mean, best]) == mine.mean
    rival = next(spread for spread in others if spread.mean == best)
    return Evidence(setting.name, holds, numbers, _clear(mine, rival), also or {})


def _clear(a: Spread, b: Spread) -> bool | None:
    if a.std is None or b.std is None:
        return None
    error = math.sqrt(a.std**2 / a.seeds + b.std**2 / b.seeds)
    return abs(a.mean - b.mean) > 2 * error


def _known(numbers: Mapping[str, Spread | None]) -> Numbers:
    return {name: spread for name, spread in numbers.items() if spread is not None}
