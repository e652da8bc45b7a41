"""Which runs need training."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.config import RunConfig
from perdure.experiment.build import build_run
from perdure.experiment.plan import Plan, PlannedSetting, plan_setting
from perdure.experiment.resolve import resolve
from perdure.experiment.run import Job, PlannedRun
from perdure.results import collect
from perdure.results.folder import RunFolder
from perdure.results.records import Facts, Result
from perdure.training.loop import Interrupted

from .conftest import Write


def test_a_run_of_code_that_has_changed_is_neither_reused_nor_resumed(
    write: Write, tmp_path: Path
) -> None:
    source = "from perdure import SGD\n\nclass Mine(SGD):\n    pass\n"
    write("changing", source)
    config = resolve("s-mnist", "changing:Mine", dataset="mnist5k", max_steps=3)
    Job((PlannedRun(config, 0),), tmp_path).execute(lambda progress: None)
    folder = PlannedRun(config, 0).folder(tmp_path)
    assert folder.read("config.json", Facts).version == perdure.__version__
    assert plan_setting(config, [0], tmp_path).complete == (0,)
    write("changing", f"{source}# changed\n")
    with pytest.raises(ValueError, match=r"changing:Mine.* changed .*--restart"):
        plan_setting(config, [0], tmp_path)
    assert plan_setting(config, [0], tmp_path, restart=True).missing == (0,)


def test_a_run_whose_imported_module_has_changed_is_neither_reused_nor_resumed(
    write: Write, tmp_path: Path
) -> None:
    write("changing_loss", "scale = 1\n")
    write("changing_base", "from perdure import SGD\n\nclass Base(SGD):\n    pass\n")
    source = "import changing_loss\nfrom changing_base import Base\n\nclass Sub(Base):\n    pass\n"
    write("changing_sub", source)
    config = resolve("s-mnist", "changing_sub:Sub", dataset="mnist5k", max_steps=3)
    Job((PlannedRun(config, 0),), tmp_path).execute(lambda progress: None)
    assert plan_setting(config, [0], tmp_path).complete == (0,)
    write("changing_loss", "scale = 2\n")
    with pytest.raises(ValueError, match=r"changing_sub:Sub.* changed .*--restart"):
        plan_setting(config, [0], tmp_path)
    write("changing_loss", "scale = 1\n")
    assert plan_setting(config, [0], tmp_path).complete == (0,)


# -- data that are known only after they were read ------------------------------------------

LOG = """
    from pathlib import Path

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from perdure import from_batches, from_tensors

    TEST = torch.eye(6), torch.arange(6) % 3

    class Log:
        def __iter__(self):
            for number in map(int, Path("log.txt").read_text().split()):
                inputs = torch.rand(4, 6, generator=torch.Generator().manual_seed(number))
                yield inputs, inputs.argmax(dim=1) % 3

    def stream():
        return from_batches(Log(), classes=3, shape=(6,), test=TEST)

    def once():
        return from_batches(iter(Log()), classes=3, shape=(6,), test=TEST)

    def shuffled():
        data = TensorDataset(torch.rand(40, 6), torch.arange(40) % 3)
        loader = DataLoader(data, batch_size=4, shuffle=True)
        return from_batches({"a": Log(), "b": loader}, classes=3, shape=(6,), test=TEST)
