"""The paper's claims, checked on constructed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.results import RunRecord
from perdure.results.claims import Claim, Evidence, check_claims
from perdure.results.verdict import Spread

from .made import analysis, collection, record

BEST = {"stable": 90.0, "plastic": 85.0, "working": 80.0}
SECOND = {"stable": 85.0, "plastic": 90.0, "working": 80.0}


def claim(name: str, runs: list[RunRecord]) -> Claim:
    return {claim.name: claim for claim in check_claims(collection(*runs))}[name]


def evidence(name: str, runs: list[RunRecord]) -> Evidence:
    (found,) = claim(name, runs).evidence
    return found


def seeds(
    method: str, accuracy: dict[str, float], count: int = 2, **settings: Any
) -> list[RunRecord]:
    """Runs whose accuracies differ a little over seeds."""
    return [
        record(method, s, accuracy={k: v + s / 10 for k, v in accuracy.items()}, **settings)
        for s in range(count)
    ]


def analysed(method: str, name: str, *measured: Mapping[str, Any]) -> list[RunRecord]:
    """Runs of a method, one per analysis."""
    return [
        record(method, seed, analysis=analysis(name, **values))
        for seed, values in enumerate(measured)
    ]


def test_runs_with_other_hyperparameters_are_no_evidence() -> None:
    assert claim("stable_best", seeds("clser", BEST)).evidence
    assert not claim("stable_best", seeds("clser", BEST, hyperparameters={"lr": 0.001})).evidence


def test_without_the_runs_it_needs_a_claim_is_untested() -> None:
    for runs in ([], [record("er"), record("mean-er")]):
        claims = check_claims(collection(*runs))
        assert {found.status for found in claims} == {"untested"}
        assert all(found.needs and found.text and not found.evidence for found in claims)


@pytest.mark.parametrize(
    "settings",
    [{"dataset": "mnist5k"}, {"max_steps": 300}, {"validation": 0.1}, {"network": "cnn"}],
)
def test_runs_under_another_protocol_say_nothing_about_claims(settings: dict[str, Any]) -> None:
    assert claim("stable_best", seeds("clser", BEST)).evidence
    assert not claim("stable_best", seeds("clser", BEST, **settings)).evidence


def test_a_claim_about_most_settings_is_decided_by_the_majority() -> None:
    runs = [*seeds("clser", BEST, buffer_size=200), *seeds("clser", BEST)]
    assert claim("stable_best", runs).status == "supported"
    runs += seeds("clser", SECOND, stream="mnist-360")
    found = claim("stable_best", runs)
    assert found.status == "supported"
    assert [e.status for e in found.evidence] == ["supported", "supported", "contradicted"]
    assert claim("stable_best", runs[2:]).status == "inconclusive"  # one of two is not most
    assert claim("stable_best", runs[4:]).status == "contradicted"


@pytest.mark.parametrize(
    ("plastic", "status"),
    [
        ((80.0, 81.0, 82.0), "supported"),
        ((88.0, 90.0, 92.0), "inconclusive"),
        ((91.0, 90.0, 92.0), "inconclusive"),
        ((95.0, 96.0, 97.0), "contradicted"),
    ],
)
def test_a_difference_within_two_standard_errors_is_inconclusive(
    plastic: tuple[float, ...], status: str
) -> None:
    runs = [
        record(seed=s, accuracy={"stable": a, "plastic": b, "working": 50.0 + s})
        for s, (a, b) in enumerate(zip((90.0, 91.0, 92.0), plastic, strict=True))
    ]
    assert evidence("stable_best", runs).status == status


def test_a_single_seed_is_inconclusive() -> None:
    assert evidence("stable_best", [record(accuracy=BEST)]).status == "inconclusive"


def test_a_claim_about_every_setting_needs_all_and_is_contradicted_by_one() -> None:
    def runs(ece: float, buffer_size: int) -> list[RunRecord]:
        return [
            record(method, seed, buffer_size=buffer_size, analysis=analysis(name, ece=error))
            for method, name, error in (
                ("clser", "stable", ece),
                ("er", "working", 0.2),
                ("derpp", "working", 0.2),
            )
            for seed in range(2)
        ]

    assert claim("better_calibrated", runs(0.1, 200)).status == "supported"
    both = runs(0.1, 200) + runs(0.3, 500)
    assert claim("better_calibrated", both).status == "contradicted"
    same = runs(0.1, 200) + runs(0.2, 500)  # no difference
    assert claim("better_calibrated", same).status == "inconclusive"


def test_variance_is_over_seeds() -> None:
    runs = [record("clser", s, accuracy=90.0 + s) for s in range(3)]
    runs += [record("mean-er", s, accuracy=88.0 + 4 * s) for s in range(2)]
    found = evidence("lower_variance", runs)
    assert found.numbers["clser"].mean == pytest.approx(1.0)
    assert found.numbers["mean-er"].mean == pytest.approx(8**0.5)
    assert found.status == "inconclusive"  # two seeds say little about a variance
    many = [record("clser", s, accuracy=90.0 + s % 2) for s in range(20)]
    many += [record("mean-er", s, accuracy=80.0 + 10 * (s % 2)) for s in range(20)]
    assert evidence("lower_variance", many).status == "supported"
    assert claim("lower_variance", runs[:1] + runs[3:]).evidence == ()  # one seed has no variance


@pytest.mark.parametrize(
    ("derpp", "status"),
    [((0.3, 0.31), "supported"), ((0.01, 0.02), "contradicted"), ((0.06, 0.4), "inconclusive")],
)
def test_calibration_is_compared_with_both_rivals(derpp: tuple[float, float], status: str) -> None:
    ours = analysed("clser", "stable", {"ece": 0.05}, {"ece": 0.06})
    er = analysed("er", "working", {"ece": 0.2}, {"ece": 0.21})
    other = analysed("derpp", "working", *({"ece": value} for value in derpp))
    assert claim("better_calibrated", [*ours, *er, *other]).status == status


def test_one_rival_does_not_decide_a_claim_about_two() -> None:
    ours = analysed("clser", "stable", {"ece": 0.05}, {"ece": 0.06})
    er = analysed("er", "working", {"ece": 0.2}, {"ece": 0.21})
    assert claim("better_calibrated", [*ours, *er]).evidence == ()
    assert claim("better_calibrated", [*ours, *er, record("derpp")]).evidence == ()  # not analysed


def test_only_analysed_seeds_count() -> None:
    ours = [record("clser", analysis=analysis("stable", ece=0.05)), record("clser", 1)]
    er = analysed("er", "working", {"ece": 0.2}, {"ece": 0.3})
    derpp = analysed("derpp", "working", {"ece": 0.2}, {"ece": 0.3})
    found = evidence("better_calibrated", [*ours, *er, *derpp])
    assert found.numbers["clser"] == Spread(0.05, None, 1)
    assert found.numbers["er"].seeds == 2


def under_noise(**er: tuple[float, ...]) -> list[RunRecord]:
    """CLS-ER starts high and falls; its rivals fall less, or as given."""
    sigmas = (0.0, 0.01, 0.03, 0.1)  # the last one is stronger than any that the paper plots
    ours = {"accuracy": (90.0, 45.0, 27.0, 0.0), "loss": (0.1, 1.0, 2.0, 99.0), "sigmas": sigmas}
    rival = {"accuracy": (40.0, 30.0, 20.0, 20.0), "loss": (1.0, 3.0, 4.0, 4.0), "sigmas": sigmas}
    return [
        *analysed("clser", "stable", ours, ours),
        *analysed("er", "working", *[{**rival, **er}] * 2),
        *analysed("derpp", "working", rival, rival),
    ]


def test_minima_are_compared_in_absolute_loss_and_accuracy_up_to_the_papers_noise() -> None:
    found = claim("flatter_minima", under_noise())
    assert found.status == "supported"
    loss, accuracy = found.evidence
    assert loss.numbers["clser"].mean == pytest.approx(1.5)
    assert loss.numbers["er"].mean == pytest.approx(3.5)
    assert accuracy.numbers["clser"].mean == pytest.approx(36.0)
    assert accuracy.numbers["er"].mean == pytest.approx(25.0)
    lower = claim("flatter_minima", under_noise(loss=(0.1, 0.2, 0.3, 0.4)))
    assert lower.status == "contradicted"


def test_the_share_of_accuracy_that_is_retained_is_compared_apart() -> None:
    found = evidence("more_retained", under_noise())
    assert found.numbers["clser"].mean == pytest.approx(0.4)
    assert found.numbers["er"].mean == pytest.approx(0.625)
    assert found.status == "contradicted"


def test_curves_over_different_noise_levels_are_not_compared() -> None:
    assert claim("flatter_minima", under_noise(sigmas=(0.0, 0.01, 0.02, 0.1))).evidence == ()
    assert claim("flatter_minima", under_noise(sigmas=(0.0, 0.01, 0.03, 0.2))).evidence


def test_bias_is_the_distance_of_the_last_task_from_an_equal_share() -> None:
    ours = {"mass": (0.3, 0.1, 0.3, 0.3)}
    er = {"mass": (0.2, 0.2, 0.2, 0.4)}
    runs = [*analysed("clser", "stable", ours, ours), *analysed("er", "working", er, er)]
    runs += analysed("derpp", "working", er, er)
    found = evidence("less_task_bias", runs)
    assert found.status == "supported"
    assert found.numbers["clser"].mean == pytest.approx(0.05)
    assert found.numbers["er"].mean == pytest.approx(0.15)


def test_without_tasks_bias_is_the_distance_of_the_classes_from_equal_shares() -> None:
    ours = {"mass": (0.4, 0.6), "kind": "class"}
    er = {"mass": (0.2, 0.8), "kind": "class"}
    runs = [*analysed("clser", "stable", ours, ours), *analysed("er", "working", er, er)]
    runs += analysed("derpp", "working", er, er)
    found = evidence("less_task_bias", runs)
    assert found.status == "supported"
    assert found.numbers["er"].mean == pytest.approx(0.3)


def test_claims_are_not_checked_on_a_users_own_data() -> None:
    runs = [record(seed=s, accuracy=BEST, stream="my:data", dataset=None) for s in range(2)]
    assert all(found.evidence == () for found in check_claims(collection(*runs)))


def test_random_updates_are_compared_with_regular_ones_that_differ_in_nothing_else() -> None:
    def runs(accuracy: float, **settings: Any) -> list[RunRecord]:
        return [
            record(
                "clser",
                seed,
                accuracy=accuracy + seed / 10,
                **settings,
            )
            for seed in range(2)
        ]

    random, regular = runs(91.0), runs(90.0, update="regular")
    other = runs(99.0, update="regular", hyperparameters={"lr": 0.2})
    found = evidence("random_updates", [*random, *regular, *other])
    assert found.status == "supported"
    means = {update: spread.mean for update, spread in found.numbers.items()}
    assert means == {"random": pytest.approx(91.05), "regular": pytest.approx(90.05)}


def test_memories_that_are_updated_at_every_step_say_nothing_about_random_updates() -> None:
    always = {"stable_rate": 1.0, "plastic_rate": 1.0}
    runs = [record(hyperparameters=always), record(hyperparameters=always, update="regular")]
    assert claim("random_updates", runs).evidence == ()


@pytest.mark.parametrize("change", [{"update": "regular"}, {"hyperparameters": {"lr": 0.3}}])
def test_the_published_settings_represent_a_method(change: dict[str, Any]) -> None:
    others = seeds("clser", SECOND, 5, **change)
    assert claim("stable_best", [*others, *seeds("clser", BEST)]).status == "supported"


@pytest.mark.parametrize(
    "change", [{"data_checksum": "f" * 16}, {"dataset": "mnist5k"}, {"max_steps": 9}]
)
def test_runs_made_from_different_data_are_not_compared(change: dict[str, Any]) -> None:
    ours = [record(seed=s, analysis=analysis("stable", ece=0.05)) for s in range(2)]
    er = [record("er", s, analysis=analysis("working", ece=0.2), **change) for s in range(2)]
    derpp = [record("derpp", s, analysis=analysis("working", ece=0.2)) for s in range(2)]
    assert claim("better_calibrated", [*ours, *er, *derpp]).evidence == ()
    regular = [record(seed=s, update="regular", **change) for s in range(2)]
    assert claim("random_updates", [*ours, *regular]).evidence == ()
