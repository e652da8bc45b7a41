"""Results over seeds: grouping, labels, published figures, verdicts and summaries."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.config import RunConfig, parse_seeds
from perdure.presets import Figure, paper_figures
from perdure.results.records import PrequentialResult, Timing
from perdure.results.table import group, on_different_streams, shared_name, slug
from perdure.results.verdict import Spread, published_spread, verdict
from perdure.streams.gcil import MemoryDraws

from . import made
from .made import collection, record, setting

CIFAR: dict[str, Any] = {"stream": "s-cifar10", "dataset": "cifar10", "network": "resnet18"}


# -- mean and standard deviation ------------------------------------------------------------


def test_seeds_of_a_setting_are_grouped_in_order() -> None:
    found = setting(*(record(seed=seed, accuracy=90.0 + seed) for seed in (10, 2, 0)))
    assert found.seeds == [0, 2, 10]
    assert found.predictors == ["stable", "plastic", "working"]
    spread = found.spread()
    assert spread == found.spread("stable")
    assert spread is not None
    assert (spread.mean, spread.seeds) == (94.0, 3)
    assert spread.std == pytest.approx(5.2915, abs=1e-4)
    assert str(spread) == "94.00 ± 5.29"
    assert spread.error == pytest.approx(5.2915 / 3**0.5)


def test_one_seed_has_no_deviation() -> None:
    spread = setting(record(accuracy=91.234)).spread()
    assert spread == Spread(91.234, None, 1)
    assert (str(spread), spread.error) == ("91.23", None)


def test_a_number_that_one_seed_lacks_has_no_spread() -> None:
    found = setting(record(), record(seed=1, overlap=True))
    assert found.spread(kind="task_il") is None
    assert found.spread(key="forgetting") is None
    assert found.spread() is not None


# -- grouping -------------------------------------------------------------------------------


def test_comparisons_are_named_by_what_departs_from_the_usual() -> None:
    found = collection(
        record(dataset="mnist5k", max_steps=30),
        record(stream="mnist-360"),
        record(),
        record(dataset="mnist5k"),
        record(stream_seed=7, validation=0.1),
        record(network="mine:network"),
    )
    assert {comparison.name for comparison in found.comparisons} == {
        "s-mnist",
        "s-mnist (mine:network)",
        "s-mnist (mnist5k)",
        "s-mnist (mnist5k, first 30 steps)",
        "s-mnist (stream seed 7, validation on 0.1)",
        "mnist-360",
    }
    assert found.comparisons[-1].name == "mnist-360"  # the catalog's order


def test_different_data_of_the_same_name_is_not_compared() -> None:
    found = collection(*(record(seed=i, data_checksum=str(i) * 16) for i in range(3)))
    names = [comparison.name for comparison in found.comparisons]
    assert len({slug(name) for name in names}) == 3
    assert all(len(comparison.settings) == 1 for comparison in found.comparisons)


def test_labels_name_what_departs_from_the_usual() -> None:
    (found,) = collection(
        record(update="regular"),
        record(hyperparameters={"stable_rate": 0.5}),
        record(),
        record(buffer_size=200),
        record(device="cuda", precision="bf16", engine="captured"),
    ).comparisons
    assert sorted(s.label for s in found.settings) == [
        "CLS-ER 200",
        "CLS-ER 500",
        "CLS-ER 500 (device cuda)",
        "CLS-ER 500 (stable rate 0.5)",
        "CLS-ER 500 (update regular)",
    ]


def test_methods_are_ordered_as_tables_list_them() -> None:
    methods = ("sgd", "gem", "er", "derpp", "mean-er", "clser", "joint")
    (found,) = collection(*map(record, methods)).comparisons
    assert [s.config.method for s in found.settings] == [
        *("joint", "clser", "mean-er", "derpp", "er", "gem", "sgd"),
    ]


def test_the_setting_closest_to_the_published_one_represents_a_method() -> None:
    (found,) = collection(
        *(record(seed=i, hyperparameters={"stable_rate": 0.5}) for i in range(3)),
        record(),
        record("er", buffer_size=200),
        record("sgd"),
    ).comparisons
    assert found.buffers() == ["200", "500"]
    assert [s.label for s in found.by_method("500").values()] == ["CLS-ER 500", "SGD"]
    assert [s.label for s in found.by_method("200").values()] == ["ER 200", "SGD"]


def test_grouping_does_not_depend_on_the_order_of_runs() -> None:
    runs = [record(m, seed) for m in ("er", "clser") for seed in (1, 0)]
    assert group(runs) == group(runs[::-1])


# -- published figures ----------------------------------------------------------------------


def test_the_published_settings_have_the_published_figure() -> None:
    assert [f.mean for f in setting(record()).figures()] == [92.05]
    assert [f.mean for f in setting(record()).figures("plastic")] == [92.04]
    assert [f.mean for f in setting(record("sgd")).figures()] == [19.60]
    assert setting(record("er")).figures("none such") == []


def test_a_published_value_given_explicitly_changes_nothing() -> None:
    explicit = record(hyperparameters={"epochs": 1, "lr": 0.1})
    assert explicit.config == record().config
    assert setting(explicit).figures() == setting(record()).figures()


@pytest.mark.parametrize(
    "changed",
    [
        {"dataset": "mnist5k"},
        {"hyperparameters": {"lr": 0.05}},
        {"max_steps": 500},
        {"validation": 0.1},
        {"network": "mine:network"},
        {"update": "regular"},
        {"buffer_size": 300},
        {"complete": False},
        {"stream": "p-mnist", "stream_seed": 7},
        {"stream": "p-mnist", "stream_seed": "per-run"},
    ],
    ids=repr,
)
def test_other_settings_have_no_published_figure(changed: dict[str, Any]) -> None:
    found = setting(record(**changed))
    assert found.figures() == []
    assert found.verdict() is None


@pytest.mark.parametrize("stream", ["gcil-cifar100-uniform", "gcil-cifar100-longtail"])
@pytest.mark.parametrize("method", ["sgd", "joint", "er", "derpp", "clser"])
@pytest.mark.parametrize("buffer_size", [200, 500, 1000])
def test_gcil_figures_belong_to_the_stream_that_the_method_saw(
    stream: str, method: str, buffer_size: int
) -> None:
    gcil: dict[str, Any] = {
        "stream": stream,
        "dataset": "cifar100",
        "network": "resnet18",
        "buffer_size": buffer_size,
    }
    fixed = setting(record(method, **gcil))
    assert bool(fixed.figures()) == (method in ("sgd", "joint"))
    if method not in ("sgd", "joint"):
        published = setting(record(method, **gcil, stream_seed="published"))
        assert published.figures(table="3")
        assert "--stream-seed published" in published.command
        assert published.config.hash != fixed.config.hash
        draws = published.config.memory_draws()
        assert draws == MemoryDraws(buffer_size, 2 if method == "derpp" else 1, 100, 32)


def test_the_released_epochs_of_one_cell_give_another_published_stream() -> None:
    released = record(
        stream="gcil-cifar100-uniform",
        dataset="cifar100",
        network="resnet18",
        buffer_size=200,
        stream_seed="published",
        hyperparameters={"epochs": 200},
    ).config
    assert released.memory_draws() == MemoryDraws(200, 1, 200, 32)


def test_runs_with_different_published_streams_are_not_compared() -> None:
    gcil: dict[str, Any] = {"stream": "gcil-cifar100-uniform", "stream_seed": "published"}
    runs = [
        record("er", buffer_size=500, **gcil),
        record("clser", buffer_size=500, **gcil),
        record("derpp", buffer_size=500, **gcil),
        record("er", buffer_size=200, **gcil),
    ]
    found = [
        {(s.config.method, s.config.buffer_size) for s in comparison.settings}
        for comparison in collection(*runs).comparisons
    ]
    assert sorted(map(len, found)) == [1, 1, 2]
    assert {("er", 500), ("clser", 500)} in found


def test_published_streams_are_shown_together_but_not_compared() -> None:
    gcil: dict[str, Any] = {"stream": "gcil-cifar100-uniform", "stream_seed": "published"}
    methods = [("er", 1000), ("clser", 500), ("er", 500), ("derpp", 500), ("er", 200)]
    runs = [record(method, buffer_size=size, **gcil) for method, size in methods]
    fixed = record("er", stream="gcil-cifar100-uniform")
    found = collection(*runs, fixed)
    first, second = found.sections
    assert [setting.config.stream_seed for setting in first.settings] == [None]
    assert [setting.label for setting in second.settings] == [
        *("ER 200", "CLS-ER 500", "ER 500", "DER++ 500", "ER 1000"),
    ]
    names = [comparison.name for comparison in found.comparisons]
    assert len({slug(name) for name in names}) == len(names) == 5
    note = on_different_streams(second.settings)
    assert "CLS-ER 500 and ER 500" in note
    assert "DER++" not in note
    assert on_different_streams(first.settings) == ""
    assert on_different_streams([*first.settings, second.settings[0]])
    assert on_different_streams(collection(record(), record("er", max_steps=9)).settings) == ""


def test_what_settings_share_names_their_table() -> None:
    gcil: dict[str, Any] = {"stream": "gcil-cifar100-uniform", "dataset": "cifar100"}
    fixed = record("sgd", **gcil, max_steps=2)
    runs = [record(m, **gcil, max_steps=2, stream_seed="published") for m in ("er", "derpp")]
    several = shared_name(collection(*runs, fixed).settings)
    alone = shared_name(collection(*runs).settings)
    for name in (several, alone):
        assert name.startswith("gcil-cifar100-uniform")
        assert "mlp" in name
        assert "first 2 steps" in name
    assert "published" in alone
    assert "published" not in several


def test_the_published_task_il_accuracy_is_that_of_the_default_predictor() -> None:
    found = setting(record())
    figure = found.task_il_figure()
    assert figure is not None
    assert figure.mean == 98.95
    assert found.task_il_figure("working") is None
    assert setting(record(hyperparameters={"lr": 0.5})).task_il_figure() is None
    assert setting(record("er")).task_il_figure() is None


def test_runs_with_different_published_streams_are_not_trained_side_by_side() -> None:
    def config(method: str, buffer_size: int) -> RunConfig:
        return record(
            method,
            stream="gcil-cifar100-uniform",
            buffer_size=buffer_size,
            stream_seed="published",
        ).config

    er = config("er", 500)
    assert er.can_share_a_device(config("clser", 500))
    assert not er.can_share_a_device(config("derpp", 500))
    assert not er.can_share_a_device(config("er", 200))


def test_the_stream_seed_of_the_paper_may_be_given() -> None:
    assert setting(record(stream="p-mnist", stream_seed=0)).figures()


def test_a_row_of_the_sensitivity_table_has_its_own_figure() -> None:
    row = {"consistency_weight": 0.1, "stable_rate": 0.1, "plastic_rate": 0.2}
    found = setting(record(hyperparameters=row, **CIFAR))
    assert [(f.table, f.mean) for f in found.figures()] == [("S3", 73.53)]
    assert not found.config.is_published
    other = setting(record(hyperparameters={**row, "lr": 0.5}, **CIFAR))
    assert other.figures() == []


# -- verdicts -------------------------------------------------------------------------------


def figure(mean: float, std: float | None, table: str = "1") -> Figure:
    return Figure(table, "s-mnist", "er", 200, None, mean, std)


@pytest.mark.parametrize(
    ("ours", "published", "status"),
    [
        (Spread(81.5, 0.0, 10), figure(80.0, 0.0), "agrees"),
        (Spread(81.6, 0.0, 10), figure(80.0, 0.0), "above"),
        (Spread(78.4, None, 1), figure(80.0, None), "below"),
        (Spread(76.1, 2.0, 2), figure(80.0, 5.0), "agrees"),  # two standard errors are 4.2
        (Spread(75.7, 2.0, 2), figure(80.0, 5.0), "below"),
        (Spread(84.1, None, 1), figure(80.0, 2.0), "agrees"),  # a spread of 2 is assumed
        (Spread(84.3, None, 1), figure(80.0, 2.0), "above"),
    ],
)
def test_results_agree_within_a_tolerance_or_two_standard_errors(
    ours: Spread, published: Figure, status: str
) -> None:
    assert verdict(ours, published).status == status
    assert verdict(ours, published).difference == pytest.approx(ours.mean - published.mean)


def test_figures_over_fewer_runs_have_a_larger_error() -> None:
    ten, three = (published_spread(figure(80.0, 1.0, table)).error for table in ("1", "S3"))
    assert ten == pytest.approx(10**-0.5)
    assert three == pytest.approx(3**-0.5)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_the_verdict_is_about_the_first_figure(means: list[float]) -> None:
    runs = [record(seed=i, accuracy=mean) for i, mean in enumerate(means)]
    found = setting(*runs)
    spread, (first,) = found.spread(), found.figures()[:1]
    assert spread is not None
    assert found.verdict() == verdict(spread, first)


# -- summaries and commands -----------------------------------------------------------------


def test_a_summary_is_plain_json() -> None:
    found = setting(*(record("er", seed=s, accuracy=80.0 + 4 * s) for s in range(3)))
    assert json.loads(json.dumps(found.summary(), allow_nan=False)) == {
        "stream": "s-mnist",
        "data": "mnist",
        "method": "er",
        "buffer_size": 500,
        "hash": found.config.hash,
        "seeds": [0, 1, 2],
        "complete": True,
        "steps": [200, 200, 200],
        "predictors": {
            "working": {
                "class_il": {"mean": 84.0, "std": 4.0, "by_seed": [80.0, 84.0, 88.0]},
                "task_il": {"mean": 98.0, "std": 0.0, "by_seed": [98.0] * 3},
                "incremental": {"mean": 84.0, "std": 4.0, "by_seed": [80.0, 84.0, 88.0]},
                "forgetting": {"mean": 1.0, "std": 0.0, "by_seed": [1.0] * 3},
            }
        },
        "seconds": 90.0,  # 60 each, two at a time
    }


def test_a_summary_names_the_processors_and_versions_of_torch() -> None:
    machines = [("AVX512", "2.13.0+cpu"), ("AVX2", "2.13.0+cpu"), (None, None)]
    timings = [Timing(processor=processor, torch=torch) for processor, torch in machines]
    runs = [replace(record("er", seed=s), timing=timing) for s, timing in enumerate(timings)]
    found = setting(*runs).summary()
    assert (found["processors"], found["torch"]) == (["AVX2", "AVX512"], ["2.13.0+cpu"])
    assert not {"processors", "torch"} & set(setting(runs[2]).summary())


def test_a_summary_has_prequential_accuracies_by_seed() -> None:
    values = [PrequentialResult(window=9, samples=99, accuracy=a, overall=a + 1) for a in (60, 70)]
    runs = [record("er", seed=s) for s in range(2)]
    runs = [
        replace(run, result=msgspec.structs.replace(run.result, prequential=value))
        for run, value in zip(runs, values, strict=True)
    ]
    found = setting(*runs).summary()["prequential_accuracy"]
    assert (found["overall"]["mean"], found["overall"]["by_seed"]) == (66, [61, 71])
    assert (found["last_window"]["mean"], found["last_window"]["by_seed"]) == (65, [60, 70])


def test_a_summary_names_what_departs_from_the_usual() -> None:
    changed = record(hyperparameters={"lr": 0.05}, max_steps=30, validation=0.1, update="regular")
    found = setting(changed).summary()
    assert found["departures"] == {"lr": 0.05}
    assert (found["max_steps"], found["validation"], found["update"]) == (30, 0.1, "regular")
    assert "stream_seed" not in found


def test_the_last_test_is_summarised_where_tests_overlap() -> None:
    (overlapping,) = setting(record("er", overlap=True)).summary()["predictors"].values()
    assert overlapping["last_test"] == {"mean": 70.0, "std": None, "by_seed": [70.0]}
    assert overlapping["task_il"] == {"mean": None, "std": None, "by_seed": []}
    (others,) = setting(record("er")).summary()["predictors"].values()
    assert "last_test" not in others


def test_time_is_unknown_if_it_is_unknown_for_one_run() -> None:
    run = record(seed=1)
    unknown = replace(run, timing=Timing())
    assert setting(record(), unknown).seconds() is None


@pytest.mark.parametrize(
    ("seeds", "text"), [([0, 1, 2], "0:3"), ([0, 4], "0,4"), ([7], "7"), ([0, 2**62], f"0,{2**62}")]
)
def test_the_command_names_the_seeds_that_finished(seeds: list[int], text: str) -> None:
    words = shlex.split(setting(*(record(seed=seed) for seed in seeds)).command)
    assert words[:3] == ["perdure", "run", "s-mnist"]
    assert parse_seeds(words[words.index("--seeds") + 1]) == seeds
    assert text in words


def test_names_in_commands_are_quoted() -> None:
    text = setting(record(network="my module:$(rm -rf *)")).command
    assert "my module:$(rm -rf *)" in shlex.split(text)


def test_every_identifying_setting_changes_the_hash() -> None:
    base = made.config()
    others: dict[str, Any] = {
        "stream": "r-mnist",
        "dataset": "mnist5k",
        "data_checksum": "1",
        "network": "n",
        "stream_seed": 1,
        "validation": 0.1,
        "max_steps": 3,
        "method": "er",
        "buffer_size": 2,
        "buffer_bytes": 2,
        "hyperparameters": {"lr": 0.2, "batch": 10, "epochs": 1},
        "optimizer": "adam",
        "update": "regular",
        "device": "cuda",
        "precision": "bf16",
        "engine": "captured",
        "deterministic": True,
        "ranks": 2,
        "prequential": True,
        "prequential_window": 10,
        "initial_evaluation": True,
    }
    assert set(others) == set(base.identity())
    hashes = {replace(base, **{name: value}).hash for name, value in others.items()}
    assert len(hashes | {base.hash}) == len(others) + 1
    remarks: dict[str, Any] = {
        "data_root": "/data",
        "memory_device": "cpu",
        "memory_folder": "/scratch",
        "notes": ("a note",),
    }
    assert replace(base, **remarks).hash == base.hash


def test_a_new_setting_leaves_the_hashes_of_earlier_runs_alone() -> None:
    base = made.config()
    field = dataclasses.field(default=None, metadata={"role": "method"})
    extended = dataclasses.make_dataclass(
        "Extended", [("clip", float | None, field)], bases=(RunConfig,), frozen=True, kw_only=True
    )
    settings = base.select("comparison", "method", "execution", "remark")
    assert extended(**settings).hash == base.hash
    changed = extended(**settings, clip=0.1)
    assert changed.hash != base.hash
    assert base.is_published
    assert not changed.is_published


def test_every_figure_of_the_paper_belongs_to_settings_that_can_be_run() -> None:
    for published in paper_figures("S3")[:3]:
        its = made.config(hyperparameters=published.settings, **CIFAR)
        assert published in its.published_figures("S3")
