"""The paper's claims, checked on records made up for the purpose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.claims import Claim, Spread, check_claims

NETWORKS = {
    "clser": ("stable", "plastic", "working"),
    "mean-er": ("mean", "working"),
    "er": ("working",),
    "derpp": ("working",),
}


def run(
    method: str,
    seed: int = 0,
    *,
    accuracy: float | dict[str, float] = 80.0,
    analysis: dict[str, Any] | None = None,
    **config: Any,
) -> dict[str, Any]:
    """A run whose networks score `accuracy`."""
    known = dict.fromkeys(NETWORKS[method], accuracy) if isinstance(accuracy, float) else accuracy
    settings = {
        "stream": "s-mnist",
        "data": "mnist",
        "network": "mlp",
        "buffer_size": 500,
        "method": method,
        "values": {"lr": 0.1},
        "published": True,
        "hash": f"{method}{config}",
        "seed": seed,
        **config,
    }
    result = {"predictors": {name: {"class_il": {"mean": a}} for name, a in known.items()}}
    return {"config": settings, "result": result, "analysis": analysis}


def analysis(
    name: str,
    *,
    ece: float = 0.1,
    left: tuple[float, ...] = (90.0, 45.0),
    mass: tuple[float, ...] = (0.5, 0.5),
    kind: str = "task",
    sigmas: tuple[float, ...] = (0, 0.1),
    **more: Any,
) -> dict[str, Any]:
    """An analysis of the network of this name."""
    found = {
        "calibration": {"ece": ece},
        "flatness": {"sigmas": list(sigmas), "accuracy": list(left)},
        "task_probabilities": {"kind": kind, "mass": list(mass)},
    }
    return {"predictors": {name: found}, **more}


def claim(name: str, runs: list[dict[str, Any]]) -> Claim:
    return {claim.name: claim for claim in check_claims(runs)}[name]


def test_runs_that_cannot_speak_to_a_claim_leave_it_open() -> None:
    claims = check_claims([])
    assert [claim.name for claim in claims] == [
        "stable_best",
        "lower_variance",
        "flatter_minima",
        "less_task_bias",
        "better_calibrated",
        "chance_helps",
    ]
    assert all(claim.holds is None and claim.needs and claim.text for claim in claims)
    assert all(c.holds is None for c in check_claims([run("er"), run("mean-er")]))


def test_the_stable_network_is_best_in_most_settings() -> None:
    best = {"stable": 90.0, "plastic": 89.0, "working": 85.0}
    second = {"stable": 88.0, "plastic": 89.0, "working": 85.0}
    runs = [run("clser", accuracy=best, buffer_size=b) for b in (200, 500)]
    runs.append(run("clser", accuracy=second, stream="mnist-360"))
    found = claim("stable_best", runs)
    assert found.holds is True
    assert [e.holds for e in found.evidence] == [True, True, False]
    assert found.evidence[2].setting == "mnist-360 (mnist), buffer 500"
    assert found.evidence[2].numbers["plastic"].mean == 89
    assert claim("stable_best", runs[1:]).holds is False  # one of two is not most


def test_a_tie_does_not_bear_a_claim_out() -> None:
    assert claim("stable_best", [run("clser", accuracy=80.0)]).holds is False


def test_variance_is_that_over_seeds() -> None:
    runs = [run("clser", s, accuracy=a) for s, a in enumerate((90.0, 91.0, 92.0))]
    runs += [run("mean-er", s, accuracy=a) for s, a in enumerate((88.0, 92.0))]
    found = claim("lower_variance", runs)
    assert found.holds is True
    (evidence,) = found.evidence
    assert evidence.numbers["clser"].mean == pytest.approx(1.0)
    assert evidence.numbers["mean-er"].mean == pytest.approx(8**0.5)
    assert evidence.also["accuracy"]["clser"].mean == 91
    assert evidence.clear is False  # two seeds say little about a variance
    many = [run("clser", s, accuracy=90.0 + s % 2) for s in range(20)]
    many += [run("mean-er", s, accuracy=80.0 + 10 * (s % 2)) for s in range(20)]
    assert claim("lower_variance", many).evidence[0].clear is True
    assert claim("lower_variance", runs[:1] + runs[3:]).holds is None  # one seed has no variance


def test_calibration_is_compared_with_every_rival_there_is() -> None:
    ours = run("clser", analysis=analysis("stable", ece=0.05))
    worse = run("er", analysis=analysis("working", ece=0.2))
    better = run("derpp", analysis=analysis("working", ece=0.04))
    assert claim("better_calibrated", [ours, worse]).holds is True
    assert claim("better_calibrated", [ours, worse, better]).holds is False
    assert claim("better_calibrated", [ours, run("er")]).holds is None  # not analysed


def test_runs_without_an_analysis_leave_the_word_to_those_with_one() -> None:
    ours = [run("clser", analysis=analysis("stable", ece=0.05)), run("clser", seed=1)]
    er = [run("er", seed=s, analysis=analysis("working", ece=0.2 + s / 10)) for s in range(2)]
    (evidence,) = claim("better_calibrated", [*ours, *er]).evidence
    assert evidence.numbers["clser"] == Spread(0.05, None, 1)
    assert evidence.numbers["er"].seeds == 2


def test_flatness_is_the_share_of_the_accuracy_that_noise_leaves() -> None:
    # ER keeps less in percent, but more of what it had.
    ours = run("clser", analysis=analysis("stable", left=(90.0, 45.0, 27.0), sigmas=(0, 0.1, 0.2)))
    er = run("er", analysis=analysis("working", left=(40.0, 30.0, 20.0), sigmas=(0, 0.1, 0.2)))
    (evidence,) = claim("flatter_minima", [ours, er]).evidence
    assert evidence.numbers["clser"].mean == pytest.approx(0.4)
    assert evidence.numbers["er"].mean == pytest.approx(0.625)
    assert not evidence.holds


def test_curves_over_other_strengths_are_not_compared() -> None:
    ours = run("clser", analysis=analysis("stable"))
    er = run("er", analysis=analysis("working", sigmas=(0, 0.2)))
    assert claim("flatter_minima", [ours, er]).holds is None


def test_bias_is_the_last_tasks_distance_from_an_equal_share() -> None:
    ours = run("clser", analysis=analysis("stable", mass=(0.3, 0.1, 0.3, 0.3)))
    er = run("er", analysis=analysis("working", mass=(0.2, 0.2, 0.2, 0.4)))
    (evidence,) = claim("less_task_bias", [ours, er]).evidence
    assert evidence.holds
    assert evidence.numbers["clser"].mean == pytest.approx(0.05)
    assert evidence.numbers["er"].mean == pytest.approx(0.15)
    assert evidence.also["distance from uniform"]["clser"].mean == pytest.approx(0.15)


def test_without_tasks_bias_is_the_distance_of_the_classes_from_equal_shares() -> None:
    ours = run("clser", analysis=analysis("stable", mass=(0.4, 0.6), kind="class"))
    er = run("er", analysis=analysis("working", mass=(0.2, 0.8), kind="class"))
    (evidence,) = claim("less_task_bias", [ours, er]).evidence
    assert evidence.holds
    assert evidence.numbers["er"].mean == pytest.approx(0.3)


def test_updates_by_chance_are_compared_with_regular_ones_alike_in_all_else() -> None:
    agreement = {"predictors": ["stable", "plastic"], "matrix": [[1, 0.9], [0.9, 1]]}
    coin = run("clser", accuracy=91.0, analysis=analysis("stable", agreement=agreement))
    every = run("clser", accuracy=90.0, update="regular")
    other = run("clser", accuracy=99.0, update="regular", values={"lr": 0.2})
    found = claim("chance_helps", [coin, every, other])
    (evidence,) = found.evidence
    assert found.holds is True
    assert evidence.setting == "clser on s-mnist (mnist), buffer 500"
    assert {u: s.mean for u, s in evidence.numbers.items()} == {"random": 91, "regular": 90}
    assert evidence.also["agreement of stable and plastic"]["random"].mean == 0.9


def test_memories_that_are_updated_at_every_step_say_nothing_about_chance() -> None:
    always = {"rate": 1.0}
    runs = [run("mean-er", values=always), run("mean-er", values=always, update="regular")]
    assert claim("chance_helps", runs).holds is None
    often = {"stable_rate": 0.9, "plastic_rate": 1.0}
    runs = [
        run("clser", accuracy=91.0, values=often),
        run("clser", accuracy=90.0, values=often, update="regular"),
    ]
    assert claim("chance_helps", runs).holds is True


def test_regular_updates_do_not_stand_for_the_method() -> None:
    best = {"stable": 90.0, "plastic": 89.0, "working": 85.0}
    worst = {"stable": 80.0, "plastic": 89.0, "working": 85.0}
    runs = [run("clser", s, accuracy=worst, update="regular") for s in range(5)]
    assert claim("stable_best", [*runs, run("clser", accuracy=best)]).holds is True


def test_published_settings_stand_for_a_method_before_others() -> None:
    best = {"stable": 90.0, "plastic": 89.0, "working": 85.0}
    worst = {"stable": 80.0, "plastic": 89.0, "working": 85.0}
    runs = [run("clser", s, accuracy=worst, published=False, values={}) for s in range(5)]
    assert claim("stable_best", [*runs, run("clser", accuracy=best)]).holds is True


@pytest.mark.parametrize(
    ("theirs", "clear"), [((80.0, 81.0, 82.0), True), ((88.0, 90.0, 92.0), False)]
)
def test_a_clear_difference_is_more_than_two_standard_errors(
    theirs: tuple[float, ...], clear: bool
) -> None:
    runs = [
        run("clser", s, accuracy={"stable": a, "plastic": b, "working": 50.0 + s})
        for s, (a, b) in enumerate(zip((90.0, 91.0, 92.0), theirs, strict=True))
    ]
    (evidence,) = claim("stable_best", runs).evidence
    assert (evidence.holds, evidence.clear) == (True, clear)


def test_a_claim_can_be_written_as_json() -> None:
    found = claim("stable_best", [run("clser", accuracy=80.0)])
    plain = json.loads(json.dumps(found.plain()))
    assert (plain["name"], plain["holds"]) == ("stable_best", False)
    assert plain["evidence"][0]["numbers"]["stable"] == {"mean": 80.0, "std": None, "seeds": 1}


def test_other_data_are_another_setting() -> None:
    ours = run("clser", analysis=analysis("stable", ece=0.05))
    er = run("er", analysis=analysis("working", ece=0.2), data="mnist5k")
    assert claim("better_calibrated", [ours, er]).holds is None
