"""Which runs need training, and estimates of how long they take."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure import catalog
from perdure.config import RunConfig
from perdure.experiment.plan import Speeds, _shipped_speeds, plan_setting
from perdure.experiment.resolve import resolve
from perdure.experiment.run import Job, PlannedRun
from perdure.results.records import Facts

from .conftest import Write


def setting(
    method: str = "er", buffer_size: int | None = 500, stream: str = "s-mnist"
) -> RunConfig:
    return resolve(stream, method, buffer_size, dataset="mnist5k")


def test_other_buffer_sizes_count_if_a_setting_was_not_measured() -> None:
    speeds = Speeds()
    speeds.add(setting(buffer_size=200), 100, 2.0)
    speeds.add(setting(buffer_size=200), 100, 4.0)
    speeds.add(setting(buffer_size=500), 100, 1.0)
    assert speeds.seconds(setting(buffer_size=200), 1000) == pytest.approx(30)
    assert speeds.seconds(setting(buffer_size=500), 1000) == pytest.approx(10)
    assert speeds.seconds(setting(buffer_size=5120), 300) == pytest.approx(6)  # mean of both


def test_shipped_figures_are_scaled_to_this_machine() -> None:
    speeds = Speeds()
    shipped = speeds.seconds(setting("clser"), 1000)
    assert shipped is not None
    er = speeds.seconds(setting("er"), 1000)
    assert er is not None
    speeds.add(setting("er"), 1000, 3 * er)  # a machine three times as slow
    assert speeds.seconds(setting("clser"), 1000) == pytest.approx(3 * shipped)


def test_unknown_durations_are_none() -> None:
    assert Speeds().seconds(setting("clser"), None) is None
    own = resolve("s-mnist", "clser", 500, dataset="mnist5k", device="cuda", check_device=False)
    assert Speeds().seconds(own, 1000) is None


def test_a_run_without_steps_is_ignored() -> None:
    speeds = Speeds()
    speeds.add(setting("mer"), 0, 1.0)
    assert speeds.measured == {}


def test_shipped_figures_have_known_names() -> None:
    for device, streams in _shipped_speeds().items():
        assert device in ("cpu", "cuda")
        for stream, methods in streams.items():
            assert stream in catalog.STREAMS
            for method, milliseconds in methods.items():
                assert method in catalog.METHODS
                assert 0 < milliseconds < 1000


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
