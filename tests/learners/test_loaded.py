"""A state that is impossible or of another optimizer is refused; the learner is unchanged."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure import CLSER, DERPP, ER, Learner
from perdure.state import State, as_bytes, write_file

INPUTS, LABELS = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


def learner(kind: type[Learner] = CLSER, **other: Any) -> Learner:
    torch.manual_seed(0)
    return kind(nn.Linear(4, 3), **{"buffer_size": 5, "seed": 0, **other})


def fill(tensor: Tensor, value: float) -> None:
    tensor.view(-1)[0] = value


def change(state: State, name: str, how: Callable[[Tensor], Tensor]) -> None:
    stored = state["memory"]["stored"]
    stored[name] = how(stored[name])


IMPOSSIBLE: dict[str, Callable[[State], object]] = {
    "a weight that is infinite": lambda s: fill(s["network"]["weight"], math.inf),
    "a weight of a memory that is NaN": lambda s: fill(s["stable"]["network"]["bias"], math.nan),
    "a label below 0": lambda s: fill(s["memory"]["stored"]["labels"], -1),
    "a label beyond the classes": lambda s: fill(s["memory"]["stored"]["labels"], 3),
    "stored inputs that are NaN": lambda s: fill(s["memory"]["stored"]["inputs"], math.nan),
    "stored inputs of another type": lambda s: change(s, "inputs", Tensor.double),
    "stored inputs of another shape": lambda s: change(s, "inputs", lambda x: x[:, :2]),
    "labels that are not integers": lambda s: change(s, "labels", Tensor.float),
    "fewer samples seen than stored": lambda s: fill(s["memory"]["seen"], 2),
    "negative steps": lambda s: fill(s["steps"], -7),
    "more finite steps than steps": lambda s: fill(s["finite_steps"], 100),
    "metrics of the future": lambda s: s["last_read"].update(steps=10**9),
    "a generator that is none": lambda s: s["augmentation"].zero_(),
    "a global generator that is none": lambda s: s["_global_random"].zero_(),
    "another optimizer": lambda s: s["optimizer"].update({"class": "Adam"}),
    "another learning rate": lambda s: s["optimizer"]["groups"][0].update(lr=0.5),
    "another momentum": lambda s: s["optimizer"]["groups"][0].update(momentum=0.9),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_state_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:
    trained = learner()
    for _ in range(3):
        trained.observe(INPUTS, LABELS)
    state = copy.deepcopy(trained.state_dict())
    IMPOSSIBLE[name](state)
    write_file(tmp_path / "file", state, {"learner": "CLSER"})
    fresh = learner()
    fresh.observe(INPUTS, LABELS)
    before = as_bytes(fresh.state_dict(), {})
    with pytest.raises(ValueError, match="file"):
        fresh.load(tmp_path / "file")
    assert as_bytes(fresh.state_dict(), {}) == before


def test_a_schedule_may_have_changed_the_learning_rate(tmp_path: Path) -> None:
    trained, fresh = learner(ER), learner(ER)
    schedule = torch.optim.lr_scheduler.StepLR(trained.optimizer, step_size=1, gamma=0.5)
    trained.observe(INPUTS, LABELS)
    schedule.step()
    trained.save(tmp_path / "file")
    fresh.load(tmp_path / "file")
    assert fresh.optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("how", [lambda z: z[:, :2], lambda z: z.long(), lambda z: z[:, :, None]])
def test_impossible_logits_are_refused(how: Callable[[Tensor], Tensor]) -> None:
    trained, fresh = learner(DERPP), learner(DERPP)
    trained.observe(INPUTS, LABELS)
    fresh.load_state_dict(trained.state_dict())
    state = copy.deepcopy(trained.state_dict())
    change(state, "logits", how)
    before = as_bytes(fresh.state_dict(), {})
    with pytest.raises(ValueError, match="logits"):
        fresh.load_state_dict(state)
    assert as_bytes(fresh.state_dict(), {}) == before


def test_inputs_may_be_dicts_in_any_order() -> None:
    def make() -> Learner:
        torch.manual_seed(0)
        return ER(Both(), buffer_size=5)

    trained, fresh = make(), make()
    trained.observe({"b": INPUTS, "a": INPUTS.double()}, LABELS)
    fresh.load_state_dict(trained.state_dict())
    fresh.observe({"a": INPUTS.double(), "b": INPUTS}, LABELS)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        logits: Tensor = self.layer(a + b)
        return logits
