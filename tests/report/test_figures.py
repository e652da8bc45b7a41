"""What figures show, compared with numbers computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure import catalog
from perdure.report.charts import Areas, Bars, Curves, Dots, Figure, HeatMap, Reliability
from perdure.report.figures import figures, overview
from perdure.report.figures.common import method_style
from perdure.report.figures.training import MAX_POINTS, metric
from perdure.results import RunRecord, read_run
from perdure.results.records import MetricsEvent

from . import made

NAMES = (
    *("tasks", "probabilities", "calibration", "flatness", "confusion"),
    *("agreement", "losses", "replay-sources", "memory"),
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """The figures of five methods with three seeds each, by the end of their names."""
    root = made.make_runs(tmp_path_factory.mktemp("runs"))
    found = figures(made.comparison(root), "500")
    return {figure.name.removeprefix("s-mnist-500-"): figure for figure in found}


def chart(figure: Figure, title: str) -> Any:
    (one,) = (c for c in figure.charts if c.title == title)
    return one


def test_there_is_every_figure_named_for_its_file(found: dict[str, Figure]) -> None:
    assert tuple(found) == NAMES
    assert all(figure.name == f"s-mnist-500-{end}" for end, figure in found.items())
    assert all(figure.caption.endswith(".") for figure in found.values())


def test_task_accuracy_is_the_mean_matrix_after_each_task(
    found: dict[str, Figure],
) -> None:
    titles = [p.title for p in found["tasks"].charts]
    assert titles == [
        *("CLS-ER, stable", "CLS-ER, plastic", "CLS-ER, working"),
        *("Mean-ER, mean", "Mean-ER, working", "DER++", "ER", "SGD"),
    ]
    stable = chart(found["tasks"], "CLS-ER, stable")
    assert isinstance(stable, HeatMap)
    assert stable.rows == stable.columns == ("1", "2", "3", "4", "5")
    assert stable.values[0] == (97.0, 0.0, None, None, None)  # 92 + 4 and the mean seed, 1
    assert stable.values[4] == (93.0,) * 5


def test_probabilities_are_in_percent(found: dict[str, Figure]) -> None:
    (bars,) = found["probabilities"].charts
    assert isinstance(bars, Bars)
    assert bars.equal == 20.0
    assert [one.label for one in bars.series] == ["CLS-ER", "Mean-ER", "DER++", "ER", "SGD"]
    assert bars.series[0].values == pytest.approx((10.0, 10.0, 10.0, 20.0, 50.0))
    assert bars.series[0].std == pytest.approx((0.0,) * 5)


def test_reliability_weights_seeds_by_their_counts(tmp_path: Path) -> None:
    for seed, (count, accuracy, ece) in enumerate([(10, 0.8, 0.1), (30, 0.4, 0.2)]):
        folder = made.make_run(tmp_path, method="er", seed=seed)
        content = made.analysis(["working"], ece=ece)
        one = content["predictors"]["working"]["calibration"]["bins"][1]
        one |= {"count": count, "accuracy": accuracy}
        (folder / "analysis.json").write_text(json.dumps(content))
    (figure,) = (
        f for f in figures(made.comparison(tmp_path), "500") if f.name.endswith("calibration")
    )
    (shown,) = figure.charts
    assert isinstance(shown, Reliability)
    assert shown.edges == (0.0, 0.5, 1.0)
    assert shown.accuracy[0] is None
    assert shown.accuracy[1] == pytest.approx(50.0)
    assert shown.share == (0.0, 1.0)
    assert shown.ece == pytest.approx(15.0)
    assert shown.ece_std == pytest.approx(7.0711, abs=1e-4)


def test_flatness_shows_accuracy_and_loss_of_all_networks_of_clser(
    found: dict[str, Figure],
) -> None:
    accuracy, loss = found["flatness"].charts
    assert isinstance(accuracy, Curves)
    assert isinstance(loss, Curves)
    assert [line.label for line in accuracy.lines] == [
        *("CLS-ER, stable", "CLS-ER, plastic", "CLS-ER, working", "Mean-ER, mean"),
        *("DER++", "ER", "SGD"),
    ]
    assert accuracy.lines[0].x == tuple(made.SIGMAS)
    assert accuracy.lines[0].y == (95.0, 80.0, 40.0)
    assert loss.lines[0].y == pytest.approx((0.1, 0.5, 2.0))
    styles = [line.style for line in accuracy.lines]
    assert len(set(styles)) == len(styles)


def test_confusion_in_percent_of_the_true_class(found: dict[str, Figure]) -> None:
    clser = chart(found["confusion"], "CLS-ER")
    assert isinstance(clser, HeatMap)
    assert clser.values[0][:2] == pytest.approx((100 * 90 / 99, 100 / 99))


def test_agreement_where_there_are_several_networks(found: dict[str, Figure]) -> None:
    assert [p.title for p in found["agreement"].charts] == ["CLS-ER", "Mean-ER"]
    clser = chart(found["agreement"], "CLS-ER")
    assert clser.values[0] == pytest.approx((100.0, 95.0, 95.0))
    assert clser.low == 90.0


def test_losses_are_the_recorded_means(found: dict[str, Figure]) -> None:
    loss, consistency = found["losses"].charts
    assert isinstance(loss, Curves)
    assert isinstance(consistency, Curves)
    assert loss.lines[0].x == tuple(float(step) for step in range(100, 1001, 100))
    assert loss.lines[0].y == pytest.approx([step / 1000 for step in range(100, 1001, 100)])
    assert [line.label for line in consistency.lines] == ["CLS-ER"]
    assert consistency.lines[0].y == pytest.approx((0.1,) * 10)
    assert loss.marks == (200.0, 400.0, 600.0, 800.0)


def test_sources_of_replay_logits_over_the_stream_and_by_age(found: dict[str, Figure]) -> None:
    stream, age = found["replay-sources"].charts
    assert isinstance(stream, Areas)
    assert isinstance(age, Bars)
    stable, plastic = stream.layers
    assert (stable.label, plastic.label) == ("stable", "plastic")
    assert stable.values == pytest.approx((25.0,) * 10)
    assert plastic.values == pytest.approx((75.0,) * 10)
    assert age.categories == ("1", "2")
    assert age.series[0].values == pytest.approx((10.0, 40.0))
    assert age.stacked


def test_seeds_with_different_numbers_of_age_bins_are_added(tmp_path: Path) -> None:
    for seed in range(2):
        folder = made.make_run(tmp_path, seed=seed)
        edges, stable, total = [1, 2, 4, 8], [10, 40, 60], [100, 100, 60]
        cut = 3 - seed
        event = {"edges": edges[: cut + 1], "stable": stable[:cut], "total": total[:cut]}
        line = json.dumps({"event": "ages", "step": 1000, **event})
        (folder / "events.jsonl").write_text(line + "\n")
    (figure,) = (
        f for f in figures(made.comparison(tmp_path), "500") if f.name.endswith("replay-sources")
    )
    (age,) = figure.charts
    assert isinstance(age, Bars)
    assert age.series[0].values == pytest.approx((10.0, 40.0, 100.0))


def test_memory_by_class_for_methods_with_a_memory(found: dict[str, Figure]) -> None:
    assert [p.title for p in found["memory"].charts] == ["CLS-ER", "Mean-ER", "DER++", "ER"]
    clser = chart(found["memory"], "CLS-ER")
    assert isinstance(clser, Areas)
    assert len(clser.layers) == 10
    assert clser.layers[0].values[-1] == 50.0
    assert len({layer.style.colour for layer in clser.layers}) == 10


def test_a_memory_that_stayed_empty_has_no_chart(tmp_path: Path) -> None:
    for method, stored in (("gem", 0), ("er", 5)):
        folder = made.make_run(tmp_path, method=method)
        events = [{"event": "memory", "step": step, "classes": [stored]} for step in (100, 200)]
        ages = {"event": "ages", "step": 200, "edges": [1, 2], "stable": [0], "total": [0]}
        lines = "".join(f"{json.dumps(event)}\n" for event in [*events, ages])
        (folder / "events.jsonl").write_text(lines)
    shown = {f.name: f for f in figures(made.comparison(tmp_path), "500")}
    assert [chart.title for chart in shown["s-mnist-500-memory"].charts] == ["ER"]
    assert "s-mnist-500-replay-sources" not in shown


def test_final_accuracy_next_to_the_published_one(tmp_path: Path) -> None:
    made.make_runs(tmp_path)
    figure = overview(made.section(tmp_path))
    assert figure is not None
    (dots,) = figure.charts
    assert isinstance(dots, Dots)
    first, *_, last = dots.dots
    assert (first.label, first.mean, first.published_mean) == ("CLS-ER 500", 93.0, 92.05)
    assert last.label == "SGD"
    assert dots.lowest is not None
    assert last.mean < dots.lowest <= first.mean  # SGD is off the scale


def test_a_stream_without_tasks_shows_classes(tmp_path: Path) -> None:
    made.make_run(tmp_path, "mnist-360", tests=["all"])
    first = figures(made.comparison(tmp_path), "500")[0]
    (shown,) = first.charts
    assert first.name == "mnist-360-500-classes"
    assert isinstance(shown, HeatMap)
    assert shown.columns == tuple(str(i) for i in range(9))  # no test has a nine
    assert shown.values[0] == (92.0,) * 9


def test_without_analyses_and_events_the_remaining_figures_are_shown(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path, analysed=False)
    (folder / "events.jsonl").unlink()
    assert [f.name for f in figures(made.comparison(tmp_path), "500")] == ["s-mnist-500-tasks"]


def test_a_figure_is_plain_json(found: dict[str, Figure]) -> None:
    for figure in found.values():
        data = json.loads(json.dumps(figure.to_json(), allow_nan=False))
        assert [p["kind"] for p in data["charts"]] == [type(p).__name__ for p in figure.charts]
        assert data["title"] == figure.title
    first = found["tasks"].to_json()["charts"][0]
    assert first["values"][0] == (97.0, 0.0, None, None, None)


def test_methods_are_told_apart() -> None:
    styles = {method: method_style(method) for method in catalog.METHODS}
    assert len(set(styles.values())) == len(styles)
    assert {style.dash for style in styles.values()} == {"solid", "dashdot"}  # others: networks
    assert method_style("my:Method") == method_style("my:Method")


def test_legends_name_each_series_once(found: dict[str, Figure]) -> None:
    assert [label for label, _, _ in found["losses"].legend()] == [
        *("CLS-ER", "Mean-ER", "DER++", "ER", "SGD"),
    ]
    assert found["tasks"].legend() == []
    assert len(found["memory"].legend()) == 10


def with_metrics(run: RunRecord, values: list[tuple[int, dict[str, float]]]) -> RunRecord:
    return replace(run, events=tuple(MetricsEvent(step, means) for step, means in values))


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    return read_run(made.make_run(tmp_path))


def test_long_runs_are_averaged_over_intervals(run: RunRecord) -> None:
    many = with_metrics(run, [(step, {"loss": float(step)}) for step in range(1, 1001)])
    curve = metric(many, "loss")
    assert curve is not None
    assert len(curve.steps) <= MAX_POINTS + 1
    assert curve.steps[-1] == 1000
    width = int(curve.steps[0])
    assert curve.values[0] == pytest.approx(sum(range(1, width + 1)) / width)


def test_averages_are_weighted_by_the_steps_they_cover(run: RunRecord) -> None:
    steps = [*range(1, 121)]
    means = [
        (10 * step if step % 2 else 10 * step + 8, {"loss": float(step % 2)}) for step in steps
    ]
    curve = metric(with_metrics(run, means), "loss")
    assert curve is not None
    assert curve.values[1:] == pytest.approx([2 / 20] * (len(curve.values) - 1))


def test_shares_are_ratios_of_sums(run: RunRecord) -> None:
    values = [(100, {"a": 1.0, "b": 3.0}), (300, {"a": 4.0, "b": 0.0}), (400, {"a": 0.0, "b": 0.0})]
    curve = metric(with_metrics(run, values), "a", ("a", "b"))
    assert curve is not None
    assert (curve.steps, curve.values) == ((100.0, 300.0), [0.25, 1.0])
    assert metric(run, "no such metric") is None
