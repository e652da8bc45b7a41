from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from perdure.data import Dataset
from perdure.streams import (
    CropFlip,
    Scale,
    Stream,
    from_dataset,
    from_image_folder,
    from_tensors,
)

IMAGES = torch.arange(8 * 3, dtype=torch.uint8).view(8, 1, 1, 3)
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])


def labels_by_task(stream: Stream) -> list[list[int]]:
    return [task.samples().labels.tolist() for task in stream.tasks]


def test_the_default_is_one_task_without_boundaries() -> None:
    stream = from_tensors(IMAGES, LABELS)
    (task,) = stream.tasks
    assert task.samples().inputs is IMAGES
    assert (stream.classes, stream.shape, stream.boundaries) == (4, (1, 1, 3), False)
    assert (stream.name, stream.data, stream.tests) == ("own", "own", [])
    assert (stream.normalise, stream.augment) == (Scale(), None)
    sizes = [len(b.labels) for b in task.epoch(3, torch.Generator())]
    assert sizes == [3, 3, 2]


def test_the_last_smaller_batch_can_be_omitted() -> None:
    (task,) = from_tensors(IMAGES, LABELS, drop_last=True).tasks
    assert [len(b.labels) for b in task.epoch(3, torch.Generator())] == [3, 3]


def test_samples_can_keep_their_order() -> None:
    stream = from_tensors(IMAGES, LABELS, shuffle=False)
    for part, kept in ((stream, LABELS), (stream.validation(0.5), None)):
        (task,) = part.tasks
        epochs = [[b.labels for b in task.epoch(3, torch.Generator())] for _ in range(2)]
        expected = task.samples().labels if kept is None else kept
        assert all(torch.equal(torch.cat(labels), expected) for labels in epochs)
    (later,) = list(stream.tasks[0].epoch(3, torch.Generator(), start=2))
    assert torch.equal(later.inputs, IMAGES[6:])


def reversed_twice(rows: list[int]) -> Any:
    return np.array(rows[::-1])[::-1]


def column(rows: list[int]) -> Any:
    return pd.Series([-1, *rows])[1:]


KINDS = [
    *(list, tuple, torch.tensor, np.array, reversed_twice, column),
    *(partial(np.array, dtype=dtype) for dtype in (">i8", np.uint16, np.uint64, object)),
]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_whole_numbers_of_any_type(kind: Any) -> None:
    (task,) = from_tensors(IMAGES, kind(LABELS.tolist())).tasks
    assert task.samples().labels.equal(LABELS)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_rows_of_any_type(kind: Any) -> None:
    stream = from_tensors(IMAGES, LABELS, tasks=[kind([0, 4]), kind([7, 1, 2])])
    assert labels_by_task(stream) == [[0, 0], [3, 1, 2]]
    assert torch.equal(stream.tasks[1].samples().inputs, IMAGES[[7, 1, 2]])
    assert stream.boundaries


def test_groups_of_classes_divide_training_and_test_samples() -> None:
    with pytest.warns(UserWarning, match="1$"):
        stream = from_tensors(IMAGES, LABELS, groups=[(3, 0), (2,)], test=(IMAGES[:4], LABELS[:4]))
    assert labels_by_task(stream) == [[0, 3, 0, 3], [2, 2]]
    assert [(t.classes, t.since) for t in stream.tests] == [((3, 0), 0), ((2,), 1)]
    assert [t.rows.tolist() for t in stream.tests if t.rows is not None] == [[0, 3], [2]]
    assert stream.tests[0].source is stream.tests[1].source
    assert [t.samples().labels.tolist() for t in stream.tests] == [[0, 3], [2]]


def test_classes_in_no_task_produce_a_warning_that_names_them() -> None:
    with pytest.warns(UserWarning, match=r"4 .*\b1, 3$"):
        from_tensors(IMAGES, LABELS, groups=[[2], [0]])
    names = ("ant", "bee", "cat", "dog")
    with pytest.warns(UserWarning, match=r"2 .*\bbee$"):
        from_tensors(IMAGES, LABELS, groups=[[2, 3], [0]], class_names=names)
    # A class without training samples is not missed.
    from_tensors(IMAGES, LABELS, groups=[[0, 1], [2, 3]], classes=6)


