"""Time of one step of the published S-CIFAR-10 protocol on a GPU: a usual setup and ours.

    python benchmarks/gpu_step.py [--quick] [--compiled] [--start-only]

Prints one JSON line: milliseconds per step (per learner, if several train side by side), the GPU's
bf16 matrix rate, the share of it that is reached, the share of a run that evaluation takes, and how
long eight learners need to start: the seconds from the start of a process to their 100th step, with
empty kernel caches and with those that the first process has filled.
"""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.evaluation import accuracies
from perdure.learners import CLSER
from perdure.networks import ResNet18
from perdure.processes import leave_out_compiler
from perdure.records import Samples
from perdure.streams import CIFAR10, CropFlip, Test
from perdure.training.engine import Captured, Eager

BATCH = 32
FLOP_PER_IMAGE = 1.11e9
"""One forward of this ResNet-18 on a 32 x 32 image; a backward costs twice as much."""
FLOP_PER_STEP = FLOP_PER_IMAGE * (3 * (BATCH + 2 * BATCH) + 2 * BATCH)
"""Working network on replay and on the union, forward and backward; two memories forward."""
STEPS, EVALUATIONS, TEST_IMAGES = 78_000, 6, 10_000
"""Of a run on S-CIFAR-10; an evaluation covers at most these images."""
SETTINGS = {
    "memory_batch": BATCH,
    "consistency_weight": 0.15,
    "stable_rate": 0.1,
    "plastic_rate": 0.9,
    "lr": 0.1,
}


def milliseconds(step: Callable[[], object], steps: int, warm: int) -> float:
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / steps


def matrix_rate() -> float:
    """Rate of bf16 matrix products in TFLOP/s."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / milliseconds(lambda: torch.mm(a, b), 20, 5) / 1e9


class UsualWay:
    """The published step as it is commonly written: eager float32, the buffer sample by sample."""

    def __init__(self, buffer_size: int, samples: Samples) -> None:
        self.working: nn.Module = ResNet18(10).cuda()
        self.plastic = copy.deepcopy(self.working)
        self.stable = copy.deepcopy(self.working)
        self.optimizer = torch.optim.SGD(self.working.parameters(), lr=0.1)
        self.samples = samples
        self.inputs = samples.inputs[:buffer_size].clone()
        self.labels = samples.labels[:buffer_size].clone()
        self.seen = 10 * buffer_size
        self.steps = 1000
        mean, std = (
            torch.tensor(v, device="cuda")[:, None, None] for v in (CIFAR10.mean, CIFAR10.std)
        )
        self.mean, self.std = mean, std

    def transform(self, image: Tensor) -> Tensor:
        """Crop, flip and normalise one image."""
        padded = F.pad(image.float() / 255, [4] * 4)
        top, left = random.randrange(9), random.randrange(9)
        crop = padded[:, top : top + 32, left : left + 32]
        return ((crop.flip(2) if random.random() < 0.5 else crop) - self.mean) / self.std

    def step(self) -> None:
        """One step, data included."""
        rows = torch.randint(len(self.samples.labels), (BATCH,), device="cuda")
        raw, y = self.samples.inputs[rows], self.samples.labels[rows]
        x = torch.stack([self.transform(image) for image in raw])
        chosen = random.sample(range(len(self.labels)), BATCH)
        x_m = torch.stack([self.transform(self.inputs[i]) for i in chosen])
        y_m = torch.stack([self.labels[i] for i in chosen])
        with torch.no_grad():
            plastic, stable = self.plastic(x_m), self.stable(x_m)
            column = torch.arange(BATCH, device="cuda")
            better = stable.softmax(1)[column, y_m] > plastic.softmax(1)[column, y_m]
            target = torch.where(better[:, None], stable, plastic)
        self.optimizer.zero_grad()
        consistency = F.mse_loss(self.working(x_m), target)
        union = self.working(torch.cat([x, x_m]))
        loss = F.cross_entropy(union, torch.cat([y, y_m])) + 0.15 * consistency
        loss.backward()  # type: ignore[no-untyped-call]
        if not torch.isfinite(loss).item():
            raise RuntimeError("the loss is not finite")
        self.optimizer.step()
        for image, label in zip(raw, y, strict=True):
            slot = random.randint(0, self.seen)
            self.seen += 1
            if slot < len(self.labels):
                self.inputs[slot] = image
                self.labels[slot] = label
        self.steps += 1
        for model, rate in ((self.plastic, 0.9), (self.stable, 0.1)):
            if random.random() < rate:
                decay = min(1 - 1 / (self.steps + 1), 0.999)
                for mean, new in zip(model.parameters(), self.working.parameters(), strict=True):
                    mean.data.mul_(decay).add_(new.data, alpha=1 - decay)


def build(seed: int, buffer_size: int) -> CLSER:
    return CLSER(
        ResNet18(10).cuda().to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        buffer_size=buffer_size,
        augment=CropFlip(4),
        normalise=CIFAR10,
        seed=seed,
        **SETTINGS,  # type: ignore[arg-type]
    )


def random_images(count: int) -> Samples:
    draws = torch.Generator("cuda").manual_seed(0)
    inputs = torch.randint(0, 256, (count, 3, 32, 32), generator=draws, device="cuda").byte()
    return Samples(inputs, torch.randint(0, 2, (count,), generator=draws, device="cuda"))


def start(learners: int) -> dict[str, object]:
    """Seconds since the parent started this process, at several points up to step 100."""
    began = float(os.environ["BEGAN"])
    found: dict[str, object] = {"imported": time.time() - began}
    compiled: list[float] = []

    def count(*, times: Any, cache_hit: bool, **_: object) -> None:
        if not cache_hit:
            compiled.append(times.total / 1e6)

    import triton

    triton.knobs.compilation.listener = count
    samples = random_images(4_096)
    torch.cuda.synchronize()
    leave_out_compiler()  # as the command does
    found["device_ready"] = time.time() - began
    group = [build(seed, 500) for seed in range(learners)]
    found["built"] = time.time() - began
    engine = Captured("cuda", "bf16")
    for step in range(100):
        batch = samples.slice(step * BATCH, (step + 1) * BATCH)
        for number, learner in enumerate(group):
            engine.step(learner, batch)
            if number == 0 and step in (0, 1, 2):
                engine.synchronize()
                found[f"first_learner_step_{step + 1}"] = time.time() - began
        if step + 1 in (1, 2, 3, 10, 15, 20, 25, 30, 100):
            engine.synchronize()
            found[f"step_{step + 1}"] = time.time() - began
    found = {name: round(value, 1) for name, value in found.items() if isinstance(value, float)}
    return {**found, "kernels_compiled": len(compiled), "compiling": round(sum(compiled), 1)}


def starts(learners: int) -> dict[str, object]:
    """Start in two new processes: with an empty cache of kernels, and with the cache it filled."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            variables = {**os.environ, "TRITON_CACHE_DIR": cache, "BEGAN": str(time.time())}
            command = [sys.executable, __file__, "--child", str(learners)]
            child = subprocess.run(command, env=variables, capture_output=True, text=True)
            if child.returncode:
                raise RuntimeError(child.stderr)
            found[name] = json.loads(child.stdout)
            print(name, found[name], file=sys.stderr, flush=True)
    return found


