"""Time BatchNorm statistics that cuDNN computes in the epilogue of a convolution.

    pip install nvidia-cudnn-frontend
    python experiments/conv_statistics.py

For the 3 x 3 convolutions of each stage of ResNet-18 on 32 x 32 images, and for batches of 64 and
32, prints one JSON line with microseconds: torch's convolution alone, followed by our kernels
(statistics, normalisation and ReLU), and cuDNN's fused graphs (the fastest of their plans): the
convolution with statistics, and the same with normalisation and ReLU of its input.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import cudnn  # type: ignore[import-not-found]
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.kernels.norm import norm_add_relu

STAGES = {64: 32, 128: 16, 256: 8, 512: 4}
"""Channels, and the width of an image."""
REPEATS, PLANS = 20, 3
DTYPE = torch.bfloat16

torch.backends.cudnn.benchmark = True


class Layer:
    """A convolution and its BatchNorm with inputs of its own."""

    def __init__(self, n: int, channels: int, width: int) -> None:
        def last(t: Tensor) -> Tensor:
            return t.to(memory_format=torch.channels_last)

        shape = (n, channels, width, width)
        self.x = last(torch.randn(shape, device="cuda", dtype=DTYPE))
        weight = torch.randn(channels, channels, 3, 3, device="cuda", dtype=DTYPE)
        self.weight = last(weight / (3 * channels**0.5))
        self.norm = nn.BatchNorm2d(channels).cuda()
        vector = (1, channels, 1, 1)
        self.scale = last(torch.rand(vector, device="cuda", dtype=DTYPE) + 0.5)
        self.bias = last(torch.randn(vector, device="cuda", dtype=DTYPE))
        self.y = torch.empty_like(self.x)
        self.sums = torch.full((2, 1, channels, 1, 1), torch.nan, device="cuda")
        self.handle = cudnn.create_handle()
        self.workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

    def convolution(self) -> None:
        """Torch's convolution."""
        F.conv2d(self.x, self.weight, padding=1)

    def convolution_norm(self) -> None:
        """Torch's convolution, then our statistics, normalisation and ReLU."""
        y = F.conv2d(self.x, self.weight, padding=1)
        norm_add_relu(y, None, self.norm, (len(y),), relu=True)


class Fused:
    """A graph of cuDNN: a convolution with statistics of its output."""

    def __init__(self, layer: Layer, *, normalise: bool) -> None:
        self.normalise = normalise
        self.graph = cudnn.pygraph(
            io_data_type=cudnn.data_type.BFLOAT16,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=layer.handle,
        )
        graph = self.graph

        def tensor(t: Tensor) -> Any:
            return graph.tensor(dim=list(t.shape), stride=list(t.stride()), data_type=t.dtype)

        self.x, self.weight = tensor(layer.x), tensor(layer.weight)
        image = self.x
        if normalise:
            self.scale, self.bias = tensor(layer.scale), tensor(layer.bias)
            scaled = graph.scale(input=image, scale=self.scale)
            image = graph.relu(input=graph.bias(input=scaled, bias=self.bias))
        pair = [1, 1]
        self.y = graph.conv_fprop(
            image=image, weight=self.weight, padding=pair, stride=pair, dilation=pair
        )
        self.y.set_output(True)
        self.sums = graph.genstats(input=self.y)
        for result in self.sums:
            result.set_output(True).set_data_type(cudnn.data_type.FLOAT)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        self.plans = []
        for plan in range(min(PLANS, graph.get_execution_plan_count())):
            try:
                graph.build_plan_at_index(plan)
            except cudnn.cudnnGraphNotSupportedError:
                continue
            if graph.get_workspace_size_plan_at_index(plan) <= layer.workspace.numel():
                self.plans.append(plan)

    def run(self, layer: Layer, plan: int) -> None:
        """Execute a plan in the current stream."""
        cudnn.set_stream(handle=layer.handle, stream=torch.cuda.current_stream().cuda_stream)
        values = {self.x: layer.x, self.weight: layer.weight, self.y: layer.y}
        if self.normalise:
            values |= {self.scale: layer.scale, self.bias: layer.bias}
        values |= dict(zip(self.sums, layer.sums, strict=True))
        self.graph.execute_plan_at_index(values, layer.workspace, plan, layer.handle)

    def check(self, layer: Layer, plan: int) -> None:
        """Compare the statistics with those in float64."""
        self.run(layer, plan)
        torch.cuda.synchronize()
        x = layer.x
        if self.normalise:
            x = (x.float() * layer.scale.float() + layer.bias.float()).relu().to(x.dtype)
        y = F.conv2d(x.double(), layer.weight.double(), padding=1)
        for found, true in zip(layer.sums, (y, y * y), strict=True):
            true = true.sum((0, 2, 3))
            error = (found.flatten() - true).norm() / true.norm()
            if not error < 0.05:  # also if not a number
                raise RuntimeError(f"statistics are wrong by {error:.3f}")


def microseconds(work: Callable[[], object]) -> float:
    """Median time, from a replayed graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        for _ in range(REPEATS):
            work()
    times: list[float] = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return round(1000 * statistics.median(times) / REPEATS, 2)


def fused(layer: Layer, *, normalise: bool) -> dict[str, object]:
    """Time of the fastest plan, or the reason why there is none."""
    try:
        graph = Fused(layer, normalise=normalise)
    except cudnn.cudnnGraphNotSupportedError as error:
        return {"refused": str(error).strip().splitlines()[-1]}
    times = []
    for plan in graph.plans:
        graph.check(layer, plan)
        times.append(microseconds(partial(graph.run, layer, plan)))
    return {"plans": len(times), "us": min(times, default=None)}


def main() -> None:
    """Print a line for each batch size and stage."""
    for n in (64, 32):
        for channels, width in STAGES.items():
            layer = Layer(n, channels, width)
            found = {
                "channels": channels,
                "width": width,
                "batch": n,
                "convolution_us": microseconds(layer.convolution),
                "convolution_and_our_norm_us": microseconds(layer.convolution_norm),
                "with_statistics": fused(layer, normalise=False),
                "normalised_input_with_statistics": fused(layer, normalise=True),
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