def test_one_test_for_the_stream_or_one_for_each_task() -> None:
    rows = [[0, 1], [2, 3]]
    pair = IMAGES, LABELS
    (whole,) = from_tensors(*pair, tasks=rows, test=pair).tests
    assert (whole.since, whole.rows, len(whole.samples().labels)) == (0, None, 8)
    each = from_tensors(*pair, tasks=rows, tests=[pair, (IMAGES[:2], LABELS[:2])]).tests
    assert [(test.since, len(test.samples().labels)) for test in each] == [(0, 8), (1, 2)]


def test_arrays_and_other_integer_types_are_accepted() -> None:
    inputs = np.zeros((4, 3, 2, 2), np.float32)
    inputs.flags.writeable = False
    stream = from_tensors(inputs, np.array([0, 1, 2, 1], np.uint8), classes=7)
    assert stream.classes == 7
    assert stream.tasks[0].samples().labels.dtype == torch.int64
    assert stream.tasks[0].samples().inputs.dtype == torch.float32


def test_the_checksum_identifies_data_and_tasks(digits: Dataset) -> None:
    inputs, labels, _ = digits.train

    def build(**more: Any) -> str:
        return from_tensors(inputs.clone(), labels.clone(), **more).checksum

    variants: list[dict[str, Any]] = [
        {},
        {"groups": [range(5), range(5, 10)]},
        {"groups": [range(5, 10), range(5)]},
        {"tasks": [[0, 1], [2]]},
        {"tasks": [[0], [1, 2]]},
        {"test": digits.test},
        {"tests": [(digits.test.inputs[1:], digits.test.labels[1:])]},
        {"drop_last": True},
        {"shuffle": False},
    ]
    sums = [build(**variant) for variant in variants]
    assert sums == [build(**variant) for variant in variants]
    assert len(set(sums)) == len(sums)