"""


@pytest.fixture
def log(write: Write) -> Path:
    """A file from which the streams of the module `growing` read their batches."""
    write("growing", LOG)
    path = Path("log.txt").absolute()
    path.write_text("0 1 2 3 4 5 6 7")
    return path


def trained(config: RunConfig, out: Path, seed: int = 0) -> RunFolder:
    run = PlannedRun(config, seed)
    Job((run,), out).execute(lambda progress: None)
    return run.folder(out)


def checksum(folder: RunFolder) -> str:
    return folder.read("result.json", Result).data_checksum


def test_a_run_is_reused_if_its_batches_are_the_same(log: Path, tmp_path: Path) -> None:
    config = resolve("growing:stream", "sgd")
    for seed in (0, 1):
        trained(config, tmp_path, seed)
    planned = plan_setting(config, [0, 1, 2], tmp_path)
    assert (planned.complete, planned.missing) == ((0, 1), (2,))
    assert not any("compared" in note for note in planned.config.notes)
    (setting,) = Plan("", "", tmp_path, [planned]).results()
    assert (setting.seeds, setting.config) == ([0, 1], config)


@pytest.mark.parametrize("content", ["0 1 2 3 4 5 6 7 8", "0 1 2 3 4 5 6", "0 1 2 3 4 5 6 9"])
def test_a_run_on_other_batches_is_not_reused(content: str, log: Path, tmp_path: Path) -> None:
    config = resolve("growing:stream", "sgd")
    trained(config, tmp_path)
    log.write_text(content)
    with pytest.raises(ValueError, match=r"growing:stream differ .*seed-0, .*--restart"):
        plan_setting(config, [0, 1], tmp_path)
    assert plan_setting(config, [0, 1], tmp_path, restart=True).missing == (0, 1)
    assert plan_setting(config, [0, 1], tmp_path / "other").missing == (0, 1)


def test_batches_that_cannot_be_read_again_are_one_sentence(log: Path, tmp_path: Path) -> None:
    config = resolve("growing:stream", "sgd")
    trained(config, tmp_path)
    log.unlink()
    with pytest.raises(ValueError, match=r"growing:stream: FileNotFoundError: .*log\.txt"):
        plan_setting(config, [0], tmp_path)


def test_runs_on_different_batches_are_not_averaged(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = resolve("growing:stream", "sgd")
    trained(config, tmp_path, 0)
    log.write_text("9 8 7")
    trained(config, tmp_path, 1)
    one, other = collect([tmp_path]).comparisons
    assert [part.settings[0].seeds for part in (one, other)] == [[0], [1]]
    assert "differ from those of" in other.remark
    planned = PlannedSetting(config, "sgd", None, (0, 1), {}, ())
    assert [s.seeds for s in Plan("", "", tmp_path, [planned]).results()] == [[0], [1]]
    assert "not averaged" in caplog.text


def test_methods_epochs_and_seeds_with_the_same_batches_are_compared(
    log: Path, tmp_path: Path
) -> None:
    for method, seed, given in [("sgd", 0, {}), ("er", 1, {"epochs": 2}), ("joint", 0, {})]:
        trained(resolve("growing:stream", method, given=given), tmp_path, seed)
    (comparison,) = collect([tmp_path]).comparisons
    assert len(comparison.settings) == 3
    assert comparison.config.data_checksum


@pytest.mark.parametrize(
    ("stream", "max_steps"), [("once", None), ("shuffled", None), ("stream", 8)]
)
def test_a_note_says_that_batches_cannot_be_compared(
    stream: str, max_steps: int | None, log: Path, tmp_path: Path
) -> None:
    config = resolve(f"growing:{stream}", "sgd", max_steps=max_steps)
    folders = [trained(config, tmp_path, seed) for seed in (0, 1)]
    assert list(map(checksum, folders)) == ["", ""]
    planned = plan_setting(config, [0, 1], tmp_path)
    assert planned.complete == (0, 1)
    (note,) = (note for note in planned.config.notes if "cannot be compared" in note)
    assert "--restart" in note
    (setting,) = Plan("", "", tmp_path, [planned]).results()
    assert setting.seeds == [0, 1]


@pytest.mark.parametrize("method", ["er", "joint"])
@pytest.mark.parametrize("step", [3, 8, 11])
def test_a_resumed_run_has_the_checksum_of_all_its_batches(
    method: str, step: int, log: Path, tmp_path: Path
) -> None:
    given = {"epochs": 2, **({"batch": 4} if method == "joint" else {})}
    run = PlannedRun(resolve("growing:stream", method, 8, given=given), 0)
    whole = trained(run.config, tmp_path / "whole")
    steps = iter(range(1, 1000))
    job = Job((run,), tmp_path, resume=True)
    with pytest.raises(Interrupted):
        job.execute(lambda progress: None, lambda: 15 * (next(steps) == step))
    Job((run,), tmp_path, resume=True).execute(lambda progress: None)
    for name in ("result.json", "learner.safetensors"):
        resumed = run.folder(tmp_path).path / name
        assert resumed.read_bytes() == (whole.path / name).read_bytes()
    assert checksum(whole)


def test_data_that_change_between_epochs_have_no_checksum(log: Path, tmp_path: Path) -> None:
    run = PlannedRun(resolve("growing:stream", "sgd", given={"epochs": 2}), 0)
    steps = iter(range(1, 1000))
    with pytest.raises(Interrupted):
        Job((run,), tmp_path).execute(lambda _: None, lambda: 15 * (next(steps) == 9))
    log.write_text("0 1 2 3 4 5 6 7 8")
    Job((run,), tmp_path, resume=True).execute(lambda progress: None)
    result = run.folder(tmp_path).read("result.json", Result)
    assert (result.steps, result.data_checksum) == (17, "")


# -- short runs on a user's data ------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "given", "max_steps", "expected"),
    [
        ("few", {"epochs": 3}, None, "only 9 training steps; more epochs (--epochs) or smaller b"),
        ("few", {"epochs": 3}, 200, "only 9 training steps"),
        ("few", {"batch": 100}, None, "only 1 training step;"),
        ("few", {"epochs": 33}, None, "only 99 training steps"),
        ("few", {"epochs": 34}, None, None),
        ("few", {}, 2, None),
        ("listed", {}, None, "only 2 training steps; more epochs (--epochs) usually help"),
    ],
)
def test_short_runs_on_own_data_are_noted(
    stream: str,
    given: dict[str, float],
    max_steps: int | None,
    expected: str | None,
    write: Write,
    tmp_path: Path,
) -> None:
    write("short_streams", SHORT)
    config = resolve(f"short_streams:{stream}", "sgd", given=given, max_steps=max_steps)
    steps = build_run(config, None, 0).total_steps(max_steps)
    notes = plan_setting(config, [0], tmp_path, steps=steps).config.notes
    found = [note for note in notes if note.startswith("only ")]
    assert len(found) == (expected is not None)
    assert all(note.startswith(str(expected)) for note in found)


def test_short_runs_on_other_data_are_not_noted(tmp_path: Path) -> None:
    config = resolve("s-mnist", "sgd", dataset="mnist5k")
    assert plan_setting(config, [0], tmp_path, steps=9).config == config


SHORT = """
    import torch
    from perdure import from_batches, from_tensors

    INPUTS, LABELS = torch.rand(100, 6), torch.arange(100) % 4

    def few():
        return from_tensors(INPUTS[:96], LABELS[:96])

    def listed():
        return from_batches([(INPUTS, LABELS)] * 2, classes=4, shape=(6,))
"""
