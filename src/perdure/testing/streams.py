"""Checks that every stream must pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perdure.records import Samples
from perdure.streams import ComposedTask, Stream, Task, Test
from perdure.structures import layout, leaves, length, map_leaves, shapes
from perdure.testing.rules import equal, equal_inputs, global_random_untouched, require, rule

StreamCheck = Callable[[Stream, int], None]

STREAM_CHECKS: list[StreamCheck] = []
"""Every check of this module, in order."""


def _order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _fits(what: str, samples: Samples, stream: Stream) -> None:
    """Require samples that match the stream's shape, dtype and classes."""
    inputs, labels = samples.inputs, samples.labels
    shape, count = shapes(inputs), length(inputs)
    require(shape == stream.shape, f"{what}: inputs have shape {shape}; expected {stream.shape}")
    for leaf in leaves(inputs):
        require(not leaf.is_complex(), f"{what}: inputs are {leaf.dtype}; expected real numbers")
        finite = not leaf.is_floating_point() or leaf.isfinite().all()
        require(finite, f"{what}: inputs contain values that are not finite")
    require(
        labels.dtype == torch.int64 and labels.shape == (count,) and count > 0,
        f"{what}: labels are {labels.dtype} {tuple(labels.shape)} for {count} inputs; "
        "expected int64, one per input, and at least one sample",
    )
    low, high = (int(label) for label in labels.aminmax())
    found = f"labels range from {low} to {high}; there are {stream.classes} classes"
    known = not stream.classes or high < stream.classes  # 0: not known in advance
    require(low >= 0 and known, f"{what}: {found}")


def _all_equal(one: Sequence[Samples], other: Sequence[Samples]) -> bool:
    return len(one) == len(other) and all(map(equal, one, other))


def _rows(samples: Samples) -> Counter[tuple[bytes, int]]:
    """How often each input occurs with its label."""
    parts = [leaf.cpu().numpy() for leaf in leaves(samples.inputs)]
    inputs = (b"".join(row.tobytes() for row in rows) for rows in zip(*parts, strict=True))
    return Counter(zip(inputs, samples.labels.tolist(), strict=True))


def _stored(task: Task) -> Samples | None:
    """A task's samples, or None if it composes its batches."""
    return None if isinstance(task, ComposedTask) else task.samples()


@rule(STREAM_CHECKS)
def batches_fit_the_stream(stream: Stream, batch: int) -> None:
    """Batches have the stream's shape, dtypes and labels, and at most the requested size."""
    require(len(stream.tasks) > 0, "there are no tasks")
    for task in stream.tasks:
        count = 0
        for samples in task.epoch(batch, _order()):
            _fits(f"task {task.name!r}, batch {count}", samples, stream)
            size = len(samples.labels)
            small = size <= batch or isinstance(task, ComposedTask)
            require(small, f"task {task.name!r}: {size} samples in a batch of {batch}")
            count += 1
        require(count > 0, f"task {task.name!r} has no batches of {batch}")
        task.release()


@rule(STREAM_CHECKS)
def inputs_are_prepared(stream: Stream, batch: int) -> None:
    """`augment` keeps shape and dtype, draws from its generator and does not modify its input."""
    inputs = next(iter(stream.tasks[0].epoch(batch, _order()))).inputs
    original = map_leaves(torch.clone, inputs)
    if stream.augment is not None:
        one, other = (stream.augment(inputs, _order(1)) for _ in range(2))
        kept = layout(one) == layout(inputs) and length(one) == length(inputs)
        require(kept, f"augment returned {layout(one)} for {layout(inputs)}")
        require(equal_inputs(one, other), "augment does not draw from its generator only")
    ready = stream.normalise(inputs)
    require(equal_inputs(inputs, original), "augment or normalise modified its input")
    for leaf in leaves(ready):
        finite = leaf.isfinite().all() and len(leaf) == length(inputs)
        require(finite, "normalise did not return one finite row per input")


@rule(STREAM_CHECKS)
def equal_generators_give_equal_orders(stream: Stream, batch: int) -> None:
    """The order of an epoch depends on its generator only, and another one gives another order."""
    for task in stream.tasks:
        one, other = (list(task.epoch(batch, _order())) for _ in range(2))
        same = _all_equal(one, other)
        require(same, f"task {task.name!r}: equal generators gave different batches")
        samples = _stored(task)
        if samples is not None and len(_rows(samples)) > 20:
            other = list(task.epoch(batch, _order(1)))
            require(not _all_equal(one, other), f"task {task.name!r} is not shuffled")
        task.release()