FLOAT_LABELS = LABELS.float()
BAD: list[tuple[dict[str, Any], str]] = [
    ({"labels": LABELS[:5]}, "for 5 labels"),
    ({"inputs": IMAGES[:0], "labels": LABELS[:0]}, "there are no training samples"),
    ({"labels": LABELS - 1}, "a training label is -1; expected 0 or more"),
    ({"classes": 3}, "a training label is 3; expected 0 to 2"),
    ({"labels": FLOAT_LABELS}, r"training labels are torch.float32.*long\(\)"),
    ({"labels": LABELS > 0}, r"training labels are torch.bool.*long\(\)"),
    ({"labels": torch.eye(8)}, r"training labels are .*argmax\(1\)"),
    ({"labels": np.array(["a", "b"] * 4)}, "number the classes"),
    ({"labels": ["a", "b"] * 4}, "number the classes"),
    ({"labels": [[0], [1, 2]]}, "number the classes"),
    ({"labels": None}, "number the classes"),
    ({"labels": [2**70] * 8}, "number the classes"),
    ({"labels": LABELS.to(torch.complex64)}, "training labels are torch.complex64"),
    ({"test": (IMAGES, ["a", "b"] * 4)}, "number the classes"),
    ({"inputs": "text"}, "inputs are of type str"),
    ({"tasks": [[0j]]}, "a task is torch.complex64"),
    ({"class_names": {0: "a", 1: "b", 2: "c", 3: "d"}}, "class_names"),
    ({"class_names": {"a", "b", "c", "d"}}, "class_names is a set"),
    ({"labels": LABELS[:, None]}, r"training labels are torch.int64 \[8, 1\].*squeeze\(1\)"),
    ({"inputs": IMAGES.to(torch.complex64)}, "inputs are torch.complex64"),
    ({"test": (IMAGES[..., :2], LABELS)}, r"test inputs have shape \(1, 1, 2\)"),
    ({"test": (IMAGES, LABELS + 1)}, "a test label is 4; expected 0 to 3.*subtract 1"),
    ({"test": (IMAGES, LABELS, LABELS)}, "test data has 3 items"),
    ({"tests": [TensorDataset(IMAGES, LABELS)]}, "test data is of type TensorDataset"),
    ({"test": (IMAGES, LABELS), "tests": []}, "not both"),
    ({"tests": [(IMAGES, LABELS)] * 2}, "there are 2 tests for 1 tasks"),
    ({"tasks": [[0]], "groups": [[0]]}, "not both"),
    ({"tasks": []}, "list of tasks is empty"),
    ({"tasks": 3}, "tasks is 3"),
    ({"tasks": [0, 1]}, "expected a list of row numbers"),
    ({"tasks": "abc"}, "expected a list of row numbers"),
    ({"groups": 2}, "groups is 2"),
    ({"groups": [0, 1]}, "a task in groups is 0"),
    ({"shuffle": "no"}, "shuffle is 'no'"),
    ({"drop_last": "no"}, "drop_last is 'no'"),
    ({"tasks": [[None]]}, "expected a list of row numbers"),
    ({"tasks": [[[0], [1, 2]]]}, "expected a list of row numbers"),
    ({"tests": 5}, "tests is 5"),
    ({"tests": np.array(5)}, r"tests is array\(5\)"),
    ({"groups": np.array(5)}, r"groups is array\(5\)"),
    ({"keep_together": np.array(5)}, "keep_together is 5"),
    ({"classes": "4"}, "classes is '4'"),
    ({"classes": 4.0}, "classes is 4.0"),
    ({"class_names": "abcd"}, "class_names is 'abcd'"),
    ({"keep_together": "abcdabcd"}, "keep_together is 'abcdabcd'"),
    ({"keep_together": 5}, "keep_together is 5"),
    ({"keep_together": [[1]] * 8}, "keep_together has values"),
    ({"inputs": IMAGES.to_sparse()}, "layout torch.sparse_coo"),
    *[({"groups": [[bad], [1]]}, "class in groups") for bad in (0.5, "a", None, [0], True)],
    ({"groups": [LABELS[:1], LABELS[:1]]}, "each at most once"),
    ({"tasks": [[0], []]}, "task 2 has no training samples"),
    ({"tasks": [[8]]}, "rows outside the 8 training samples"),
    ({"tasks": [[-1]]}, "rows outside the 8 training samples"),
    ({"tasks": [LABELS > 0]}, "expected a list of row numbers"),
    ({"groups": [(0, 1), (1, 2)]}, "class 1; expected 0 to 3, each at most once"),
    ({"groups": [(0, 4)]}, "class 4; expected 0 to 3"),
    ({"groups": [(0,), (5,)], "classes": 9}, "task 2 has no training samples"),
    ({"groups": [(0,)], "test": (IMAGES[1:2], LABELS[1:2])}, r"no test samples of classes \[0\]"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_invalid_data_are_rejected(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"inputs": IMAGES, "labels": LABELS, **change}
    with pytest.raises(ValueError, match=message):
        from_tensors(**given)


class Images:
    """PIL images; counts how often they are read."""

    def __init__(self, mode: str, n: int = 4) -> None:
        self.mode, self.n, self.reads = mode, n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        self.reads += 1
        image = Image.new("RGB", (3, 2), (index, 0, 100))
        image.putpixel((2, 0), (0, 50, 0))
        return image.convert(self.mode), index % 2


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("P", 3), ("RGBA", 3)])
def test_a_dataset_of_pil_images_is_read_once(mode: str, channels: int) -> None:
    data = Images(mode)
    stream = from_dataset(data, groups=[[0], [1]])
    assert stream.shape == (channels, 2, 3)
    for task in stream.tasks:
        list(task.epoch(2, torch.Generator()))
    assert data.reads == 4
    inputs = stream.tasks[1].samples().inputs
    assert inputs.dtype == torch.uint8
    if mode == "RGB":
        assert inputs[:, :, 1, 1].tolist() == [[1, 0, 100], [3, 0, 100]]
        assert inputs[:, :, 0, 2].tolist() == [[0, 50, 0]] * 2


