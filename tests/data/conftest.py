from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache for every test, and no data folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PERDURE_CACHE", str(folder))
    monkeypatch.delenv("PERDURE_DATA", raising=False)
    return folder
