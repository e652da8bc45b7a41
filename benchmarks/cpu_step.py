"""S-MNIST/500 and R-MNIST/500 on one core, compared with bare tensors and with a usual setup.

    python benchmarks/cpu_step.py [--data DIR]

Prints one JSON line. All times are processor time, which other processes disturb less; what is
compared takes turns.

- `step_over_bare`, `eager_over_bare`: time of our CLS-ER step, as the command runs it and eager,
  relative to the same algorithm on bare tensors (no modules, no optimizer object, no counters, no
  checks);
- `s_mnist_times_faster`, `r_mnist_times_faster`: time of a run with evaluation in a usual setup
  relative to ours. The usual setup is a DataLoader over PIL images, per-image transforms, a buffer
  that is filled and read sample by sample, and an evaluation of each network with the same loader.
  It is measured on a few hundred steps and some test images, before and after ours, and scaled to
  a run with the same steps and evaluations; ours is a complete run;
- `ten_seeds_times_faster`: ten such runs of S-MNIST in the usual setup relative to the command
  `perdure run` with ten seeds, including the start of its processes.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from perdure import presets
from perdure.catalog import build_stream
from perdure.data import Dataset, load
from perdure.learners import CLSER
from perdure.networks import MLP
from perdure.records import Samples
from perdure.training import Run, train
from perdure.training.engine import Eager, Recorded

PUBLISHED_MS = {"s-mnist": 3.3, "r-mnist": 15.7}
"""Milliseconds per step, data included, of the published code on one core."""


def settings(stream: str) -> dict[str, Any]:
    preset = presets.find("clser", stream, 500)
    assert preset is not None
    return dict(preset.values)


class Bare:
    """CLS-ER's arithmetic on bare tensors."""

    def __init__(self, values: dict[str, Any], samples: Samples) -> None:
        self.v = values
        self.working = [p.detach().requires_grad_() for p in MLP(784, 10).parameters()]
        self.plastic = [p.detach().clone() for p in self.working]
        self.stable = [p.detach().clone() for p in self.working]
        self.inputs, self.labels = samples.inputs[:500].clone(), samples.labels[:500].clone()
        self.seen, self.step_number = 500, 0

    @staticmethod
    def forward(x: Tensor, weights: list[Tensor]) -> Tensor:
        """Logits of an MLP with these weights."""
        x = F.linear(x, weights[0], weights[1]).relu()
        x = F.linear(x, weights[2], weights[3]).relu()
        return F.linear(x, weights[4], weights[5])

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """One round of Algorithm 1."""
        n = len(labels)
        rows = torch.randperm(500)[: self.v["memory_batch"]]
        x = torch.cat([inputs, self.inputs[rows]]).flatten(1).float().div_(255)
        y = torch.cat([labels, self.labels[rows]])
        x_m, y_m = x[n:], y[n:]
        with torch.no_grad():
            plastic, stable = self.forward(x_m, self.plastic), self.forward(x_m, self.stable)
            both, own = torch.stack([plastic, stable]), y_m.expand(2, -1).unsqueeze(2)
            odds = both.scatter(2, own, -torch.inf).logsumexp(2) - both.gather(2, own).squeeze(2)
            better = odds[0] < odds[1]
            z = torch.where(better[:, None], plastic, stable)
        logits = self.forward(x, self.working)
        loss = F.cross_entropy(logits, y) + self.v["consistency_weight"] * F.mse_loss(logits[n:], z)
        gradients = torch.autograd.grad(loss, self.working)
        with torch.no_grad():
            for weight, gradient in zip(self.working, gradients, strict=True):
                weight.sub_(gradient, alpha=self.v["lr"])
            slots = (
                torch.rand(n, dtype=torch.float64) * (self.seen + torch.arange(1, n + 1))
            ).long()
            kept = slots < 500
            self.inputs[slots[kept]], self.labels[slots[kept]] = inputs[kept], labels[kept]
            self.seen += n
            self.step_number += 1
            for name, memory in (("plastic", self.plastic), ("stable", self.stable)):
                if random.random() < self.v[f"{name}_rate"]:
                    weight_ = max(1 / (self.step_number + 1), 1 - self.v[f"{name}_decay"])
                    torch._foreach_lerp_(memory, self.working, weight_)