def test_pil_images_with_other_pixels_are_opaque_with_eight_bits() -> None:
    def pixels(mode: str, value: Any) -> list[int]:
        stream = from_dataset([(Image.new(mode, (3, 2), value), label) for label in (0, 1)])
        return [int(channel[0, 0]) for channel in stream.tasks[0].samples().inputs[0]]

    assert pixels("I;16", 40000) == [156]
    with pytest.warns(UserWarning, match="multiply"):
        assert pixels("I;16", 300) == [1]
    assert pixels("RGBA", (10, 20, 30, 0)) == [255, 255, 255]
    assert pixels("RGBA", (10, 20, 30, 255)) == [10, 20, 30]
    with pytest.raises(ValueError, match=r"item 0 .*8 bits"):
        pixels("F", 0.5)


def write_images(folder: Path, modes: list[str], label: int) -> list[Path]:
    """Random images, each of them with another orientation in its EXIF data."""
    draws = np.random.default_rng(label)
    folder.mkdir(parents=True)
    for number, mode in enumerate(modes):
        pixels = draws.integers(256, size=(6, 6, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[0x0112] = number % 8 + 1
        Image.fromarray(pixels).convert(mode).save(folder / f"{number:02}.png", exif=exif)
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "modes",
    [
        ["RGB"] * 9,
        ["L", *["RGB"] * 8],
        [*["L"] * 8, "RGB"],
        ["RGB", "L", "P", "RGBA", "LA", "1", "L", "RGB", "L"],
    ],
)
def test_a_dataset_of_pil_images_is_the_same_stream_as_their_folder(
    modes: list[str], tmp_path: Path
) -> None:
    paths = [write_images(tmp_path / "train" / c, modes, label) for label, c in enumerate("ab")]
    tests = [write_images(tmp_path / "test" / c, ["L"] * 3, label) for label, c in enumerate("ab")]
    folder = from_image_folder(tmp_path, size=6)

    def dataset(classes: list[list[Path]]) -> list[tuple[Any, int]]:
        return [
            (Image.open(io.BytesIO(path.read_bytes())), label)
            for label, found in enumerate(classes)
            for path in found
        ]

    stream = from_dataset(dataset(paths), test=dataset(tests))
    for found, expected in zip(
        (stream.tasks[0].samples(), stream.tests[0].samples()),
        (folder.tasks[0].samples(), folder.tests[0].samples()),
        strict=True,
    ):
        assert torch.equal(found.inputs, expected.inputs)
        assert torch.equal(found.labels, expected.labels)
    swapped = from_dataset(dataset(tests), tests=[dataset(paths)])
    assert torch.equal(swapped.tasks[0].samples().inputs, expected.inputs)
    assert from_dataset(dataset(tests)).shape == (1, 6, 6)


def test_images_that_differ_in_size_or_are_damaged_are_refused() -> None:
    images = [Image.new("RGB", (6, 4)), Image.new("L", (4, 6))]
    with pytest.raises(ValueError, match=r"item 1 .*resize"):
        from_dataset([(image, 0) for image in images])
    with pytest.raises(
        ValueError, match=r"item 1 .*uint8 \[1, 4, 6\], the first uint8 \[3, 4, 6\]"
    ):
        from_dataset([(images[0], 0), (torch.zeros(1, 4, 6, dtype=torch.uint8), 0)])
    content = io.BytesIO()
    Image.effect_noise((99, 99), 9).save(content, "PNG")
    damaged = Image.open(io.BytesIO(content.getvalue()[:-999]))
    with pytest.raises(ValueError, match=r"item 1 .*cannot be used as an image"):
        from_dataset([(images[0], 0), (damaged, 0)])


def test_a_dataset_gives_the_same_stream_as_its_tensors() -> None:
    expected = from_tensors(IMAGES, LABELS, tasks=[[1, 2]], test=(IMAGES, LABELS))
    tensors = TensorDataset(IMAGES, LABELS)
    arrays = [(x.numpy(), int(y)) for x, y in zip(IMAGES, LABELS, strict=True)]
    for data in (tensors, arrays):
        stream = from_dataset(data, tasks=[[1, 2]], test=data)
        assert stream.checksum == expected.checksum


def test_the_items_of_a_dataset_may_be_dicts_with_labels() -> None:
    named = [{"x": x, "labels": y} for x, y in zip(IMAGES, LABELS, strict=True)]
    pairs = [({"x": x}, y) for x, y in zip(IMAGES, LABELS, strict=True)]
    assert from_dataset(named).checksum == from_dataset(pairs).checksum
    with pytest.raises(ValueError, match=r"item 0 .*labels"):
        from_dataset([{"x": IMAGES[0], "y": 0}])


@pytest.mark.parametrize("tensors", [(IMAGES,), (IMAGES, LABELS, LABELS)])
def test_a_dataset_whose_items_are_no_pairs_is_rejected(tensors: Any) -> None:
    with pytest.raises(ValueError, match=f"item 0 .* {len(tensors)} item"):
        from_dataset(TensorDataset(*tensors))
    with pytest.raises(ValueError, match=f"item 0 .* {len(tensors)} item"):
        from_dataset(TensorDataset(IMAGES, LABELS), test=TensorDataset(*tensors))


def test_a_dataset_accepts_all_options() -> None:
    stream = from_dataset(
        TensorDataset(IMAGES, LABELS),
        tests=[TensorDataset(IMAGES, LABELS)],
        classes=9,
        name="mine",
        augment=CropFlip(),
        drop_last=True,
    )
    assert (stream.classes, stream.name, stream.augment) == (9, "mine", CropFlip())
    assert (stream.tasks[0].steps(3), len(stream.tests)) == (2, 1)


def test_an_empty_or_irregular_dataset_is_rejected() -> None:
    with pytest.raises(ValueError, match="the dataset is empty"):
        from_dataset([])
    mixed = [(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 3, 2), 1)]
    with pytest.raises(ValueError, match=r"item 1 of the dataset .*\[1, 3, 2\]"):
        from_dataset(mixed)


