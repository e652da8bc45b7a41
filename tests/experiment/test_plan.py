"""Which runs need training."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.experiment.plan import plan_setting
from perdure.experiment.resolve import resolve
from perdure.experiment.run import Job, PlannedRun
from perdure.results.records import Facts

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
