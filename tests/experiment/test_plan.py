"""How long runs may take, from what is known."""

from __future__ import annotations

import pytest

from perdure import catalog
from perdure.grid.speeds import Speeds, _figures, duration
from perdure.training import Settings, plan


def setting(method: str = "er", buffer_size: int | None = 500, stream: str = "s-mnist") -> Settings:
    return plan(stream, method, buffer_size, dataset="mnist5k")


def test_the_settings_own_speed_comes_first_then_that_of_other_buffers() -> None:
    speeds = Speeds()
    speeds.note(setting(buffer_size=200), 100, 2.0)
    speeds.note(setting(buffer_size=200), 100, 4.0)
    speeds.note(setting(buffer_size=500), 100, 1.0)
    assert speeds.seconds(setting(buffer_size=200), 1000) == pytest.approx(30)
    assert speeds.seconds(setting(buffer_size=500), 1000) == pytest.approx(10)
    assert speeds.seconds(setting(buffer_size=5120), 300) == pytest.approx(7)


def test_kept_figures_are_scaled_to_this_machine() -> None:
    speeds = Speeds()
    kept = speeds.seconds(setting("clser"), 1000)
    assert kept is not None
    er = speeds.seconds(setting("er"), 1000)
    assert er is not None
    speeds.note(setting("er"), 1000, 3 * er)  # a machine three times as slow
    assert speeds.seconds(setting("clser"), 1000) == pytest.approx(3 * kept)


def test_what_is_not_known_is_none() -> None:
    assert Speeds().seconds(setting("clser"), None) is None
    own = plan("s-mnist", "clser", 500, dataset="mnist5k", device="cuda", elsewhere=True)
    assert Speeds().seconds(own, 1000) is None


def test_a_run_of_no_steps_says_nothing() -> None:
    speeds = Speeds()
    speeds.note(setting("mer"), 0, 1.0)
    assert speeds.measured == {}


def test_kept_figures_are_of_things_that_exist() -> None:
    for device, streams in _figures().items():
        assert device in ("cpu", "cuda")
        for stream, methods in streams.items():
            assert stream in catalog.STREAMS
            for method, milliseconds in methods.items():
                assert method in catalog.METHODS
                assert 0 < milliseconds < 1000


@pytest.mark.parametrize(
    ("seconds", "width", "expected"),
    [([], 2, 0.0), ([3.0], 2, 3.0), ([2.0, 2.0, 2.0, 2.0], 2, 4.0), ([9.0, 1.0, 1.0], 3, 9.0)],
)
def test_jobs_are_well_packed(seconds: list[float], width: int, expected: float) -> None:
    assert duration(seconds, width) == expected