@pytest.mark.parametrize(
    "other",
    [
        *[1.7, 1.0, float("nan"), "1", "a", None, True, np.True_, np.float32(1)],
        *[torch.tensor(1.0), torch.tensor(True), torch.tensor([0, 1]), np.zeros(10)],
    ],
)
def test_labels_of_a_dataset_must_be_whole_numbers(other: Any) -> None:
    good, bad = (IMAGES[0], 0), (IMAGES[1], other)
    with pytest.raises(ValueError, match=r"item 1 of the dataset.*whole number"):
        from_dataset([good, bad])
    with pytest.raises(ValueError, match=r"item 1 .*whole number"):
        from_dataset([{"x": x, "labels": label} for x, label in (good, bad)])
    with pytest.raises(ValueError, match=r"item 1 of the test dataset.*whole number"):
        from_dataset([good], test=[good, bad])


def test_labels_of_a_dataset_may_be_whole_numbers_of_any_type() -> None:
    labels = [0, np.int32(1), np.uint8(0), torch.tensor(1), np.array(0), np.array([1])]
    (task,) = from_dataset([(IMAGES[0], label) for label in labels]).tasks
    assert task.samples().labels.tolist() == [0, 1] * 3
    assert task.samples().labels.dtype == torch.int64
    with pytest.raises(ValueError, match="number the classes"):
        from_dataset([(IMAGES[0], 2**70)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_the_items_of_a_dataset_must_have_one_dtype(dtype: torch.dtype) -> None:
    """Conversion to the dtype of the first item would change the values: 300 becomes 44."""
    first, second = torch.zeros(2, dtype=torch.uint8), torch.full((2,), 300, dtype=dtype)
    for items in ([first, second], [{"x": first}, {"x": second}]):
        with pytest.raises(ValueError, match=r"item 1 of the dataset.*uint8"):
            from_dataset([(item, 0) for item in items])


def test_an_item_of_a_dataset_that_cannot_be_an_input_is_named() -> None:
    with pytest.raises(ValueError, match="item 1 of the dataset is of type str"):
        from_dataset([(IMAGES[0], 0), ("text", 0)])


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1, 2, 1])[::-1],
        np.array([1, 2, 1, 0], dtype=">i8"),
        np.array([1, 2, 1, 0], dtype=object),
    ],
)
def test_labels_of_any_memory_layout_are_accepted(labels: Any) -> None:
    stream = from_tensors(torch.rand(4, 3), labels)
    assert stream.tasks[0].samples().labels.tolist() == [1, 2, 1, 0]


