"""The claims of the CLS-ER paper, checked against finished runs and their analyses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from perdure.results.records import PredictorAnalysis, RunRecord
from perdure.results.table import Collection, Comparison, Setting, Spread

Status = Literal["supported", "contradicted", "inconclusive"]
Numbers = dict[str, Spread]
Measure = Callable[[RunRecord], float | None]
RIVALS = ("er", "derpp")
"""The methods that Section 6 of the paper compares CLS-ER with."""


@dataclass(frozen=True)
class Evidence:
    """What the runs of one stream, data and buffer size show about a claim.

    Attributes:
        setting: Names the stream, the data and the buffer size.
        status: Inconclusive if the difference is at most two standard errors, or if there are
            too few seeds to tell.
        numbers: The compared numbers, by method, network or kind of update.
        details: Further numbers, by what they measure.
    """

    setting: str
    status: Status
    numbers: Numbers
    details: dict[str, Numbers] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the evidence for or against it.

    Attributes:
        name: Identifies the claim.
        text: The claim.
        measure: The compared quantity, with its unit.
        needs: The runs that the claim requires.
        extent: Whether the claim is about most settings or about every setting.
        evidence: One entry per setting with the necessary runs.
    """

    name: str
    text: str
    measure: str
    needs: str
    extent: Literal["most", "every"]
    evidence: tuple[Evidence, ...]

    @property
    def status(self) -> Status:
        """What the evidence shows together.

        A claim about most settings is decided by more than half of them. A claim about every
        setting is contradicted by a single one, and supported if there is support and no
        contradiction.
        """
        statuses = [e.status for e in self.evidence]
        supported, contradicted = statuses.count("supported"), statuses.count("contradicted")
        if self.extent == "most":
            supported, contradicted = (2 * n > len(statuses) for n in (supported, contradicted))
        if contradicted:
            return "contradicted"
        return "supported" if supported else "inconclusive"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""

        def plain(numbers: Numbers) -> dict[str, Any]:
            return {name: spread._asdict() for name, spread in numbers.items()}

        evidence = [
            {
                "setting": e.setting,
                "status": e.status,
                "numbers": plain(e.numbers),
                "details": {name: plain(numbers) for name, numbers in e.details.items()},
            }
            for e in self.evidence
        ]
        return {**vars(self), "status": self.status, "evidence": evidence}


def check_claims(collection: Collection) -> list[Claim]:
    """Check every claim, in the paper's order."""

    def each(check: Callable[[_Case], Iterable[Evidence | None]]) -> tuple[Evidence, ...]:
        return tuple(e for case in cases for e in check(case) if e is not None)

    cases = list(_cases(collection))
    analysed = "analysed runs of clser and of er or derpp"
    return [
        Claim(
            "stable_best",
            "The stable model is the best of the three networks in most settings.",
            "Class-IL accuracy, percent",
            "runs of clser",
            "most",
            each(_stable_best),
        ),
        Claim(
            "lower_variance",
            "Two semantic memories have a lower variance over seeds than one (Mean-ER).",
            "standard deviation of the Class-IL accuracy over seeds, percentage points",
            "runs of clser and mean-er with at least two seeds each",
            "every",
            each(_lower_variance),
        ),
        Claim(
            "flatter_minima",
            "CLS-ER converges to flatter minima than ER and DER++.",
            "share of the accuracy on training samples that is retained under noise on the "
            "weights, mean over the noise levels",
            analysed,
            "every",
            each(_flatter_minima),
        ),
        Claim(
            "less_task_bias",
            "CLS-ER is less biased towards the last task than ER and DER++.",
            "distance of the last task's share of the probability from an equal share; on streams "
            "without tasks, total variation distance of the classes' shares from equal shares",
            analysed,
            "every",
            each(_less_task_bias),
        ),
        Claim(
            "better_calibrated",
            "CLS-ER is better calibrated than ER and DER++.",
            "expected calibration error, from 0 to 1",
            analysed,
            "every",
            each(lambda case: [case.against_rivals(calibration_error, better=min)]),
        ),
        Claim(
            "random_updates",
            "Updating the semantic memories at random steps is better than at regular steps.",
            "Class-IL accuracy, percent",
            "runs of clser or mean-er that differ only in --update",
            "every",
            each(_random_updates),
        ),
    ]