def ours(
    samples: Samples, learners: int, engine: Eager, steps: int, buffer_size: int = 500
) -> tuple[float, float]:
    """Milliseconds per step of each learner, and seconds until all graphs were captured."""
    group = [build(seed, buffer_size) for seed in range(learners)]
    order = torch.Generator().manual_seed(0)

    def step() -> None:
        for learner in group:
            rows = torch.randint(len(samples.labels), (BATCH,), generator=order)
            engine.step(learner, samples.rows(rows.cuda(non_blocking=True)))

    for learner in group:  # fill the memories in a few large presentations
        learner.memory.add(Samples(samples.inputs[:buffer_size], samples.labels[:buffer_size]))
    began = time.perf_counter()
    for _ in range(9):
        step()
    engine.synchronize()
    start = time.perf_counter() - began
    return milliseconds(step, steps, 20) / learners, start


def evaluation_share(samples: Samples, ms: float) -> float:
    """Upper bound of the share of a run that evaluation takes if a step takes `ms`."""
    predictors, engine = build(0, 500).predictors().values(), Eager("cuda", "bf16")
    tests = [Test("all", lambda: samples.slice(0, TEST_IMAGES))]

    def evaluate() -> None:
        with engine.autocast():
            for predict in predictors:
                accuracies(predict, tests)

    evaluating = EVALUATIONS * milliseconds(evaluate, 3, 1)
    return evaluating / (evaluating + STEPS * ms)


def main() -> None:
    torch.backends.cudnn.benchmark = True
    if "--child" in sys.argv:
        print(json.dumps(start(int(sys.argv[-1]))))
        return
    if "--start-only" in sys.argv:
        print(json.dumps(starts(8)))
        return
    steps = 60 if "--quick" in sys.argv else 300
    samples = random_images(10_000)
    found: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    rate = matrix_rate()
    found["bf16_matrix_tflops"] = round(rate)
    usual = milliseconds(UsualWay(500, samples).step, 30, 5)
    found["usual_eager_fp32_ms"] = round(usual, 2)
    found["ours_eager_bf16_ms"] = round(ours(samples, 1, Eager("cuda", "bf16"), 40)[0], 2)
    ms = 0.0
    for compiled in (False, True) if "--compiled" in sys.argv else (False,):
        for learners in (1, 4, 8):
            name = f"{'compiled' if compiled else 'captured'}_{learners}"
            engine = Captured("cuda", "bf16", compiled=compiled)
            ms, began = ours(samples, learners, engine, steps)
            share = FLOP_PER_STEP / (ms / 1000) / 1e12 / rate
            found[name] = {
                "ms_per_learner_step": round(ms, 3),
                "times_faster": round(usual / ms, 1),
                "share_of_matrix_rate": round(share, 3),
                "start_s": round(began, 1),
                "refused": [refusal[:100] for refusal in engine.fallbacks()][:1],
            }
            print(name, found[name], file=sys.stderr, flush=True)
    found["evaluation_share"] = round(evaluation_share(samples, ms), 4)
    small, large = (
        ours(samples, 1, Captured("cuda", "bf16"), steps, buffer_size)[0]
        for buffer_size in (200, 5120)
    )
    found["buffer_5120_over_200"] = round(large / small, 3)
    found["start_8"] = starts(8)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