def test_classes_that_no_test_has_produce_a_warning() -> None:
    inputs, labels = torch.rand(8, 3), torch.arange(8) % 4
    one = (inputs[:2], labels[:2])
    with pytest.warns(UserWarning, match="no test has samples of classes 2, 3"):
        from_tensors(inputs, labels, test=one)
    with pytest.warns(UserWarning, match="no test has samples of class 2;"):
        from_tensors(inputs, labels, tasks=[[0, 1, 2], [4, 5]], tests=[one, one])
    from_tensors(inputs, labels, tasks=[[0, 1], [4, 5]], tests=[one, one])
    from_tensors(inputs, labels)  # no tests at all


def test_a_dataset_that_cannot_be_indexed_is_refused() -> None:
    items = ((torch.rand(3), 0) for _ in range(4))
    bad: list[Any] = [items, {"x": torch.rand(4, 3), "labels": [0] * 4}]
    for wrong in bad:
        with pytest.raises(ValueError, match="map-style"):
            from_dataset(wrong)
    with pytest.raises(ValueError, match="tests is 5"):
        from_dataset([(torch.rand(3), 0)], tests=5)  # type: ignore[arg-type]


def test_many_missing_labels_are_refused_unless_the_classes_are_given() -> None:
    inputs, labels = torch.zeros(2, 3), torch.tensor([0, 10**12])
    with pytest.raises(ValueError, match=r"1, 2, .*10, ….*classes=1000000000001"):
        from_tensors(inputs, labels)
    with pytest.raises(ValueError, match="classes="):
        from_dataset(TensorDataset(inputs, labels))
    assert from_tensors(inputs, labels, classes=10**12 + 1).classes == 10**12 + 1
    with pytest.warns(UserWarning, match="1, 2, "):
        assert from_tensors(inputs, torch.tensor([0, 10_001])).classes == 10_002
    with pytest.raises(ValueError, match="1, 2, "):
        from_tensors(inputs, torch.tensor([0, 10_002]))


def test_class_names_are_kept_and_must_match_the_classes() -> None:
    labels = torch.arange(12) % 3
    inputs = torch.rand(12, 4)
    stream = from_tensors(inputs, labels, class_names=["ant", "bee", "fly"])
    assert stream.class_names == ("ant", "bee", "fly")
    dataset = TensorDataset(inputs, labels)
    assert from_dataset(dataset, class_names=["a", "b", "c"]).class_names == ("a", "b", "c")
    assert stream.checksum == from_tensors(inputs, labels).checksum  # names change no result
    with pytest.raises(ValueError, match=r"class names.*2.*3"):
        from_tensors(inputs, labels, class_names=["ant", "bee"])
    with pytest.raises(ValueError, match="'ant' occurs twice"):
        from_tensors(inputs, labels, class_names=["ant", "bee", "ant"])
