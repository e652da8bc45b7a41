"""Estimates of how long runs take."""

from __future__ import annotations

import pytest

from perdure import catalog
from perdure.config import RunConfig
from perdure.experiment.resolve import resolve
from perdure.experiment.speeds import Speeds, _shipped_speeds


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