def step_over_bare(dataset: Dataset) -> dict[str, float]:
    values = settings("s-mnist")
    kept = {k: v for k, v in values.items() if k not in ("batch", "epochs")}
    ours, eager = (CLSER(MLP(784, 10), buffer_size=500, **kept) for _ in range(2))
    steps: dict[str, Callable[[Samples], None]] = {
        "our": partial(Recorded().step, ours),
        "eager": partial(Eager().step, eager),
    }
    bare = Bare(values, dataset.train)
    steps["bare"] = lambda batch: bare.step(batch.inputs, batch.labels)

    def microseconds(step: Callable[[Samples], None], start: int) -> float:
        began = time.process_time()
        for i in range(start, start + 2000, 10):
            step(dataset.train.slice(i, i + 10))
        return (time.process_time() - began) / 200 * 1e6

    blocks = [
        {name: microseconds(step, 2000 * block) for name, step in steps.items()}
        for block in range(30)
    ][5:]

    def median(value: Callable[[dict[str, float]], float], digits: int | None = None) -> float:
        return round(statistics.median(map(value, blocks)), digits)

    return {
        **{f"{name}_step_us": median(itemgetter(name)) for name in steps},
        "step_over_bare": median(lambda times: times["our"] / times["bare"], 3),
        "eager_over_bare": median(lambda times: times["eager"] / times["bare"], 3),
    }


class Images(torch.utils.data.Dataset[tuple[Tensor, int, Tensor]]):
    """Images as PIL objects, transformed one by one.

    In training each comes twice, as continual-learning frameworks have it: transformed, and plain
    for the buffer.
    """

    def __init__(self, samples: Samples, degrees: float | None, *, train: bool) -> None:
        self.inputs, self.labels = samples.inputs[:, 0], samples.labels
        self.degrees = degrees
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int, Tensor]:
        image, label = self.inputs[index], int(self.labels[index])
        picture = Image.fromarray(image.numpy())
        if self.degrees is not None:
            picture = picture.rotate(self.degrees)
        plain = self.to_tensor(picture.copy()) if self.train else torch.empty(0)
        return self.to_tensor(picture), label, plain

    @staticmethod
    def to_tensor(picture: Image.Image) -> Tensor:
        """Pixels with a channel in front, from 0 to 1."""
        pixels = torch.from_numpy(np.array(picture, np.uint8, copy=True))
        pixels = pixels.view(picture.size[1], picture.size[0], 1).permute(2, 0, 1).contiguous()
        return pixels.to(dtype=torch.get_default_dtype()).div(255)