# -- measures -------------------------------------------------------------------------------


def over_seeds(runs: Sequence[RunRecord], measure: Measure) -> Spread | None:
    """A measure over seeds; None unless every run has it."""
    values = [value for run in runs if (value := measure(run)) is not None]
    return Spread.over(values) if values and len(values) == len(runs) else None


def calibration_error(run: RunRecord) -> float | None:
    """Expected calibration error of the answering network."""
    found = _analysis(run)
    return None if found is None else found.calibration.ece


def accuracy_retained(run: RunRecord) -> float | None:
    """Share of the accuracy on training samples that is retained under noise on the weights.

    The mean over the noise levels above zero, relative to the accuracy without noise, so that a
    more accurate network is not considered flatter for that reason.
    """
    found = _analysis(run)
    if found is None or found.flatness is None or 0 not in found.flatness.sigmas:
        return None
    accuracy = dict(zip(found.flatness.sigmas, found.flatness.accuracy, strict=True))
    noiseless = accuracy.pop(0)
    values = [value for value in accuracy.values() if value is not None]
    if not noiseless or not values or len(values) < len(accuracy):
        return None
    return math.fsum(values) / len(values) / noiseless


def last_task_excess(run: RunRecord) -> float | None:
    """Distance of the last task's share of the probability from an equal share."""
    found = _analysis(run)
    if found is None or found.task_probabilities.kind != "task":
        return None
    mass = found.task_probabilities.mass
    return abs(mass[-1] - 1 / len(mass)) if mass else None


def distance_from_uniform(run: RunRecord) -> float | None:
    """Total variation distance between the tasks' (or classes') shares and equal shares."""
    found = _analysis(run)
    if found is None:
        return None
    mass = found.task_probabilities.mass
    return math.fsum(abs(m - 1 / len(mass)) for m in mass) / 2


def _analysis(run: RunRecord) -> PredictorAnalysis | None:
    """The analysis of the answering network."""
    if run.analysis is None:
        return None
    return run.analysis.predictors.get(next(iter(run.result.predictors)))


def _agreement(run: RunRecord) -> float | None:
    """Share of the test samples on which the stable and the plastic memory agree."""
    if run.analysis is None or not {"stable", "plastic"} <= {*run.analysis.agreement.predictors}:
        return None
    names = run.analysis.agreement.predictors
    return run.analysis.agreement.matrix[names.index("stable")][names.index("plastic")]


def _analysed(setting: Setting) -> list[RunRecord]:
    return [run for run in setting.runs if run.analysis is not None]


# -- evidence -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """The settings of one comparison with one buffer size."""

    comparison: Comparison
    buffer_size: int | None

    @property
    def name(self) -> str:
        size = "" if self.buffer_size is None else f", buffer {self.buffer_size}"
        return f"{self.comparison.name}{size}"

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """One setting per method; regular updates do not represent a method."""
        chosen = self.comparison.by_method(self.buffer_size).items()
        return {name: s for name, s in chosen if s.config.update == "random"}

    def measured(self, measure: Measure) -> Numbers:
        """A measure of the analyses of CLS-ER and its rivals."""
        return _known(
            {
                method: over_seeds(_analysed(self.settings[method]), measure)
                for method in ("clser", *RIVALS)
                if method in self.settings
            }
        )

    def against_rivals(
        self,
        measure: Measure,
        *,
        better: Callable[[Iterable[float]], float],
        details: dict[str, Numbers] | None = None,
    ) -> Evidence | None:
        numbers = self.measured(measure)
        if "clser" not in numbers or len(numbers) < 2:
            return None
        return _compared(self.name, numbers, "clser", better=better, details=details)


def _cases(collection: Collection) -> Iterator[_Case]:
    for comparison in collection.comparisons:
        for size in comparison.buffer_sizes():
            yield _Case(comparison, size)


