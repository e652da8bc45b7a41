"""The settings in conftest.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from perdure.data import cache

SKIPS = """
    import pytest

    @pytest.mark.skip(reason="no CUDA device here")
    def test_gpu(): ...

    @pytest.mark.skipif(True, reason="not today")
    def test_marked(): ...

    def test_inside():
        pytest.skip("no Chromium: none is installed")

    @pytest.mark.xfail(reason="known")
    def test_known():
        assert False

    def test_runs(): ...
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    return pytester


def run(suite: pytest.Pytester, source: str) -> tuple[dict[str, int], str]:
    suite.makepyfile(source)
    result = suite.runpytest("-p", "no:cacheprovider", "-p", "no:xdist")
    counts = {k: v for k, v in result.parseoutcomes().items() if "warning" not in k}
    return counts, result.stdout.str()


def test_outside_ci_a_skip_is_a_skip(suite: pytest.Pytester) -> None:
    counts, _ = run(suite, SKIPS)
    assert counts == {"skipped": 3, "xfailed": 1, "passed": 1}


def test_in_ci_a_skip_fails_unless_a_gpu_is_missing(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    counts, output = run(suite, SKIPS)
    assert counts == {"skipped": 1, "xfailed": 1, "passed": 1, "failed": 1, "errors": 1}
    assert "skipped in CI, where every test must run: not today" in output
    assert "skipped in CI, where every test must run: no Chromium" in output


def test_in_ci_skipping_a_whole_module_is_an_error(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    counts, output = run(suite, "import pytest; pytest.importorskip('no_such_module_at_all')")
    assert counts == {"errors": 1}
    assert "no_such_module_at_all" in output


def test_tests_use_one_thread_and_their_own_cache(own_cache: Path) -> None:
    assert torch.get_num_threads() == 1
    assert cache.folder() == own_cache
    assert "PERDURE_DATA" not in os.environ