@rule(STREAM_CHECKS)
def epochs_resume_from_any_batch(stream: Stream, batch: int) -> None:
    """epoch(start=k) omits the first k batches and leaves the generator in the same state."""
    for task in stream.tasks:
        order = _order()
        whole = list(task.epoch(batch, order))
        for start in sorted({0, 1, len(whole) // 2, len(whole) - 1, len(whole)}):
            again = _order()
            rest = list(task.epoch(batch, again, start))
            name = f"task {task.name!r} from batch {start} of {len(whole)}"
            require(_all_equal(rest, whole[start:]), f"{name}: different batches")
            same = order.get_state().equal(again.get_state())
            require(same, f"{name}: the generator ends in a different state")
        task.release()


@rule(STREAM_CHECKS)
def steps_count_the_batches(stream: Stream, batch: int) -> None:
    """steps(batch) is the number of batches in an epoch, or None if not known in advance."""
    for task in stream.tasks:
        for size in (batch, batch + 1):
            steps, count = task.steps(size), sum(1 for _ in task.epoch(size, _order()))
            found = f"task {task.name!r}: {count} batches of {size}; steps returned {steps}"
            require(steps in (None, count), found)
        task.release()


@rule(STREAM_CHECKS)
def epochs_show_samples_once(stream: Stream, batch: int) -> None:
    """An epoch shows each sample of a task once, except for a last smaller batch."""
    for task in stream.tasks:
        samples = _stored(task)
        if samples is None:
            continue
        shown: Counter[tuple[bytes, int]] = Counter()
        for part in task.epoch(batch, _order()):
            shown += _rows(part)
        left = _rows(samples)
        left.subtract(shown)
        require(min(left.values()) >= 0, f"task {task.name!r}: a sample was shown too often")
        missing = left.total()
        most = batch - 1 if task.drop_last else 0
        require(missing <= most, f"task {task.name!r}: {missing} samples were not shown")
        task.release()


@rule(STREAM_CHECKS)
def released_samples_can_be_rebuilt(stream: Stream, batch: int) -> None:
    """A task builds the same samples again after `release`."""
    for task in stream.tasks:
        samples = _stored(task)
        if samples is None:
            continue
        _fits(f"task {task.name!r}", samples, stream)
        task.release()
        require(equal(samples, task.samples()), f"task {task.name!r}: different samples")
        task.release()


@rule(STREAM_CHECKS)
def tests_fit_the_stream(stream: Stream, batch: int) -> None:
    """Tests have the stream's shape and classes, valid rows, and belong to a task."""
    whole: dict[int, Samples] = {}
    for test in stream.tests:
        require(isinstance(test, Test), f"{test!r} is not a Test")
        name = f"test {test.name!r}"
        task = 0 <= test.since < len(stream.tasks)
        require(task, f"{name}: since is {test.since}; there are {len(stream.tasks)} tasks")
        if id(test.source) not in whole:
            samples = whole[id(test.source)] = test.source()
            _fits(name, samples, stream)
            require(equal(samples, test.source()), f"{name}: different samples the second time")
        labels = _test_labels(name, test, whole[id(test.source)])
        if test.classes is not None:
            known = set(test.classes)
            require(known <= set(range(stream.classes)), f"{name}: classes {sorted(known)}")
            unknown = set(labels.tolist()) - known
            require(not unknown, f"{name}: labels {sorted(unknown)} are not in its classes")


def _test_labels(name: str, test: Test, samples: Samples) -> Tensor:
    """The labels of a test's rows, which must exist and be unique."""
    if test.rows is None:
        return samples.labels
    rows, n = test.rows, len(samples.labels)
    vector = rows.dtype == torch.int64 and rows.ndim == 1 and len(rows) > 0
    require(vector, f"{name}: rows are {rows.dtype} {tuple(rows.shape)}; expected int64 [n]")
    inside = int(rows.min()) >= 0 and int(rows.max()) < n
    require(inside, f"{name}: rows range from {int(rows.min())} to {int(rows.max())} of {n}")
    require(len(set(rows.tolist())) == len(rows), f"{name}: a row occurs twice")
    return samples.labels[rows]


@rule(STREAM_CHECKS)
def joined_streams_contain_every_sample_once(stream: Stream, batch: int) -> None:
    """`joined` has one task with all samples, and all tests belong to it."""
    order = _order(2)
    joined = stream.joined(batch, order)
    require(order.get_state().equal(_order(2).get_state()), "joined advanced its generator")
    require(len(joined.tasks) == 1, f"the joined stream has {len(joined.tasks)} tasks")
    samples = joined.tasks[0].samples()
    _fits("the joined task", samples, stream)
    expected: Counter[tuple[bytes, int]] = Counter()
    for task in stream.tasks:
        stored = _stored(task)
        for part in task.epoch(batch, order) if stored is None else [stored]:
            expected += _rows(part)
        task.release()
    require(_rows(samples) == expected, "the joined samples are not those of the tasks")
    shown = sum(len(part.labels) for part in joined.tasks[0].epoch(batch, _order()))
    n = len(samples.labels)
    require(shown == n, f"an epoch shows {shown} of {n} samples")
    require(
        [test.name for test in joined.tests] == [test.name for test in stream.tests]
        and all(test.since == 0 for test in joined.tests),
        "the joined stream has other tests than the stream, or since is not 0",
    )


@rule(STREAM_CHECKS)
def global_randomness_is_not_used(stream: Stream, batch: int) -> None:
    """Batches, tests, preparation and joining do not use the global generators."""
    with global_random_untouched():
        for task in stream.tasks:
            for part in task.epoch(batch, _order()):
                if stream.augment is not None:
                    stream.augment(part.inputs, _order())
                stream.normalise(part.inputs)
            task.release()
        for test in stream.tests:
            test.samples()
        stream.joined(batch, _order()).tasks[0].samples()


@rule(STREAM_CHECKS)
def checksums_are_stable(stream: Stream, batch: int) -> None:
    """The checksum is a constant string; the joined stream has another one, if any."""
    before = stream.checksum
    require(isinstance(before, str), f"the checksum is {before!r}; expected a string")
    one, other = (stream.joined(batch, _order(seed)).checksum for seed in (0, 0))
    for task in stream.tasks:
        next(iter(task.epoch(batch, _order())))
        task.release()
    require(stream.checksum == before, "using the stream changed its checksum")
    require(one == other, "the checksum of the joined stream is not constant")
    require((one != before) == bool(before), f"the joined stream's checksum is {one!r}")