def _stable_best(case: _Case) -> Iterator[Evidence]:
    setting = case.settings.get("clser")
    names = ("stable", "plastic", "working")
    if setting is not None and set(names) <= set(setting.predictors):
        numbers = _known({name: setting.spread(name) for name in names})
        if len(numbers) == 3:
            yield _compared(case.name, numbers, "stable", better=max)


def _lower_variance(case: _Case) -> Iterator[Evidence]:
    chosen = {name: case.settings[name] for name in ("clser", "mean-er") if name in case.settings}
    accuracy = _known({name: setting.spread() for name, setting in chosen.items()})
    numbers = {n: Spread(s.std, None, s.seeds) for n, s in accuracy.items() if s.std is not None}
    if len(numbers) == 2:
        # The standard error of a standard deviation from n seeds is about std / √(2n − 2).
        error = math.hypot(*(s.mean / math.sqrt(2 * s.seeds - 2) for s in numbers.values()))
        status = _status(numbers["mean-er"].mean - numbers["clser"].mean, error)
        yield Evidence(case.name, status, numbers, {"accuracy": accuracy})


def _flatter_minima(case: _Case) -> Iterator[Evidence | None]:
    sigmas = {
        tuple(found.flatness.sigmas)
        for method in ("clser", *RIVALS)
        if method in case.settings
        for run in case.settings[method].runs
        if (found := _analysis(run)) is not None and found.flatness is not None
    }
    if len(sigmas) == 1:  # curves over different noise levels cannot be compared
        yield case.against_rivals(accuracy_retained, better=max)


def _less_task_bias(case: _Case) -> Iterator[Evidence | None]:
    details = {"distance from uniform": case.measured(distance_from_uniform)}
    yield case.against_rivals(last_task_excess, better=min, details=details) or case.against_rivals(
        distance_from_uniform, better=min
    )


def _random_updates(case: _Case) -> Iterator[Evidence]:
    pairs: dict[str, dict[str, Setting]] = {}
    for setting in case.comparison.settings:
        config = setting.config
        rates = [v for k, v in config.hyperparameters.items() if k.endswith("rate")]
        # With rates of 1 every step is an update, whatever --update says.
        if config.buffer_size == case.buffer_size and not (rates and min(rates) >= 1):
            identity = json.dumps({**config.identity(), "update": None}, sort_keys=True)
            pairs.setdefault(identity, {})[config.update] = setting
    for pair in pairs.values():
        numbers = _known({update: setting.spread() for update, setting in pair.items()})
        if len(numbers) == 2:
            agreement = _known(
                {update: over_seeds(_analysed(s), _agreement) for update, s in pair.items()}
            )
            details = {"agreement of stable and plastic": agreement} if agreement else {}
            name = f"{next(iter(pair.values())).config.method_title} on {case.name}"
            yield _compared(name, numbers, "random", better=max, details=details)


def _compared(
    name: str,
    numbers: Numbers,
    favourite: str,
    *,
    better: Callable[[Iterable[float]], float],
    details: dict[str, Numbers] | None = None,
) -> Evidence:
    """The favourite compared with the best of the others."""
    ours = numbers[favourite]
    others = [spread for other, spread in numbers.items() if other != favourite]
    best = next(s for s in others if s.mean == better(spread.mean for spread in others))
    difference = ours.mean - best.mean if better is max else best.mean - ours.mean
    known = ours.error is not None and best.error is not None
    error = math.hypot(ours.error or 0.0, best.error or 0.0) if known else None
    return Evidence(name, _status(difference, error), numbers, details or {})


def _status(difference: float, error: float | None) -> Status:
    """What an improvement with this standard error (None if unknown) shows."""
    if error is None or abs(difference) <= 2 * error:
        return "inconclusive"
    return "supported" if difference > 0 else "contradicted"


def _known(numbers: Mapping[str, Spread | None]) -> Numbers:
    return {name: spread for name, spread in numbers.items() if spread is not None}
