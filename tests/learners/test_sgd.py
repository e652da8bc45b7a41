from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from perdure.learners import SGD


def test_steps_match_the_closed_form_gradient() -> None:
    network = nn.Linear(5, 3, dtype=torch.float64)
    weight, bias = network.weight.detach().clone(), network.bias.detach().clone()
    learner = SGD(network, lr=0.2)
    for seed in range(20):
        draws = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 5, dtype=torch.float64, generator=draws)
        y = torch.randint(3, (4,), generator=draws)
        learner.observe(x, y)
        # The gradient of the mean cross-entropy by the logits is (p − 1_y) / n.
        slope = ((x @ weight.T + bias).softmax(1) - F.one_hot(y, 3)) / 4
        weight -= 0.2 * slope.T @ x
        bias -= 0.2 * slope.sum(0)
    torch.testing.assert_close(network.weight.detach(), weight, atol=1e-13, rtol=0)
    torch.testing.assert_close(network.bias.detach(), bias, atol=1e-13, rtol=0)
    assert list(learner.predictors()) == ["working"]
