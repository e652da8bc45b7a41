"""The figures of the paper are complete, as printed, and consistent where the paper is."""

from __future__ import annotations

from collections import Counter
from types import EllipsisType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.presets import Figure, find, paper_figures, published_code_figures

TABLES = {"1": 103, "2": 17, "3": 22, "S1": 72, "S2": 40, "S3": 144}
GCIL = ("gcil-cifar100-uniform", "gcil-cifar100-longtail")


def one(
    table: str, stream: str, method: str, buffer_size: int | None, predictor: str | None = None
) -> Figure:
    (figure,) = paper_figures(table, stream, method, buffer_size, predictor)
    return figure


def means(table: str, stream: str, method: str, predictor: str | None = None) -> list[float]:
    return [f.mean for f in paper_figures(table, stream, method, predictor=predictor)]


def test_every_table_is_complete() -> None:
    assert Counter(figure.table for figure in paper_figures()) == TABLES


def test_rows_per_method() -> None:
    assert Counter(f.method for f in paper_figures(table="1")) == {
        "joint": 5,
        "sgd": 5,
        "er": 15,
        "gem": 12,
        "icarl": 9,
        "fdr": 15,
        "gss": 12,
        "derpp": 15,
        "clser": 15,
    }
    assert Counter(f.method for f in paper_figures(table="2")) == {
        "joint": 1,
        "sgd": 1,
        "er": 3,
        "mer": 3,
        "gss": 3,
        "derpp": 3,
        "clser": 3,
    }


def test_no_figure_is_duplicated() -> None:
    keys = [
        (f.table, f.stream, f.method, f.buffer_size, f.predictor, *f.settings.items())
        for f in paper_figures()
    ]
    assert len(set(keys)) == len(keys)


def test_figures_are_accuracies() -> None:
    for figure in [*paper_figures(), *published_code_figures()]:
        assert 0 < figure.mean < 100
        assert figure.std is None or 0 < figure.std < 10
        assert (figure.buffer_size is None) == (figure.method in ("joint", "sgd"))
        assert (figure.predictor is None) == (figure.table not in ("S1", "S3"))


@pytest.mark.parametrize(
    ("table", "stream", "method", "buffer_size", "predictor", "mean", "std"),
    [
        ("1", "r-mnist", "sgd", None, None, 67.66, 8.53),
        ("1", "s-cifar10", "fdr", 5120, None, 19.70, 0.07),
        ("1", "p-mnist", "gss", 200, None, 63.72, 0.70),
        ("1", "s-tiny-imagenet", "icarl", 500, None, 9.38, 1.53),
        ("2", "mnist-360", "joint", None, None, 82.98, 3.24),
        ("2", "mnist-360", "mer", 1000, None, 70.91, 0.76),
        ("3", "gcil-cifar100-longtail", "sgd", None, None, 22.88, 0.53),
        ("3", "gcil-cifar100-longtail", "derpp", 500, None, 25.82, 0.83),
        ("S1", "s-tiny-imagenet", "clser", 5120, "plastic", 47.10, 0.42),
        ("S1", "mnist-360", "clser", 200, "working", 55.59, 1.74),
        ("S2", "s-cifar10", "mean-er", 5120, None, 84.84, 2.0),
        ("S2", "r-mnist", "mean-er", 200, None, 92.10, 1.07),
    ],
)
def test_figures_as_printed(
    table: str,
    stream: str,
    method: str,
    buffer_size: int | None,
    predictor: str | None,
    mean: float,
    std: float,
) -> None:
    figure = one(table, stream, method, buffer_size, predictor)
    assert (figure.mean, figure.std) == (mean, std)


def test_the_stable_model_is_clser_of_the_other_tables() -> None:
    compared = 0
    for figure in paper_figures(table="S1", predictor="stable"):
        table = "2" if figure.stream == "mnist-360" else "1"
        if figure.stream not in GCIL:
            other = one(table, figure.stream, "clser", figure.buffer_size)
            assert figure.mean == other.mean
            assert figure.std == pytest.approx(other.std, abs=0.021)
            compared += 1
    assert compared == 18