class UsualWay:
    """The published protocol as it is commonly written."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.v = values
        self.working = MLP(784, 10)
        self.plastic, self.stable = copy.deepcopy(self.working), copy.deepcopy(self.working)
        self.optimizer = torch.optim.SGD(self.working.parameters(), lr=values["lr"])
        self.inputs, self.labels = torch.zeros(500, 1, 28, 28), torch.zeros(500, dtype=torch.long)
        self.seen = self.steps = 0

    def observe(self, x: Tensor, y: Tensor, plain: Tensor) -> None:
        """One step."""
        self.optimizer.zero_grad()
        inputs, targets = x, y
        loss = torch.zeros(())
        if self.seen:
            count = min(self.v["memory_batch"], self.seen, 500)
            chosen = np.random.choice(min(self.seen, 500), size=count, replace=False)
            x_m = torch.stack([self.inputs[i] for i in chosen])
            y_m = torch.stack([self.labels[i] for i in chosen])
            with torch.no_grad():
                plastic, stable = self.plastic(x_m), self.stable(x_m)
            column = torch.arange(count)
            better = stable.softmax(1)[column, y_m] > plastic.softmax(1)[column, y_m]
            target = torch.where(better[:, None], stable, plastic)
            loss = self.v["consistency_weight"] * F.mse_loss(self.working(x_m), target)
            inputs, targets = torch.cat([x, x_m]), torch.cat([y, y_m])
        loss = loss + F.cross_entropy(self.working(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if not torch.isfinite(loss).item():
            raise RuntimeError("the loss is not finite")
        for image, label in zip(plain, y, strict=True):
            slot = self.seen if self.seen < 500 else np.random.randint(0, self.seen + 1)
            self.seen += 1
            if slot < 500:
                self.inputs[slot] = image
                self.labels[slot] = label
        self.steps += 1
        for model, name in ((self.plastic, "plastic"), (self.stable, "stable")):
            if random.random() < self.v[f"{name}_rate"]:
                decay = min(1 - 1 / (self.steps + 1), self.v[f"{name}_decay"])
                for mean, new in zip(model.parameters(), self.working.parameters(), strict=True):
                    mean.data.mul_(decay).add_(new.data, alpha=1 - decay)


def usual_seconds(stream: str, dataset: Dataset, steps: int) -> tuple[float, float]:
    """Milliseconds per step and seconds per run of the usual setup."""
    values = settings(stream)
    degrees = 33.0 if stream == "r-mnist" else None
    learner = UsualWay(values)
    inputs = Images(dataset.train, degrees, train=True)
    loader = DataLoader(inputs, batch_size=values["batch"], shuffle=True)
    began = 0.0
    for number, batch in enumerate(loader):
        if number == steps:  # the first half fills the buffer
            began = time.process_time()
        if number == 2 * steps:
            break
        learner.observe(*batch)
    per_step = (time.process_time() - began) / steps

    tests = Images(
        Samples(dataset.test.inputs[:2000], dataset.test.labels[:2000]), degrees, train=False
    )
    mask = torch.zeros(10)
    mask[2:] = -torch.inf
    began = time.process_time()
    right = right_of_task = 0
    for x, y, _ in DataLoader(tests, batch_size=values["batch"]):
        with torch.no_grad():
            scores = learner.stable(x)
            right += (scores.argmax(1) == y).sum().item()
            if degrees is None:  # S-MNIST has Task-IL accuracy too
                right_of_task += ((scores + mask).argmax(1) == y).sum().item()
    per_test_image = (time.process_time() - began) / len(tests)

    # What our loop evaluates after each task: the tests of the tasks seen and of the next one.
    tasks, of_a_task, total_steps = (20, 10_000, 469 * 20) if degrees else (5, 2_000, 6_000)
    evaluations = sum(min(task + 2, tasks) for task in range(tasks))
    shown = 3 * evaluations * of_a_task
    return 1000 * per_step, total_steps * per_step + shown * per_test_image


def our_seconds(stream: str, dataset: Dataset) -> float:
    values = settings(stream)
    kept = {k: v for k, v in values.items() if k not in ("batch", "epochs")}
    began = time.process_time()
    built = build_stream(stream, dataset)
    learner = CLSER(MLP(784, 10), buffer_size=500, normalise=built.normalise, **kept)
    train([Run(learner, built, values["batch"], values["epochs"])], engine=Recorded())
    return time.process_time() - began


def ten_seeds_seconds(place: str | None) -> float:
    """Seconds per run of the command with ten seeds, by all its processes."""
    command = [sys.executable, "-m", "perdure", "run", "s-mnist", "--method", "clser"]
    command += ["--buffer-size", "500", "--dataset", "mnist", "--device", "cpu", "--seeds", "0:10"]
    command += [] if place is None else ["--data", place]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command += ["--out", folder, "--quiet"]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / 10


def main() -> None:
    torch.set_num_threads(1)
    place = sys.argv[sys.argv.index("--data") + 1] if "--data" in sys.argv else None
    dataset = load("mnist", None if place is None else Path(place))
    found: dict[str, object] = {"torch": torch.__version__, **step_over_bare(dataset)}
    for name, stream, steps, seconds in (
        ("s_mnist", "s-mnist", 400, partial(our_seconds, "s-mnist", dataset)),
        ("ten_seeds", "s-mnist", 400, partial(ten_seeds_seconds, place)),
        ("r_mnist", "r-mnist", 60, partial(our_seconds, "r-mnist", dataset)),
    ):
        before = usual_seconds(stream, dataset, steps)
        ours = seconds()
        after = usual_seconds(stream, dataset, steps)
        ms, usual = ((a + b) / 2 for a, b in zip(before, after, strict=True))
        found |= {
            f"{name}_usual_ms_per_step": round(ms, 2),
            f"{name}_published_ms_per_step": PUBLISHED_MS[stream],
            f"{name}_usual_s": round(usual, 1),
            f"{name}_our_s": round(ours, 1),
            f"{name}_times_faster": round(usual / ours, 1),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
