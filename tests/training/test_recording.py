"""Recorded operations give the same results when they are replayed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.training.recording import WITH_OUT, Recording

Step = Callable[[dict[str, Tensor]], None]


def tensors() -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*size, generator=draws) for size in ((6, 5), (4, 5)))
    rows = torch.tensor([0, 3, 3, 1])
    return {"x": x, "w": w.requires_grad_(), "rows": rows, "sum": torch.zeros(4)}


def matrix_product(t: dict[str, Tensor]) -> None:
    t["sum"] += (t["x"] @ t["w"].detach().t()).relu().sum(0)


def gradient_step(t: dict[str, Tensor]) -> None:
    t["w"].grad = None
    out = F.linear(t["x"], t["w"])
    loss = F.cross_entropy(out, t["rows"].repeat(2)[:6]) + F.mse_loss(out[2:], out[:4].detach())
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        t["w"].sub_(t["w"].grad, alpha=0.1)  # type: ignore[arg-type]
        t["sum"] += loss


def rows(t: dict[str, Tensor]) -> None:
    t["x"].index_add_(0, t["rows"], t["x"].index_select(0, t["rows"]) * 0.5)
    t["x"][t["rows"]] = t["x"][t["rows"] + 1].tanh()


def new_tensors(t: dict[str, Tensor]) -> None:
    counts = torch.zeros(6).index_add_(0, t["rows"], torch.ones(4))
    t["sum"] += counts[:4] + torch.arange(4) + torch.full((4,), 0.5).mul_(t["x"][0, 0])
    t["sum"] += torch.empty(4).copy_(t["sum"]) + torch.tensor(2.0)


def several_results(t: dict[str, Tensor]) -> None:
    values, places = t["x"].max(1)
    t["sum"] += values[:4] + places[:4] + t["x"].chunk(3)[1].sum() + torch.stack([t["sum"]] * 2)[1]
    t["x"].copy_(F.layer_norm(t["x"], (5,)))


def casts(t: dict[str, Tensor]) -> None:
    t["rows"].add_(t["x"][:4, 0].double().clamp_(min=-1).long()).clamp_(0, 4)
    t["sum"] += (t["rows"] > 1) & (t["sum"].clone() < 5)


STEPS: list[Step] = [matrix_product, gradient_step, rows, new_tensors, several_results, casts]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_replays_equal_repeated_steps(step: Step) -> None:
    expected, found = tensors(), tensors()
    for _ in range(4):
        step(expected)
    with Recording() as recording:
        step(found)
    assert not recording.problem
    for _ in range(3):
        recording.replay()
    assert all(expected[name].equal(found[name]) for name in expected)


def operations() -> dict[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]]:
    """Every operation that writes to given memory."""
    labels = torch.tensor([[2], [0], [1]])
    return {
        "add.Tensor": lambda a, b, g: torch.add(a, b, alpha=2) + 1,
        "sub.Tensor": lambda a, b, g: a - b,
        "mul.Tensor": lambda a, b, g: 0.5 * (a * b),
        "div.Tensor": lambda a, b, g: a / b / 3,
        "addmm.default": lambda a, b, g: torch.addmm(b[0], a, b, beta=2),
        "mm.default": lambda a, b, g: a @ b.t(),
        "bmm.default": lambda a, b, g: torch.stack([a, b]) @ torch.stack([b, a]),
        "eq.Scalar": lambda a, b, g: a == 0.5,
        "eq.Tensor": lambda a, b, g: a == a.floor(),
        "ne.Scalar": lambda a, b, g: a != 0.5,
        "ne.Tensor": lambda a, b, g: a != b,
        "lt.Scalar": lambda a, b, g: a < 0.5,
        "lt.Tensor": lambda a, b, g: a < b,
        "gt.Scalar": lambda a, b, g: a > 0.5,
        "gt.Tensor": lambda a, b, g: a > b,
        "where.self": lambda a, b, g: torch.where(a < b, a, b),
        "cat.default": lambda a, b, g: torch.cat([a, b], 1),
        "stack.default": lambda a, b, g: torch.stack([a, b], 1),
        "index_select.default": lambda a, b, g: a.index_select(1, labels[:, 0]),
        "gather.default": lambda a, b, g: a.gather(1, labels),
        "scatter.value": lambda a, b, g: a.scatter(1, labels, -torch.inf),
        "sum.dim_IntList": lambda a, b, g: a.sum(0, keepdim=True) + a.sum(1, dtype=torch.float64),
        "logsumexp.default": lambda a, b, g: a.logsumexp(1),
        "bucketize.Tensor": lambda a, b, g: torch.bucketize(
            a, torch.tensor([0.2, 0.7]), right=True
        ),
        "_log_softmax.default": lambda a, b, g: a.log_softmax(1),
        "_log_softmax_backward_data.default": _softmax_gradient,
        "rand.generator": lambda a, b, g: a + torch.rand(3, 3, generator=g, dtype=torch.float64),
        "randperm.generator": lambda a, b, g: a[0] + torch.randperm(3, generator=g),
    }


def _softmax_gradient(a: Tensor, b: Tensor, draws: torch.Generator) -> Tensor:
    leaf = a.clone().requires_grad_()
    return torch.autograd.grad(leaf.log_softmax(1), leaf, b)[0]


@pytest.mark.parametrize("name", operations())
def test_replays_of_single_operations(name: str) -> None:
    operation, draws = operations()[name], [torch.Generator().manual_seed(0) for _ in range(2)]
    values = torch.rand(4, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    a, b = values[0].clone()
    operation(a, b, draws[0])
    with Recording() as recording:
        found = operation(a, b, draws[1])
    for other_a, other_b in values[1:]:
        a.copy_(other_a)
        b.copy_(other_b)
        recording.replay()
        assert found.equal(operation(a, b, draws[0]))


def test_all_operations_that_write_to_given_memory_are_tested() -> None:
    assert {f"aten.{name}" for name in operations()} == {str(each) for each in WITH_OUT}


@pytest.mark.parametrize("own", [True, False])
def test_replays_draw_new_numbers(own: bool) -> None:
    draws = torch.Generator().manual_seed(3) if own else None
    total, drawn = torch.zeros(3), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        with Recording() as recording:
            total.copy_(torch.rand(3, generator=draws))
        for _ in range(2):
            drawn.append(total.clone())
            recording.replay()
    expected = torch.rand(9, generator=torch.Generator().manual_seed(3)).chunk(3)
    assert recording.draws_globally is not own
    assert all(a.equal(b) for a, b in zip([*drawn, total], expected, strict=True))


def test_replays_update_the_statistics_of_batchnorm() -> None:
    networks = [nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5))]
    networks.append(nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5)))
    networks[1].load_state_dict(networks[0].state_dict())
    inputs, outputs = torch.rand(4, 1, 6, 6), torch.zeros(2, 4, 3, 4, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for _ in range(3):
            outputs[0].copy_(networks[0](inputs).detach())
        torch.manual_seed(1)
        with Recording() as recording:
            outputs[1].copy_(networks[1](inputs).detach())
        recording.replay()
        recording.replay()
    assert outputs[0].equal(outputs[1])
    states = (network.state_dict().values() for network in networks)
    assert all(a.equal(b) for a, b in zip(*states, strict=True))


REFUSED: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "a branch on a value": lambda t: t["x"].zero_() if t["x"].sum() > 0 else None,
    "a number": lambda t: t["x"].mul_(t["x"].sum().item()),
    "a list": lambda t: t["x"].mul_(t["rows"].tolist()[0]),
    "an array": lambda t: t["x"].mul_(float(t["rows"].numpy()[0])),
    "a selection by a mask": lambda t: t["sum"].add_(t["x"][t["x"] > 0].sum()),
    "another shape in place": lambda t: t["sum"].add_(t["x"].clone().t_()[0, 0]),
    "a changed constant": lambda t: t["sum"].add_(torch.tensor(1.0).add_(t["x"][0, 0])),
    "a sparse tensor": lambda t: t["sum"].add_(t["x"][:4, 0].to_sparse().to_dense()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_steps_are_executed_but_cannot_be_replayed(what: str) -> None:
    found, expected = tensors(), tensors()
    with torch.no_grad():
        REFUSED[what](expected)
        with Recording() as recording:
            REFUSED[what](found)
    with pytest.raises(ValueError, match=re.escape(recording.problem)):
        recording.replay()
    assert len(recording) == 0
    assert all(found[name].equal(expected[name]) for name in found)


def test_large_steps_are_not_kept() -> None:
    x, total = torch.ones(1000), torch.zeros(1000)
    with Recording(max_bytes=4000) as small:
        total += x * 2
    with Recording(max_bytes=3999) as large:
        total += x * 2
    assert (small.problem, small.bytes) == ("", 4000)
    assert "bytes" in large.problem
    assert total.equal(4 * x)


def test_only_operations_are_replayed() -> None:
    x, total = torch.rand(3, 4), torch.zeros(3)
    with Recording() as recording:
        total += x.t().reshape(2, 2, 3).view(4, 3)[1:3].detach()[0]
    assert len(recording) == 1
