"""The settings of the paper's tables and of users' grids."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.experiment.grid import (
    PAPER_TABLES,
    Cell,
    Grid,
    paper_grid,
    plan_grid,
    read_grid,
    select,
)
from perdure.presets import paper_figures


@pytest.mark.parametrize(
    ("name", "cells", "streams"),
    [
        # 4 streams with 7 methods less iCaRL on two, three buffers, and two without a buffer each
        ("table1", 103, 5),
        ("table2", 2 + 5 * 3, 1),
        ("table3", 2 * (2 + 3 * 3), 2),
        ("s1", 8 * 3, 8),
        ("s2", 5 * (2 + 2 * 3), 5),
        ("s3", 48, 1),
    ],
)
def test_a_table_has_a_cell_for_every_figure_of_the_paper(
    name: str, cells: int, streams: int
) -> None:
    grid = paper_grid(name)
    assert len(grid.cells) == cells
    assert len({cell.stream for cell in grid.cells}) == streams
    figures = paper_figures(PAPER_TABLES[name][0])
    wanted = [Cell(f.stream, f.method, f.buffer_size, f.settings) for f in figures]
    found = [replace(cell, stream_seed=None) for cell in grid.cells]
    assert all(cell in found for cell in wanted)
    assert all(cell in wanted for cell in found)


def test_table_3_is_reproduced_on_the_streams_that_the_paper_saw() -> None:
    grid = paper_grid("table3")
    seeds = {cell.method: cell.stream_seed for cell in grid.cells}
    published = dict.fromkeys(("er", "derpp", "clser"), "published")
    assert seeds == {"sgd": None, "joint": None, **published}  # these saw the fixed stream
    assert {cell.stream_seed for cell in select(grid, stream_seed="1993").cells} == {"1993"}
    assert {cell.stream_seed for cell in paper_grid("table1").cells} == {None}
    with pytest.raises(ValueError, match="--stream-seed"):
        select(paper_grid("table2"), stream_seed="1")


def test_tables_have_as_many_seeds_as_the_paper() -> None:
    assert {name: paper_grid(name).seeds for name in ("table1", "s3")} == {
        "table1": "0:10",
        "s3": "0:3",
    }


def test_a_part_of_a_table() -> None:
    part = select(
        paper_grid("table1"),
        streams=["r-mnist", "s-mnist"],
        methods=["clser", "sgd", "icarl"],
        buffer_sizes=[200, 5120],
    )
    assert [str(cell) for cell in part.cells] == [
        "sgd on s-mnist",
        "icarl on s-mnist, buffer 200",
        "icarl on s-mnist, buffer 5120",
        "clser on s-mnist, buffer 200",
        "clser on s-mnist, buffer 5120",
        "sgd on r-mnist",  # and no iCaRL: the paper has none there
        "clser on r-mnist, buffer 200",
        "clser on r-mnist, buffer 5120",
    ]


def test_a_method_that_the_table_lacks_is_added() -> None:
    part = select(paper_grid("table2"), methods=["er", "mean-er"], buffer_sizes=[500])
    assert [str(cell) for cell in part.cells] == [
        "er on mnist-360, buffer 500",
        "mean-er on mnist-360, buffer 500",
    ]
    alone = select(paper_grid("s1"), methods=["sgd"], streams=["s-mnist"])
    assert [str(cell) for cell in alone.cells] == ["sgd on s-mnist"]  # once: it has no buffers


def test_added_methods_are_listed_with_the_others_on_their_stream() -> None:
    names = ["s-mnist", "p-mnist"]
    part = select(paper_grid("table1"), streams=names, methods=["er", "er-ace"])
    streams = [cell.stream for cell in part.cells]
    assert streams == sorted(streams, key=names.index)
    assert {(cell.stream, cell.method) for cell in part.cells} == {
        (stream, method) for stream in names for method in ("er", "er-ace")
    }


def test_an_added_method_sees_the_stream_of_the_others(tmp_path: Path) -> None:
    methods = ["er", "er-ace", "joint"]
    fixed = select(paper_grid("table3"), methods=methods, buffer_sizes=[200], stream_seed="7")
    assert {cell.stream_seed for cell in fixed.cells} == {"7"}
    assert {cell.buffer_size for cell in fixed.cells if cell.method != "joint"} == {200}
    assert not any(cell.note for cell in fixed.cells)
    own = read(tmp_path, "[[runs]]\nstreams = 'r-mnist'\nmethods = 'er'\nstream_seeds = [1, 2]")
    added = select(own, methods=["er", "sgd"]).cells[2:]
    assert [(cell.method, cell.stream_seed) for cell in added] == [("sgd", 1), ("sgd", 2)]


def test_a_method_without_a_published_stream_is_added_with_a_note() -> None:
    part = select(
        paper_grid("s1"),
        streams=["gcil-cifar100-uniform"],
        methods=["clser", "er", "er-ace", "sgd"],
        buffer_sizes=[200, 500],
    )
    assert {(cell.method, cell.buffer_size, cell.stream_seed) for cell in part.cells} == {
        *(("clser", size, "published") for size in (200, 500)),
        *(("er", size, "published") for size in (200, 500)),  # the paper has such runs in Table 3
        *(("er-ace", size, None) for size in (200, 500)),
        ("sgd", None, None),  # the paper's runs saw the stream's own composition
    }
    assert {cell.method for cell in part.cells if cell.note} == {"er-ace"}


def test_a_published_stream_that_is_asked_for_is_not_replaced() -> None:
    part = select(paper_grid("table3"), methods=["er", "er-ace"], stream_seed="published")
    assert {(cell.method, cell.stream_seed) for cell in part.cells} == {
        ("er", "published"),
        ("er-ace", "published"),  # refused when the cell is resolved
    }
    assert not any(cell.note for cell in part.cells)


def test_notes_of_a_setting_are_those_of_its_runs(tmp_path: Path) -> None:
    grid = Grid("mine", "", "0", (Cell("s-mnist", "sgd", None, note="a substitute"),))
    (setting,) = plan_grid(grid, tmp_path, dataset="mnist5k").settings
    assert "a substitute" in setting.config.notes


def test_rows_of_a_sweep() -> None:
    where = {"consistency_weight": [0.15], "stable_rate": [0.1], "plastic_rate": [0.2, 0.5, 0.9]}
    part = select(paper_grid("s3"), where=where)
    assert [dict(cell.given)["plastic_rate"] for cell in part.cells] == [0.2, 0.5, 0.9]
    assert str(part.cells[0]) == (
        "clser on s-cifar10, buffer 500, consistency_weight 0.15, stable_rate 0.1, plastic_rate 0.2"
    )


def read(tmp_path: Path, text: str) -> Grid:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_grid(path)


def test_a_users_grid_combines_its_lists(tmp_path: Path) -> None:
    grid = read(
        tmp_path,
        """
        title = "two rates"
        seeds = "0:4"
        [[runs]]
        streams = ["s-mnist", "mnist-360"]
        methods = ["er", "sgd"]
        buffer_sizes = [100, 200]
        lr = [0.1, 0.2]
        [[runs]]
        methods = "clser"
        """,
    )
    assert (grid.name, grid.title, grid.seeds, grid.table) == ("mine", "two rates", "0:4", None)
    # er: 2 streams x 2 buffers x 2 rates; sgd, which has no buffers: 2 x 2
    assert len(grid.cells) == 8 + 4 + 1
    assert grid.cells[0] == Cell("s-mnist", "er", 100, {"lr": 0.1})
    assert grid.cells[4] == Cell("s-mnist", "sgd", None, {"lr": 0.1})
    assert grid.cells[-1] == Cell("s-mnist", "clser", 500)


def test_runs_of_a_grid_may_have_their_own_seeds_unless_the_command_names_some(
    tmp_path: Path,
) -> None:
    text = """
        seeds = 3
        [[runs]]
        methods = "sgd"
        [[runs]]
        methods = "er"
        buffer_sizes = 50
        seeds = "0:2"
        """
    grid = read(tmp_path, text)
    assert (grid.seeds, [cell.seeds for cell in grid.cells]) == ("3", [None, "0:2"])
    named = select(grid, seeds="7")
    assert (named.seeds, [cell.seeds for cell in named.cells]) == ("7", [None, None])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no [[runs]]"),
        ("runs = 3", "has no [[runs]]"),
        ("seed = 3\n[[runs]]", "has seed; expected title, seeds and [[runs]]"),
        ("[[runs]]\nbuffer_sizes = ['a']", "buffer_sizes is ['a']; expected whole numbers"),
        ("[[runs]]\nbuffer_sizes = 1.5", "buffer_sizes is 1.5; expected whole numbers"),
        ("[[runs]]\nstreams = 7", "streams is 7; expected names"),
        ("[[runs]]\nlr = [0.1, true]", "lr is [0.1, True]; expected numbers"),
        ("[[runs]]\nmethods = ['foo']", "unknown method 'foo'"),
        ("[[runs]", "mine.toml: Expected"),
        ("runs = []", "has no [[runs]]"),
        ('seeds = "3:1"\n[[runs]]', "seeds 3:1 is empty"),
        ("[[runs]]\nseeds = [0, 1]", "seeds is '[0, 1]'; expected 3, or 0,4,7, or 0:10"),
        ("[[runs]]\nseeds = true", "seeds is 'True'; expected 3, or 0,4,7, or 0:10"),
        ("[[runs]]\nstreams = []", "streams is empty"),
        ("[[runs]]\nstream = 's-mnist'", "has stream; expected streams"),
        ("[[runs]]\nbuffer_size = 200", "has buffer_size; expected buffer_sizes"),
        ("[[runs]]\nnetworks = 3", "networks is 3; expected names"),
    ],
)
def test_a_bad_grid_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        select(read(tmp_path, text))


def test_a_requested_method_is_added_or_refused_but_never_dropped(tmp_path: Path) -> None:
    bare = read(tmp_path, "[[runs]]\nmethods = 'sgd'")
    assert select(bare, methods=["er", "sgd"]).cells == (
        Cell("s-mnist", "sgd", None),
        Cell("s-mnist", "er", 500),
    )
    s3 = paper_grid("s3")
    chosen = select(s3, methods=["er", "clser"], where={"plastic_rate": [0.2]})
    assert chosen.cells[-1] == Cell("s-cifar10", "er", 500)
    assert {cell.given["plastic_rate"] for cell in chosen.cells[:-1]} == {0.2}
    rates = read(
        tmp_path,
        "[[runs]]\nmethods = 'er'\nlr = [0.1, 0.2]\n[[runs]]\nmethods = 'clser'\nlr = 0.3",
    )
    with pytest.raises(ValueError, match="mine has no setting of er"):
        select(rates, methods=["er", "clser"], where={"lr": [0.3]})


def test_runs_of_a_grid_may_name_networks(tmp_path: Path) -> None:
    grid = read(tmp_path, "[[runs]]\nmethods = 'sgd'\nnetworks = ['mlp', 'my:net']")
    assert [cell.network for cell in grid.cells] == ["mlp", "my:net"]
    assert str(grid.cells[1]) == "sgd on s-mnist, my:net"
