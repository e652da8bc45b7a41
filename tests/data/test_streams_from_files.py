"""CIFAR and Tiny-ImageNet streams, from files in the official layout to the ResNet-18."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest
import torch

from perdure.catalog import NETWORKS, STREAMS, build_stream
from perdure.data import load
from perdure.learners import CLSER

from .small import Small, cifar, tiny_imagenet

BATCH = 4


@cache
def files_for(dataset: str) -> Small:
    if dataset == "tiny-imagenet":
        return tiny_imagenet(200)
    if dataset == "cifar10":
        return cifar("cifar10", per_batch=20, tests=20)
    return cifar("cifar100", per_batch=25_000, tests=200)  # GCIL needs 20,000 samples


RESNET = [name for name, entry in STREAMS.items() if entry.network == "resnet18"]
QUICK = "s-tiny-imagenet"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == QUICK else pytest.mark.slow) for n in RESNET]
)
def test_a_resnet_trains_on_the_stream(name: str, tmp_path: Path) -> None:
    entry = STREAMS[name]
    small = files_for(entry.datasets[0])
    dataset = load(small.spec, small.write(tmp_path))
    stream = build_stream(name, dataset)
    network = NETWORKS[entry.network](stream.shape, stream.classes)
    learner = CLSER(
        network,
        buffer_size=20,
        memory_batch=BATCH,
        augment=stream.augment,
        normalise=stream.normalise,
    )
    before = [p.detach().clone() for p in network.parameters()]
    batches = stream.tasks[0].epoch(BATCH, torch.Generator().manual_seed(0))
    for batch in itertools.islice(batches, 2):
        learner.observe(batch.inputs, batch.labels)
    assert int(learner.steps) == 2
    assert learner.nonfinite_step == 0
    assert all(not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert learner.predict(stream.tests[0].samples().inputs[:2]).shape == (2,)
