from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from perdure import structures
from perdure.evaluation import accuracies, agreement, confusion, predict
from perdure.evaluation.accuracy import count_rows
from perdure.records import Samples
from perdure.streams import Test

CLASSES = 5


class Source:
    """Samples whose input is their row number."""

    def __init__(self, first: int, labels: list[int]) -> None:
        self.first = first
        inputs = torch.arange(first, first + len(labels))[:, None].float()
        self.whole = Samples(inputs, torch.tensor(labels))

    def __call__(self) -> Samples:
        return self.whole


class Table:
    """A predictor with fixed scores for every input, which records its inputs."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.seen: list[int] = []

    def __call__(self, inputs: Tensor) -> Tensor:
        rows = inputs[:, 0].long()
        self.seen += rows.tolist()
        return self.scores[rows]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Table, list[Test]]:
    """One to three sets of samples with several tests each, of all rows or some."""
    tests = []
    first = 0
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 8))
        label = st.integers(0, CLASSES - 1)
        source = Source(first, draw(st.lists(label, min_size=count, max_size=count)))
        first += count
        for _ in range(draw(st.integers(1, 3))):
            chosen = st.lists(st.integers(0, count - 1), min_size=1, unique=True)
            rows = draw(st.none() | chosen)
            classes = draw(st.none() | st.lists(label, min_size=1, unique=True))
            tests.append(
                Test(
                    "t",
                    source,
                    None if rows is None else torch.tensor(rows),
                    None if classes is None else tuple(classes),
                )
            )
    draws = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    order = draw(st.permutations(tests))
    return Table(torch.rand(first, CLASSES, generator=draws)), order


def rows_of(test: Test) -> list[int]:
    count = len(test.source().labels)
    return list(range(count)) if test.rows is None else test.rows.tolist()


def best(scores: Tensor, row: int, classes: list[int]) -> int:
    return max(classes, key=lambda c: float(scores[row, c]))


@given(problems())
def test_samples_are_counted_before_they_are_scored(problem: tuple[Table, list[Test]]) -> None:
    table, tests = problem
    scored: list[int] = []
    predict(table, tests, on_scored=scored.append)
    assert sum(scored) == len(table.seen) == count_rows(tests, load=True)
    known = all(test.rows is not None for test in tests)
    assert count_rows(tests) == (sum(scored) if known else None)


@given(problems())
@settings(max_examples=200)
def test_accuracies_equal_a_simple_reference_implementation(
    problem: tuple[Table, list[Test]],
) -> None:
    table, tests = problem
    found = accuracies(table, tests)
    everything = list(range(CLASSES))
    hits = {c: [0, 0] for c in everything}
    counted = set()
    for test, class_il in zip(tests, found.class_il, strict=True):
        right = 0
        for row in rows_of(test):
            samples = test.source()
            image, label = int(samples.inputs[row, 0]), int(samples.labels[row])
            correct = best(table.scores, image, everything) == label
            right += correct
            if image not in counted:
                counted.add(image)
                hits[label][0] += correct
                hits[label][1] += 1
        assert class_il == pytest.approx(100 * right / len(rows_of(test)))
    assert found.per_class == [100 * h / n if n else None for h, n in hits.values()]
    assert sorted(table.seen) == sorted(counted)
    if any(test.classes is None for test in tests):
        assert found.task_il is None
        return
    assert found.task_il is not None
    for test, task_il in zip(tests, found.task_il, strict=True):
        assert test.classes is not None
        samples = test.source()
        right = sum(
            best(table.scores, int(samples.inputs[row, 0]), list(test.classes))
            == int(samples.labels[row])
            for row in rows_of(test)
        )
        assert task_il == pytest.approx(100 * right / len(rows_of(test)))


def test_task_il_masks_the_classes_of_other_tasks() -> None:
    source = Source(0, [0, 1, 2, 3])
    scores = torch.tensor(
        [[2.0, 1, 9, 0], [1, 2, 0, 9], [9, 0, 1, 2], [0, 0, 1, 2]]
    )  # the other task has the highest score except in the last row
    rows = torch.tensor([0, 1]), torch.tensor([2, 3])
    tests = [Test("a", source, rows[0], (0, 1)), Test("b", source, rows[1], (2, 3))]
    found = accuracies(Table(scores), tests)
    assert found.class_il == [0.0, 50.0]
    assert found.task_il == [100.0, 50.0]
    assert found.per_class == [0.0, 0.0, 0.0, 100.0]


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_class_that_the_predictor_does_not_have_is_never_predicted(outputs: int) -> None:
    labels = [0, 1, 2, 3]
    tests = [Test("a", Source(0, labels), torch.tensor(labels), (0, 3))]
    found = accuracies(Table(torch.eye(4)[:, :outputs]), tests)
    assert found.class_il == [25.0 * outputs]
    assert found.per_class == [100.0 if label < outputs else 0.0 for label in labels]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_inputs_are_predicted_in_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "MAX_CHUNK", chunk)
    table = Table(torch.eye(10)[:, :CLASSES].repeat(1, 1))
    sizes = []

    def predict(inputs: Tensor) -> Tensor:
        sizes.append(len(inputs))
        return table(inputs)

    found = accuracies(predict, [Test("t", Source(0, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]))])
    assert found.class_il == [60.0]
    assert max(sizes) <= chunk
    assert sum(sizes) == 10


def test_shared_samples_are_built_once() -> None:
    built = []

    def build() -> Samples:
        built.append(1)
        return Samples(torch.eye(3), torch.arange(3))

    accuracies(lambda x: x, [Test("a", build), Test("b", build, torch.tensor([0]))])
    assert len(built) == 1


@given(seed=st.integers(0, 10**6), count=st.integers(1, 100), classes=st.integers(2, 8))
def test_confusion_equals_torchmetrics(seed: int, count: int, classes: int) -> None:
    from torchmetrics.functional.classification import multiclass_confusion_matrix  # takes 3 s

    draws = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, classes, generator=draws)
    labels = torch.randint(classes, (count,), generator=draws)
    found = confusion(scores, labels)
    oracle = multiclass_confusion_matrix(scores.argmax(dim=1), labels, num_classes=classes)
    assert found.counts == oracle.tolist()
    assert found.classes == list(range(classes))


def test_agreement_is_the_share_of_equal_predictions() -> None:
    predicted = {"a": [0, 1, 2, 0], "b": [0, 1, 1, 1], "c": [2, 1, 2, 0]}
    found = agreement({name: torch.eye(3)[row] for name, row in predicted.items()})
    assert found.predictors == ["a", "b", "c"]
    assert found.matrix == [[1, 0.5, 0.75], [0.5, 1, 0.25], [0.75, 0.25, 1]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_may_be_integers_of_any_size(dtype: torch.dtype) -> None:
    samples = Samples(torch.eye(3), torch.tensor([0, 1, 1]))
    small = samples._replace(labels=samples.labels.to(dtype))
    tests = [Test(str(k), partial(Samples, *k), classes=(0, 1)) for k in (samples, small)]
    assert accuracies(lambda x: x, tests[1:]) == accuracies(lambda x: x, tests[:1])
    assert accuracies(lambda x: x, tests).per_class == [100, 50, None]


def test_a_test_without_samples_is_refused() -> None:
    source = Source(0, [0, 1])
    tests = [Test(str(n), source, rows=torch.arange(n)) for n in (0, 1)]
    with pytest.raises(ValueError, match="no samples"):
        accuracies(lambda x: x, tests)
