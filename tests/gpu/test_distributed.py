"""Two ranks on one GPU, with synchronised BatchNorm, compared with one process."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from perdure import CLSER, DERPP, Learner
from perdure.networks import ResNet18
from perdure.training.distributed import divide

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_two_ranks_learn_the_same_as_one_process() -> None:
    ended = subprocess.run(
        [*TORCHRUN, str(Path(__file__))],
        env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("equal") == 2


def learn(kind: type[CLSER] | type[DERPP], *, divided: bool) -> Learner:
    torch.manual_seed(0)
    network = ResNet18(4, width=8).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learner = kind(network, buffer_size=24, memory_batch=8, lr=0.01)
    if divided:
        divide(learner)
    draws = torch.Generator().manual_seed(1)
    for _ in range(6):
        inputs = torch.rand(8, 3, 16, 16, generator=draws)
        learner.observe(inputs, torch.randint(4, (8,), generator=draws))
    return learner


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3, msg=name)


def main() -> None:
    """Compare a learner trained by this rank alone with one trained by both."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.allow_tf32 = False
    dist.init_process_group("gloo")  # NCCL does not support two ranks on one GPU
    for kind in (CLSER, DERPP):
        alone = copy.deepcopy(learn(kind, divided=False).state_dict())
        shared = learn(kind, divided=True).state_dict()
        for part in ("network", *(["stable", "plastic"] if kind is CLSER else [])):
            one, other = (s[part].get("network", s[part]) for s in (alone, shared))
            assert_close(other, one)
        assert_close(shared["memory"]["stored"], alone["memory"]["stored"])
    print("equal")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