def test_gcil_figures_differ_between_tables_as_in_the_paper() -> None:
    uniform, longtail = GCIL
    assert means("3", uniform, "clser") == [25.06, 36.34, 39.69]
    assert means("3", longtail, "clser") == [28.54, 28.63, 39.52]
    assert means("S1", uniform, "clser", "stable") == [33.15, 37.01, 41.09]
    assert means("S1", longtail, "clser", "stable") == [29.57, 33.26, 39.21]


def test_the_ablation_repeats_the_main_table() -> None:
    for figure in paper_figures(table="S2"):
        if figure.method != "mean-er":
            main = one("1", figure.stream, figure.method, figure.buffer_size)
            assert (figure.mean, figure.std) == (main.mean, main.std)


def test_the_sweep_is_the_grid_above_the_diagonal() -> None:
    grid = {
        (weight, stable / 10, plastic / 10)
        for weight in (0.1, 0.15)
        for stable in (1, 2, 3)
        for plastic in range(stable + 1, 11)
    }
    for predictor in ("stable", "working", "plastic"):
        figures = paper_figures(table="S3", predictor=predictor)
        assert all(
            (f.stream, f.method, f.buffer_size) == ("s-cifar10", "clser", 500) for f in figures
        )
        assert {tuple(f.settings.values()) for f in figures} == grid
        assert len(figures) == len(grid)


def test_a_row_of_the_sweep() -> None:
    settings = {"consistency_weight": 0.15, "stable_rate": 0.1, "plastic_rate": 0.9}
    rows = [f for f in paper_figures(table="S3") if f.settings == settings]
    assert [(f.predictor, f.mean, f.std) for f in rows] == [
        ("stable", 74.61, 0.91),
        ("working", 63.47, 1.60),
        ("plastic", 70.49, 0.95),
    ]


def test_clser_is_published_wherever_the_paper_reports_it() -> None:
    for figure in paper_figures(method="clser") + paper_figures(method="mean-er"):
        preset = find(figure.method, figure.stream, figure.buffer_size)
        assert preset is not None
        assert preset.notes == ()


@given(
    st.none() | st.sampled_from([*TABLES, "4"]),
    st.none() | st.sampled_from(["s-mnist", "mnist-360", *GCIL]),
    st.none() | st.sampled_from(["clser", "sgd", "er"]),
    st.sampled_from([..., None, 200, 500]),
    st.none() | st.sampled_from(["stable", "working"]),
)
def test_a_query_returns_all_matching_figures(
    table: str | None,
    stream: str | None,
    method: str | None,
    buffer_size: int | EllipsisType | None,
    predictor: str | None,
) -> None:
    found = paper_figures(table, stream, method, buffer_size, predictor)

    def fits(figure: Figure) -> bool:
        pairs = [
            (table, figure.table),
            (stream, figure.stream),
            (method, figure.method),
            (predictor, figure.predictor),
        ]
        return all(asked is None or asked == own for asked, own in pairs) and (
            buffer_size is ... or buffer_size == figure.buffer_size
        )

    assert found == [figure for figure in paper_figures() if fits(figure)]


def test_measurements_of_the_published_code() -> None:
    figures = published_code_figures()
    assert {f.table for f in figures} == {"measured from the published code"}
    assert [
        (f.stream, f.buffer_size, f.method, f.mean, f.std, f.settings["runs"]) for f in figures
    ] == [
        ("s-mnist", 200, "clser", 88.62, 0.40, 5),
        ("s-mnist", 500, "clser", 91.77, 0.35, 5),
        ("s-mnist", 500, "er", 84.52, 2.88, 5),
        ("s-mnist", 500, "derpp", 91.41, 0.39, 3),
        ("r-mnist", 500, "clser", 92.73, None, 1),
        ("p-mnist", 500, "clser", 87.71, None, 1),
        ("mnist-360", 500, "clser", 75.26, 1.08, 3),
    ]
    assert all({"run_s", "step_ms", "learning_ms"} < set(f.settings) for f in figures)


def test_measurements_are_not_among_the_figures_of_the_paper() -> None:
    assert not {f.table for f in paper_figures()} & {f.table for f in published_code_figures()}
