"""`perdure run` on a user's own streams: several methods, optimizers, validation, files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from perdure.streams.image_encoder import read_images

from .conftest import Call

MODULE = """
from pathlib import Path

import torch
from perdure import SGD, from_batches, from_tensors

INPUTS = torch.rand(240, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(240) % 4

def stream():
    return from_tensors(
        INPUTS, LABELS, groups=[(0, 1), (2, 3)], test=(INPUTS, LABELS), name="quarters"
    )

def gaps():
    return from_tensors(INPUTS, 3 * (LABELS % 2), test=(INPUTS[:4], 3 * (LABELS[:4] % 2)))

def three():
    names = ("ant", "bee", "cat", "dog")
    return from_tensors(INPUTS, LABELS, groups=[(0, 1), (2,)], class_names=names)

def batches():
    return from_batches([(INPUTS, LABELS)], classes=4, shape=(6,))

class Log:
    def __iter__(self):
        for line in Path("log.txt").read_text().split():
            yield torch.eye(4), (torch.arange(4) + int(line)) % 4

def log():
    return from_batches(Log(), classes=4, shape=(4,), name="log")

def once():
    return from_batches(iter([(INPUTS, LABELS)]), classes=4, shape=(6,))

def optimizer(parameters, lr=0.05, *, inertia=0.1):
    return torch.optim.SGD(parameters, lr=lr, momentum=inertia)

def no_optimizer(parameters):
    return 3

class Own(SGD):
    def __init__(self, network, *, lr: float = 0.2, optimizer=None, **options):
        super().__init__(network, lr=lr, optimizer=optimizer, **options)
"""
RUN = ["run", "own_streams:stream", "--batch", "20", "--workers", "1"]


@pytest.fixture(autouse=True)
def module(here: Path) -> Iterator[None]:
    (here / "own_streams.py").write_text(MODULE)
    yield
    sys.modules.pop("own_streams", None)


def configs(here: Path) -> dict[str, dict[str, object]]:
    found = {}
    for path in sorted(here.glob("runs/*/*/seed-0/config.json")):
        content = json.loads(path.read_text())
        found[content["method"]] = content
    return found


def test_several_methods_are_compared_in_one_table(call: Call, here: Path) -> None:
    words = [*RUN, "--method", "sgd,er,clser", "--seeds", "0:2", "--stable-window", "0.1", "--json"]
    ended = call(*words)
    assert ended.status == 0, ended.err
    table, lines = ended.err, ended.out.splitlines()
    for title in ("SGD", "ER", "CLS-ER"):
        assert table.count(f"│ {title} ") == 1
    assert table.count("±") == 9  # Class-IL, Task-IL and forgetting
    assert [json.loads(line)["method"] for line in lines] == ["sgd", "er", "clser"]
    assert configs(here)["clser"]["hyperparameters"]["stable_window"] == 0.1  # type: ignore[index]
    again = call(*words)
    assert "6 of 6 runs are complete already" in again.err
    assert again.out == ended.out


def test_settings_apply_to_the_methods_that_have_them(call: Call, here: Path) -> None:
    words = ["--method", "er,mean-er,clser", "--update", "regular", "--stable-window", "0.1"]
    ended = call(*RUN, *words)
    assert ended.status == 0, ended.err
    assert "--update applies to mean-er and clser only" in ended.err
    assert "--stable-window applies to clser only" in ended.err
    assert "seed 0 of er on quarters, buffer 500" in ended.err
    alone = call(*RUN, "--method", "clser", "--stable-window", "0", "--out", "alone")
    assert "applies to" not in alone.err
    updates = {method: found["update"] for method, found in configs(here).items()}
    assert updates == {"er": "random", "mean-er": "regular", "clser": "regular"}


def test_methods_are_resumed_together(call: Call, here: Path) -> None:
    words = [*RUN, "--method", "er,sgd", "--quiet"]
    assert call(*words).status == 0
    for folder in here.glob("runs/*/*/seed-0"):
        (folder / "result.json").unlink()
    assert call(*words, "--resume").status == 0
    assert len([*here.glob("runs/*/*/seed-0/result.json")]) == 2


def test_the_result_of_a_method_does_not_depend_on_the_others(call: Call, here: Path) -> None:
    assert call(*RUN, "--method", "er", "--out", "alone").status == 0
    assert call(*RUN, "--method", "sgd,er", "--out", "both").status == 0
    (alone,) = here.glob("alone/*/er-*/seed-0/result.json")
    (both,) = here.glob("both/*/er-*/seed-0/result.json")
    assert alone.read_bytes() == both.read_bytes()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--optimizer", "adam"], {"lr": 1e-3}),
        (["--optimizer", "adamw", "--lr", "0.01", "--weight-decay", "0.1"], {"weight_decay": 0.1}),
        (["--momentum", "0.9"], {"momentum": 0.9}),
        (["--optimizer", "own_streams:optimizer", "--set", "inertia=0.5"], {"inertia": 0.5}),
    ],
)
def test_optimizers(flags: list[str], expected: dict[str, float], call: Call, here: Path) -> None:
    ended = call(*RUN, "--method", "er", "--quiet", "--json", *flags)
    assert (ended.status, ended.err) == (0, "")
    found = configs(here)["er"]
    assert found["hyperparameters"].items() >= expected.items()  # type: ignore[attr-defined]
    assert found["optimizer"] == (flags[1] if flags[0] == "--optimizer" else "sgd")
    plain = call(*RUN, "--method", "er", "--quiet", "--json")
    assert json.loads(plain.out)["hash"] != json.loads(ended.out)["hash"]
    assert json.loads(plain.out)["predictors"] != json.loads(ended.out)["predictors"]


def test_optimizers_of_methods_with_settings_of_the_same_name(call: Call) -> None:
    for flags in (["--method", "icarl", "--optimizer", "adam", "--weight-decay", "0.1"],
                  ["--method", "icarl", "--momentum", "0.5"],
                  ["--method", "own_streams:Own", "--optimizer", "adam"]):  # fmt: skip
        assert call(*RUN, "--quiet", *flags).status == 0


def test_a_misspelt_prefix_is_corrected(call: Call) -> None:
    ended = call("run", "tabel:rides.csv,target=kind", "--method", "er")
    assert ended.status == 2
    assert "did you mean table:rides.csv,target=kind?" in ended.err
    assert "did you mean" not in call("run", "rides:stream", "--method", "er").err


def test_the_table_names_the_optimizer(call: Call) -> None:
    ended = call(*RUN, "--method", "er", "--optimizer", "adam", "--weight-decay", "0.1")
    assert "optimizer adam" in ended.out
    assert "weight decay 0.1" in ended.out
    assert "adam uses 0.001" in ended.err


def test_validation_replaces_the_tests(call: Call, here: Path) -> None:
    ended = call(*RUN, "--method", "er", "--validation", "0.25")
    assert ended.status == 0
    assert "validation on 0.25" in ended.out
    assert configs(here)["er"]["validation"] == 0.25


def test_labels_with_gaps_are_noted_once(call: Call) -> None:
    ended = call("run", "own_streams:gaps", "--method", "sgd,er", "--workers", "1")
    assert ended.status == 0
    assert ended.err.count("has the label 1, 2,") == 1


def test_classes_that_are_not_used_are_noted_once(call: Call, here: Path) -> None:
    words = ["run", "own_streams:three", "--method", "sgd,er", "--max-steps", "2"]
    ended = call(*words, "--workers", "2")
    assert ended.status == 0, ended.err
    (note,) = (line for line in ended.err.splitlines() if "dog" in line)
    assert "60" in note
    quiet = call(*words, "--workers", "1", "--quiet", "--out", "quiet")
    assert (quiet.status, quiet.err) == (0, "")
    for path in here.glob("quiet/*/*/seed-0/config.json"):
        assert any("dog" in note for note in json.loads(path.read_text())["notes"])


def test_a_stream_without_tests_is_noted_once_unless_it_is_evaluated(call: Call) -> None:
    words = ["run", "own_streams:batches", "--method", "sgd,er", "--workers", "1"]
    ended = call(*words)
    assert ended.status == 0, ended.err
    (note,) = [line for line in ended.err.splitlines() if "--prequential" in line]
    assert "own_streams:batches" in note
    for evaluated in ([*words, "--prequential"], [*RUN, "--method", "sgd"]):
        ended = call(*evaluated)
        assert ended.status == 0, ended.err
        assert "--prequential" not in ended.err


def test_runs_are_not_reused_for_batches_that_have_changed(call: Call, here: Path) -> None:
    (here / "log.txt").write_text("1 2 3 " * 40)
    words = ["run", "own_streams:log", "--method", "sgd", "--prequential", "--workers", "1"]
    first = call(*words)
    assert first.status == 0, first.err
    again = call(*words)
    assert (again.status, again.out) == (0, first.out)
    assert "1 of 1 runs are complete already" in again.err
    (here / "log.txt").write_text("1 2 3 " * 50)
    for seeds in ("0", "0:2"):
        refused = call(*words, "--seeds", seeds)
        assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert "own_streams:log differ" in refused.err
    assert call(*words, "--seeds", "0:2", "--restart").status == 0
    assert call(*words, "--seeds", "0:2", "--resume").status == 0


def test_a_note_says_that_the_batches_of_completed_runs_are_unknown(call: Call) -> None:
    words = ["run", "own_streams:once", "--method", "sgd", "--workers", "1"]
    assert "cannot be compared" not in call(*words).err
    again = call(*words)
    assert again.status == 0
    assert again.err.count("cannot be compared with those of its complete runs") == 1


def write_images(folder: Path, red: int = 0) -> None:
    """Two classes of ten images."""
    for label in ("cat", "dog"):
        for i in range(10):
            path = folder / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7), (red + i, 0, 0)).save(path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of images that were read at a time."""
    found = list[int]()

    def counted(encoder: Any, images: Sequence[Any], *further: Any) -> Any:
        found.append(len(images))
        return read_images(encoder, images, *further)

    monkeypatch.setattr("perdure.streams.from_images.read_images", counted)
    return found


def test_a_command_reads_a_folder_once_for_all_methods(
    call: Call, here: Path, reads: list[int]
) -> None:
    write_images(here / "pets")
    words = ["run", "images:pets,size=8", "--batch", "4", "--workers", "1"]
    words += ["--method", "sgd,er,der"]
    assert call(*words).status == 0
    assert reads == [20]
    again = call(*words)
    assert (again.status, reads) == (0, [20, 20])
    assert "3 of 3 runs are complete already" in again.err
    write_images(here / "pets", red=100)
    changed = call(*words)
    assert (changed.status, reads) == (0, [20, 20, 20])
    assert "complete already" not in changed.err
    assert changed.err.count("used other data") == 3


def test_a_grid_reads_a_folder_once_for_all_methods(
    call: Call, here: Path, reads: list[int]
) -> None:
    write_images(here / "pets")
    (here / "grid.toml").write_text(
        '[[runs]]\nstreams = ["images:pets,size=8"]\nmethods = ["sgd", "er"]\nbatch = 4\n'
    )
    words = ["reproduce", "--grid", "grid.toml", "--workers", "1", "--dry-run"]
    assert call(*words).status == 0
    assert reads == [20]
    assert call(*words).status == 0
    assert reads == [20, 20]


def test_reading_many_images_is_shown(
    call: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.data.progress.MANY_FILES", 20)
    write_images(here / "pets" / "train")
    write_images(here / "pets" / "test")
    words = ["run", "images:pets,size=8", "--batch", "4", "--workers", "1", "--method", "sgd"]
    assert call(*words).err.count("decoding images:pets,size=8: 40 files\n") == 1
    assert call(*words, "--quiet").err == ""


def test_few_steps_are_noted_once(call: Call, here: Path) -> None:
    write_images(here / "pets")
    words = ["run", "images:pets,size=8", "--batch", "4", "--method", "sgd,er", "--workers", "1"]
    assert call(*words).err.count("only 4 training steps") == 1
    assert "only" not in call(*words, "--max-steps", "3").err
    assert "training steps" not in call(*words, "--epochs", "25").err


def test_images_and_tables_need_no_module(call: Call, here: Path) -> None:
    write_images(here / "pets")
    words = ["--method", "er", "--network", "cnn", "--batch", "4"]
    ended = call("run", "images:pets,size=8,tasks=2", *words)
    assert ended.status == 0, ended.err
    rows = "".join(f"{i},{'ab'[i % 2]}\n" for i in range(40))
    (here / "rows.csv").write_text(f"x,kind\n{rows}")
    ended = call(
        "run", "table:rows.csv,target=kind,chunks=2", "--method", "er", "--optimizer", "adam"
    )
    assert ended.status == 0, ended.err


BAD = {
    "--method er,none": "unknown method 'none'",
    "--method er,": "--method is 'er,'",
    "--method er,sgd --stable-window 0.1": "er has no hyperparameter 'stable_window'",
    "--method er,sgd --update regular": "--update regular applies to clser and mean-er",
    "--optimizer rmsprop": "unknown optimizer 'rmsprop'; choose from sgd, adam, adamw",
    "--optimizer own_streams:no_optimizer": "returned a int, not a torch optimizer",
    "--optimizer own_streams:LABELS": "is not a function or class",
    "--optimizer adam --momentum 0.9": "clser with adam has no hyperparameter 'momentum'",
    "--optimizer adam --beta1 2": "optimizer adam: ValueError: Invalid beta parameter",
    "--network cnn": "cnn is for images",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_sentence(words: str, call: Call) -> None:
    ended = call(*RUN, *words.split())
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("perdure: ")
    assert ended.err.count("\n") == 1
    assert BAD[words] in ended.err


def test_files_that_cannot_be_read_are_one_sentence(call: Call, here: Path) -> None:
    (here / "rows.csv").write_text("x,kind\n1,a\n2,b\n")
    (here / "prices.csv").write_text("x,price\n" + "".join(f"{i},{i / 7}\n" for i in range(50)))
    for stream, expected in {
        "images:nowhere": "nowhere is not a folder",
        "table:rows.csv": "target is missing",
        "table:none.csv,target=kind": "none.csv is not a file",
        "table:rows.csv,target=sort": "no column 'sort'",
        "table:rows.csv,target=kind,target=x": "target",
        "table:rows.csv,target=kind,shuffle=off": "shuffle",
        "table:rows.csv,target=kind,chunks=abc": "chunks",
        "table:prices.csv,target=price": "quantities",
    }.items():
        ended = call("run", stream)
        assert (ended.status, ended.out) == (2, "")
        assert expected in ended.err
        assert ended.err.count("\n") == 1


def test_a_batch_size_does_not_apply_to_batches(call: Call, here: Path) -> None:
    words = ["run", "own_streams:batches", "--workers", "1"]
    for flags in (["--batch", "2"], ["--batch", "32"], ["--set", "batch=2"]):
        for method in ("er", "sgd,joint"):
            ended = call(*words, *flags, "--method", method)
            assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
            assert "--batch does not apply to own_streams:batches" in ended.err
    ended = call(*words, "--method", "er,joint")
    assert ended.status == 0, ended.err
    found = {name: content["hyperparameters"] for name, content in configs(here).items()}
    assert ["batch" in values for values in found.values()] == [False, True]  # type: ignore[operator]
    assert call("report", "runs", "-o", "report.md").status == 0
    assert call(*words, "--method", "joint", "--batch", "40").status == 0


def test_batches_cannot_be_split(call: Call) -> None:
    ended = call("run", "own_streams:batches", "--validation", "0.2")
    assert (ended.status, ended.out) == (2, "")
    assert "cannot be split" in ended.err
