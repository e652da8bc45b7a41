from __future__ import annotations

import hashlib

import pytest
import torch
from scipy import stats

from perdure.randomness import derive, generator


@pytest.mark.parametrize(("seed", "name"), [(0, "order"), (17, "stable update"), (2**40, "ü")])
def test_derived_seed_is_independent_of_the_machine(seed: int, name: str) -> None:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()
    assert derive(seed, name) == int(digest[:16], 16) // 2


def test_derived_seeds_do_not_collide() -> None:
    names = ("order", "reservoir", "replay", "augmentation", "initialisation", "global", "", "1")
    derived = {derive(seed, name) for seed in range(-50, 200) for name in names}
    assert len(derived) == 250 * len(names)
    assert all(0 <= value < 2**63 for value in derived)


def test_generator_uses_the_derived_seed_and_no_global_state() -> None:
    before = torch.get_rng_state()
    one, other = generator(3, "order"), torch.Generator().manual_seed(derive(3, "order"))
    assert torch.rand(5, generator=one).equal(torch.rand(5, generator=other))
    assert torch.get_rng_state().equal(before)


def test_draws_of_neighbouring_seeds_are_independent() -> None:
    first = torch.stack([torch.rand(2, generator=generator(s, "order")) for s in range(2000)])
    assert stats.kstest(first[:, 0].numpy(), "uniform").pvalue > 0.01
    assert abs(float(torch.corrcoef(torch.stack([first[:-1, 0], first[1:, 0]]))[0, 1])) < 0.07
    other = torch.stack([torch.rand(1, generator=generator(s, "replay")) for s in range(2000)])
    assert abs(float(torch.corrcoef(torch.stack([first[:, 0], other[:, 0]]))[0, 1])) < 0.07
