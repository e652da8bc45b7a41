"""The claims of the CLS-ER paper, checked against finished runs and their analyses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perdure.evaluation import Flatness
from perdure.results.records import RunRecord
from perdure.results.table import Collection, Setting
from perdure.results.verdict import Spread

Outcome = Literal["supported", "contradicted", "inconclusive"]
"""What the numbers of one setting show."""
Status = Literal[Outcome, "untested"]
"""What all settings show; "untested" if there are none."""
Better = Literal["higher", "lower"]
Numbers = dict[str, Spread]
Measure = Callable[[RunRecord], float | None]
RIVALS = ("er", "derpp")
"""The methods that Section 6 of the paper compares CLS-ER with."""
MAX_NOISE = 0.03
"""The strongest noise on the weights that the paper plots."""


@dataclass(frozen=True)
class Evidence:
    """What the runs of one stream, data and buffer size show about a claim.

    Attributes:
        setting: Names the stream, the data and the buffer size, and the measure if there are
            several.
        status: Inconclusive if the difference is at most two standard errors, or if there are
            too few seeds to tell.
        numbers: The compared numbers, by method, network or kind of update.
    """

    setting: str
    status: Outcome
    numbers: Numbers


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
        """What the evidence shows together; "untested" without any.

        A claim about most settings is decided by more than half of them. A claim about every
        setting is supported if all of them support it, and contradicted by a single one.
        """
        if not self.evidence:
            return "untested"
        statuses = [e.status for e in self.evidence]
        count, supported = len(statuses), statuses.count("supported")
        contradicted = statuses.count("contradicted")
        if self.extent == "most":
            is_supported, is_contradicted = 2 * supported > count, 2 * contradicted > count
        else:
            is_supported, is_contradicted = supported == count, contradicted > 0
        if is_contradicted:
            return "contradicted"
        return "supported" if is_supported else "inconclusive"


def check_claims(collection: Collection) -> list[Claim]:
    """Check every claim, in the paper's order.

    Runs on other data than the paper's, on validation splits and of shortened streams say nothing
    about its claims.
    """
    cases = [
        _Case(
            f"{comparison.name}, buffer {buffer}"
            if buffer and not comparison.detail
            else comparison.name,
            comparison.by_method(buffer),
            [setting for setting in comparison.settings if setting.config.buffer == buffer],
        )
        for comparison in collection.comparisons
        if comparison.follows_the_paper
        for buffer in comparison.buffers()
    ]

    def each(check: Callable[[_Case], Iterable[Evidence]]) -> tuple[Evidence, ...]:
        return tuple(evidence for case in cases for evidence in check(case))

    analysed = "analysed runs of clser, er and derpp"
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
            "loss and accuracy (percent) on training samples under noise on the weights, mean "
            f"over the noise levels up to {MAX_NOISE:g}",
            analysed,
            "every",
            each(_flatter_minima),
        ),
        Claim(
            "more_retained",
            "CLS-ER retains a larger share of its accuracy under noise than ER and DER++ (not a "
            "measure of the paper).",
            "share of the accuracy on training samples that is retained under noise on the "
            f"weights, mean over the noise levels up to {MAX_NOISE:g}",
            analysed,
            "every",
            each(lambda case: _under_noise(case, accuracy_retained, "higher")),
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
            each(lambda case: _against_rivals(case, calibration_error, "lower")),
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


def over_seeds(setting: Setting, measure: Measure) -> Spread | None:
    """A measure over the analysed seeds; None unless all of them have it."""
    values = [measure(run) for run in setting.analysed]
    known = [value for value in values if value is not None]
    return Spread.over(known) if known and len(known) == len(values) else None


def calibration_error(run: RunRecord) -> float | None:
    """Expected calibration error of the default predictor."""
    found = run.default_analysis
    return None if found is None else found.calibration.ece


def loss_under_noise(run: RunRecord) -> float | None:
    """Loss on training samples under noise on the weights, mean over the noise levels."""
    curve = _curve(run)
    return None if curve is None else _mean_under_noise(curve, curve.loss)


def accuracy_under_noise(run: RunRecord) -> float | None:
    """Accuracy on training samples under noise on the weights, mean over the noise levels."""
    curve = _curve(run)
    return None if curve is None else _mean_under_noise(curve, curve.accuracy)


def accuracy_retained(run: RunRecord) -> float | None:
    """Share of the accuracy on training samples that is retained under noise on the weights.

    Relative to the accuracy without noise, so that a more accurate network is not considered
    flatter for that reason.
    """
    curve, noisy = _curve(run), accuracy_under_noise(run)
    if curve is None or noisy is None or 0 not in curve.sigmas:
        return None
    noiseless = curve.accuracy[curve.sigmas.index(0)]
    return noisy / noiseless if noiseless else None


def _curve(run: RunRecord) -> Flatness | None:
    found = run.default_analysis
    return None if found is None else found.flatness


def _mean_under_noise(curve: Flatness, values: Sequence[float | None]) -> float | None:
    """The mean over the noise levels up to `MAX_NOISE`; None if any value is not finite."""
    found = [v for s, v in zip(curve.sigmas, values, strict=True) if 0 < s <= MAX_NOISE]
    known = [value for value in found if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(found) else None


def last_task_excess(run: RunRecord) -> float | None:
    """Distance of the last task's share of the probability from an equal share."""
    found = run.default_analysis
    if found is None or found.task_probabilities.kind != "task":
        return None
    mass = found.task_probabilities.mass
    return abs(mass[-1] - 1 / len(mass)) if mass else None


def distance_from_uniform(run: RunRecord) -> float | None:
    """Total variation distance between the tasks' (or classes') shares and equal shares."""
    found = run.default_analysis
    if found is None:
        return None
    mass = found.task_probabilities.mass
    return math.fsum(abs(m - 1 / len(mass)) for m in mass) / 2


# -- evidence -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """The settings of one comparison with one buffer size.

    `methods` has one setting per method, also of those without a memory.
    """

    name: str
    methods: Mapping[str, Setting]
    settings: list[Setting]

    def representing(self, *methods: str) -> dict[str, Setting]:
        """The settings of these methods; changed hyperparameters do not represent a method."""
        found = {name: self.methods[name] for name in methods if name in self.methods}
        return {name: s for name, s in found.items() if not s.config.unusual("method")}


def _stable_best(case: _Case) -> Iterator[Evidence]:
    names = ("stable", "plastic", "working")
    for setting in case.representing("clser").values():
        if set(names) <= set(setting.predictors):
            numbers = _known({name: setting.spread(name) for name in names})
            if len(numbers) == len(names):
                yield _compared(case.name, numbers, "stable", "higher")


def _lower_variance(case: _Case) -> Iterator[Evidence]:
    chosen = case.representing("clser", "mean-er")
    spreads = _known({name: setting.spread() for name, setting in chosen.items()})
    numbers = {n: Spread(s.std, None, s.seeds) for n, s in spreads.items() if s.std is not None}
    if len(numbers) == 2:
        # The standard error of a standard deviation from n seeds is about std / √(2n − 2).
        error = math.hypot(*(s.mean / math.sqrt(2 * s.seeds - 2) for s in numbers.values()))
        status = _status(numbers["mean-er"].mean - numbers["clser"].mean, error)
        yield Evidence(case.name, status, numbers)


def _flatter_minima(case: _Case) -> Iterator[Evidence]:
    for found in _under_noise(case, loss_under_noise, "lower"):
        yield replace(found, setting=f"{found.setting}: training loss")
    for found in _under_noise(case, accuracy_under_noise, "higher"):
        yield replace(found, setting=f"{found.setting}: training accuracy")


def _under_noise(case: _Case, measure: Measure, better: Better) -> list[Evidence]:
    levels = {
        tuple(sigma for sigma in curve.sigmas if sigma <= MAX_NOISE)
        for setting in case.representing("clser", *RIVALS).values()
        for run in setting.runs
        if (curve := _curve(run)) is not None
    }
    # Means over different noise levels cannot be compared.
    return _against_rivals(case, measure, better) if len(levels) == 1 else []


def _less_task_bias(case: _Case) -> list[Evidence]:
    by_task = _against_rivals(case, last_task_excess, "lower")
    return by_task or _against_rivals(case, distance_from_uniform, "lower")


def _random_updates(case: _Case) -> Iterator[Evidence]:
    pairs: dict[str, dict[str, Setting]] = {}
    for setting in case.settings:
        config = setting.config
        rates = [v for k, v in config.hyperparameters.items() if k.endswith("rate")]
        # With rates of 1 every step is an update, whatever --update says.
        if not (rates and min(rates) >= 1):
            identity = json.dumps({**config.identity(), "update": None}, sort_keys=True)
            pairs.setdefault(identity, {})[config.update] = setting
    for pair in pairs.values():
        numbers = _known({update: setting.spread() for update, setting in pair.items()})
        if len(numbers) == 2:
            name = f"{pair['random'].config.method_title} on {case.name}"
            yield _compared(name, numbers, "random", "higher")


def _against_rivals(case: _Case, measure: Measure, better: Better) -> list[Evidence]:
    """CLS-ER compared with ER and DER++, if all three are analysed."""
    settings = case.representing("clser", *RIVALS)
    numbers = _known({name: over_seeds(setting, measure) for name, setting in settings.items()})
    if set(numbers) != {"clser", *RIVALS}:
        return []
    return [_compared(case.name, numbers, "clser", better)]


def _compared(name: str, numbers: Numbers, favourite: str, better: Better) -> Evidence:
    """The favourite compared with each of the others: supported if it is better than all."""
    ours, statuses = numbers[favourite], []
    for other in (spread for key, spread in numbers.items() if key != favourite):
        difference = ours.mean - other.mean if better == "higher" else other.mean - ours.mean
        known = ours.error is not None and other.error is not None
        error = math.hypot(ours.error or 0.0, other.error or 0.0) if known else None
        statuses.append(_status(difference, error))
    if "contradicted" in statuses:
        return Evidence(name, "contradicted", numbers)
    return Evidence(name, "inconclusive" if "inconclusive" in statuses else "supported", numbers)


def _status(difference: float, error: float | None) -> Outcome:
    """What an improvement with this standard error (None if unknown) shows."""
    if error is None or abs(difference) <= 2 * error:
        return "inconclusive"
    return "supported" if difference > 0 else "contradicted"


def _known(numbers: Mapping[str, Spread | None]) -> Numbers:
    return {name: spread for name, spread in numbers.items() if spread is not None}
