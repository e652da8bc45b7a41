"""Streams from folders of images."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from perdure.streams import ImageEncoder, from_image_folder, from_table
from perdure.streams.from_files import stream_from_files


def write(
    path: Path, color: tuple[int, int, int] = (255, 0, 0), size: tuple[int, int] = (9, 6)
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


def fill(root: Path, *folders: str, count: int = 5) -> Path:
    for place, folder in enumerate(folders):
        for i in range(count):
            write(root / folder / f"{i}.png", (place, i, 0))
    return root


def test_classes_are_folders_and_a_share_is_held_out(tmp_path: Path) -> None:
    stream = from_image_folder(fill(tmp_path / "pets", "dog", "cat", "eel"), size=4, tasks=2)
    assert (stream.name, stream.shape, stream.classes) == ("pets", (3, 4, 4), 3)
    assert stream.class_names == ("cat", "dog", "eel")
    assert [task.name for task in stream.tasks] == ["cat, dog", "eel"]
    assert [test.name for test in stream.tests] == ["cat, dog", "eel"]
    assert [task.samples().labels.tolist() for task in stream.tasks] == [[0] * 4 + [1] * 4, [2] * 4]
    assert [test.samples().labels.tolist() for test in stream.tests] == [[0, 1], [2]]
    assert stream.tasks[0].samples().inputs.dtype == torch.uint8
    again = from_image_folder(tmp_path / "pets", size=4, tasks=2)
    assert again.checksum == stream.checksum


def test_names_of_folders_are_names_of_classes_whatever_they_are(tmp_path: Path) -> None:
    folders = [" cat", "1.0", "none", "yes "]
    stream = from_image_folder(fill(tmp_path, *folders), size=2, tasks=[[f] for f in folders])
    assert [task.name for task in stream.tasks] == folders
    assert stream.encoder is not None
    assert stream.encoder.labels(stream.encoder.decode([3, 0, 2])).tolist() == [3, 0, 2]
    with pytest.raises(ValueError, match="row 2"):
        stream.encoder.labels(["1.0", None])


def test_a_test_folder_without_a_train_folder_is_not_a_class(tmp_path: Path) -> None:
    fill(tmp_path, "a", "b", "test")
    assert from_image_folder(tmp_path, size=2).class_names == ("a", "b", "test")
    fill(tmp_path, "test/a", "test/b")
    with pytest.raises(ValueError, match="train"):
        from_image_folder(tmp_path, size=2)


def test_a_test_folder_is_used(tmp_path: Path) -> None:
    fill(tmp_path, "train/a", "train/b")
    fill(tmp_path, "test/a", "test/b", count=2)
    stream = from_image_folder(tmp_path, size=2, tasks=[["b"], ["a"]])
    assert [len(task.samples().labels) for task in stream.tasks] == [5, 5]
    assert [test.classes for test in stream.tests] == [(1,), (0,)]
    with pytest.raises(ValueError, match="omit test_share"):
        from_image_folder(tmp_path, test_share=0.1)
    write(tmp_path / "test" / "c" / "0.png")
    with pytest.raises(ValueError, match="class 'c'"):
        from_image_folder(tmp_path)


def test_progress_counts_all_images(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path / ("test" if number < 3 else "train") / f"{number % 2}" / f"{number}.png")
    calls: list[tuple[int, int]] = []
    from_image_folder(tmp_path, on_progress=lambda *call: calls.append(call))
    assert calls == [(done, 8) for done in range(1, 9)]


def test_images_of_classes_in_no_task_are_not_used(tmp_path: Path) -> None:
    fill(tmp_path, "ant", "bee", "cat")
    with pytest.warns(UserWarning, match=r"5 .*\bbee$"):
        stream = from_image_folder(tmp_path, size=2, tasks=[["cat"], ["ant"]])
    assert [set(task.samples().labels.tolist()) for task in stream.tasks] == [{2}, {0}]


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_tasks_are_folders(tmp_path: Path, prefix: str) -> None:
    fill(tmp_path, *(f"{prefix}{place}" for place in ("day/cat", "day/dog", "night/cat")))
    if prefix:
        fill(tmp_path, "test/day/cat", "test/day/dog", "test/night/cat", count=1)
    stream = from_image_folder(tmp_path, size=2, tasks="folders")
    assert [task.name for task in stream.tasks] == [test.name for test in stream.tests]
    assert [task.name for task in stream.tasks] == ["day", "night"]
    assert set(stream.tasks[1].samples().labels.tolist()) == {0}


def test_classes_that_no_test_has_produce_a_warning(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat", "train/dog", "train/owl", "test/cat", count=1)
    with pytest.warns(UserWarning, match="no test has samples of classes dog, owl"):
        from_image_folder(tmp_path, size=2)


def test_folders_next_to_train_and_test_produce_a_warning(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat", "train/dog", "test/cat", "test/dog", "val/cat", ".old/cat")
    with pytest.warns(UserWarning, match=r"left out: val$"):
        assert len(from_image_folder(tmp_path, size=2).tests) == 1


def test_folders_whose_names_are_not_utf8_are_refused(tmp_path: Path) -> None:
    try:
        fill(tmp_path, "cat", "caf\udce9")
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(ValueError, match="not valid Unicode"):
        from_image_folder(tmp_path, size=2)
    with pytest.raises(ValueError, match="not valid UTF-8"):
        stream_from_files("images", f"{tmp_path}/caf\udce9,size=2")


def test_folders_without_images_that_can_be_read_produce_a_warning(tmp_path: Path) -> None:
    fill(tmp_path, "cat", "dog")
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "0.heic").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match=r"no images.*owl.*JPEG"),
        pytest.warns(UserWarning, match=r"1 file .*\.heic"),
    ):
        stream = from_image_folder(tmp_path, size=2)
    assert stream.class_names == ("cat", "dog")
    fill(tmp_path / "tasks", "day/cat", "day/dog", "night/cat")
    for name in ("night/dog", "dusk", ".git/hooks"):
        (tmp_path / "tasks" / name).mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"left out: dusk, night/dog \("):
        from_image_folder(tmp_path / "tasks", size=2, tasks="folders")


def test_images_in_formats_that_are_not_read_are_counted(tmp_path: Path) -> None:
    for number, name in enumerate(["a.HEIC", "b.avif", "deeper/c.heic", "notes.txt", ".d.heic"]):
        path = tmp_path / ("cat", "dog")[number % 2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"JPEG.*CLASS/IMAGE.*3 files .*\.avif, \.heic\b"):
        from_image_folder(tmp_path)
    fill(tmp_path, "cat", "dog")
    with pytest.warns(UserWarning, match=r"3 files .*\.avif, \.heic\).*convert") as caught:
        stream = from_image_folder(tmp_path, size=2, test_share=0)
    assert len(caught) == 1
    assert len(stream.tasks[0].samples().labels) == 10


def test_images_are_upright_rgb_of_one_size(tmp_path: Path) -> None:
    # Left half black, right half white; orientation 6 means "turn by 90 degrees clockwise".
    pixels = np.zeros((8, 16), np.uint8)
    pixels[:, 8:] = 255
    image, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a").mkdir()
    image.save(tmp_path / "a" / "0.png", exif=exif)
    deep = Image.fromarray(np.full((8, 8), 40_000, np.uint16))
    deep.save(tmp_path / "a" / "1.png")
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "a" / "2.png")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / ".hidden.png").write_text("not an image")
    write(tmp_path / "b" / "deeper" / "0.JPG")
    stream = from_image_folder(tmp_path, size=(8, 4), test_share=0)
    inputs = stream.tasks[0].samples().inputs
    assert inputs.shape == (4, 3, 8, 4)
    upright = inputs[0].float()
    assert upright[:, 0].max() < 60 < 200 < upright[:, -1].min()  # dark above, bright below
    assert set(inputs[1].flatten().tolist()) == {40_000 >> 8}
    assert set(inputs[2].flatten().tolist()) == {255}  # transparent is white
    assert from_image_folder(tmp_path, size=4, grayscale=True, test_share=0).shape == (1, 4, 4)


def write_deep(path: Path, values: list[int]) -> None:
    """A gray image with 16 bits per pixel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array([values], np.uint16)).save(path)


def test_sixteen_bits_become_eight_of_one_scale(tmp_path: Path) -> None:
    write_deep(tmp_path / "a" / "0.png", [0, 255, 256, 65535])
    write_deep(tmp_path / "a" / "1.tif", [0, 1, 2, 3])
    (tmp_path / "b").mkdir()
    values = np.array([0, 256, 512, 65535], ">u2")  # Pillow opens the file in mode I
    (tmp_path / "b" / "0.ppm").write_bytes(b"P5 4 1 65535\n" + values.tobytes())
    stream = from_image_folder(tmp_path, size=(1, 4), grayscale=True, test_share=0)
    rows = stream.tasks[0].samples().inputs.flatten(1).tolist()
    assert rows == [[0, 0, 1, 255], [0, 0, 0, 0], [0, 1, 2, 255]]
    assert stream.encoder is not None
    old = Image.fromarray(np.array([[0, 255, 256, 65535]], np.int32))
    old.format = "PNG"  # as older versions of Pillow open PNG files
    assert stream.encoder.encode(old).flatten().tolist() == rows[0]


def test_integers_of_unknown_scale_are_refused(tmp_path: Path) -> None:
    """A scale that follows from the values of an image would differ within a data set."""
    encoder = ImageEncoder(class_names=("a", "b"), height=2, width=2)
    for largest in (1, 255, 256, 70_000):
        image = Image.fromarray(np.full((2, 2), largest, np.int32))
        with pytest.raises(ValueError, match=r"scale is unknown; convert"):
            encoder.encode(image)
    fill(tmp_path, "a", "b")
    image.save(tmp_path / "a" / "9.tif")
    with pytest.raises(ValueError, match=r"9\.tif cannot be read .*scale"):
        from_image_folder(tmp_path)


@pytest.mark.parametrize("test", [0, 4095, 4096])
def test_sixteen_bits_of_which_at_most_twelve_are_used_produce_a_warning(
    tmp_path: Path, test: int
) -> None:
    for number, folder in enumerate(("train/a", "train/b", "test/a", "test/b")):
        write_deep(tmp_path / folder / "0.png", [0, test if number == 3 else 100 * number])
    if test == 4096:
        from_image_folder(tmp_path, size=2)  # a warning would be an error
    else:
        with pytest.warns(UserWarning, match="multiply") as caught:
            from_image_folder(tmp_path, size=2)
        assert len(caught) == 1


def test_frames_of_one_video_stay_together(tmp_path: Path) -> None:
    fill(tmp_path, "a", "b", count=12)
    stream = from_image_folder(
        tmp_path, size=2, test_share=0.3, keep_together=lambda path: int(path.stem) // 3
    )
    videos = {int(image[1, 0, 0]) // 3 for image in stream.tests[0].samples().inputs}
    trained = {int(image[1, 0, 0]) // 3 for image in stream.tasks[0].samples().inputs}
    assert videos
    assert not videos & trained
    held = stream.validation(0.3).tests[0].samples().inputs
    assert {int(image[1, 0, 0]) // 3 for image in held} <= trained


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_together is 5"):
        from_image_folder(tmp_path, keep_together=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a folder"):
        from_image_folder(tmp_path / "none")
    with pytest.raises(ValueError, match="contains no images"):
        from_image_folder(tmp_path)
    write(tmp_path / "0.png")
    with pytest.raises(ValueError, match=r"0\.png is not in the folder of a class"):
        from_image_folder(tmp_path)
    (tmp_path / "0.png").unlink()
    fill(tmp_path, "a", "b")
    with pytest.raises(ValueError, match=r"tasks is 3.* 1 to 2"):
        from_image_folder(tmp_path, tasks=3)
    with pytest.raises(ValueError, match=r"'c' is not in the data.* a, b"):
        from_image_folder(tmp_path, tasks=[["a"], ["c"]])
    with pytest.raises(ValueError, match="size is 0"):
        from_image_folder(tmp_path, size=0)
    whole = (tmp_path / "a" / "0.png").read_bytes()
    (tmp_path / "b" / "broken.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"broken\.png cannot be read as an image"):
        from_image_folder(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"size": size} for size in ("24", 24.0, True, (8,), (8, 8, 3), (8, "x"), (8, 0))],
        *[{"grayscale": "no"}, {"drop_last": "no"}, {"test_share": "abc"}],
        *[{"tasks": "abc"}, {"tasks": 1.5}, {"tasks": ["a", "b"]}],
    ],
)
def test_wrong_values_of_arguments_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path, "a", "b")
    (name,) = wrong
    with pytest.raises(ValueError, match="share" if name == "test_share" else name):
        from_image_folder(tmp_path, **wrong)


def test_sizes_may_be_of_numpy(tmp_path: Path) -> None:
    fill(tmp_path / "pets", "cat", "dog")
    for size in (np.int64(4), (np.int64(4), 4), np.array([4, 4])):
        stream = from_image_folder(tmp_path / "pets", size=size, grayscale=np.True_)  # type: ignore[arg-type]
        assert stream.shape == (1, 4, 4)
        assert stream.encoder is not None
        stream.encoder.save(tmp_path / "encoder.json")
        assert ImageEncoder.load(tmp_path / "encoder.json") == stream.encoder


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        *[(f"size={size}", "size") for size in ("16.5", "abc", "16x", "16xabc", "4x4x4", "x", "")],
        *[("grayscale=maybe", "grayscale"), ("test_share=abc", "abc"), ("tasks=abc", "folders")],
    ],
)
def test_wrong_settings_written_as_text_are_refused(setting: str, key: str, tmp_path: Path) -> None:
    fill(tmp_path / "pets", "cat", "dog")
    with pytest.raises(ValueError, match=key):
        stream_from_files("images", f"{tmp_path / 'pets'},{setting}")


def test_settings_can_be_written_as_text(tmp_path: Path) -> None:
    fill(tmp_path / "pets", "cat", "dog")
    stream = stream_from_files("images", f"{tmp_path / 'pets'},size=2,tasks=2,grayscale=true")
    assert (stream.shape, len(stream.tasks)) == ((1, 2, 2), 2)
    assert stream_from_files("images", f"{tmp_path / 'pets'},size=2x3").shape == (3, 2, 3)
    with pytest.raises(ValueError, match="'colour=red'; expected NAME=VALUE"):
        stream_from_files("images", f"{tmp_path / 'pets'},colour=red")
    with pytest.raises(ValueError, match="commas separate options"):
        stream_from_files("images", f"{tmp_path}/cats, dogs,size=2")


def test_later_folders_keep_the_labels_and_the_size_of_earlier_ones(tmp_path: Path) -> None:
    fill(tmp_path / "first", "cow", "dog")
    first = from_image_folder(tmp_path / "first", size=(4, 6), grayscale=True)
    fill(tmp_path / "second", "dog", "bee", "ant")
    second = from_image_folder(tmp_path / "second", encoder=first.encoder, test_share=0)
    assert second.class_names == ("cow", "dog", "ant", "bee")
    assert (second.classes, second.shape) == (4, (1, 4, 6))
    assert second.tasks[0].samples().labels.tolist() == [2] * 5 + [3] * 5 + [1] * 5
    third = from_image_folder(fill(tmp_path / "third", "cat"), encoder=second.encoder)
    assert third.class_names == ("cow", "dog", "ant", "bee", "cat")
    assert third.tests[0].samples().labels.tolist() == [4]


def test_classes_that_differ_in_case_only_produce_a_warning(tmp_path: Path) -> None:
    fill(tmp_path / "first", "cat", "dog")
    first = from_image_folder(tmp_path / "first", size=2)
    fill(tmp_path / "second", "Cat", "dog")
    with pytest.warns(UserWarning, match="'Cat' and 'cat'"):
        from_image_folder(tmp_path / "second", encoder=first.encoder)
    if len(list(fill(tmp_path / "third", "A", "a").iterdir())) > 1:  # where case matters
        with pytest.warns(UserWarning, match="'a' and 'A'"):
            from_image_folder(tmp_path / "third", size=2)


def test_the_size_must_be_that_of_the_encoder(tmp_path: Path) -> None:
    encoder = ImageEncoder(class_names=("cat",), height=4, width=6)
    fill(tmp_path, "cat", "dog")
    from_image_folder(tmp_path, size=(4, 6), grayscale=False, encoder=encoder)
    with pytest.raises(ValueError, match="the encoder has 4 x 6 pixels"):
        from_image_folder(tmp_path, size=4, encoder=encoder)
    with pytest.raises(ValueError, match="grayscale is True; the encoder has False"):
        from_image_folder(tmp_path, grayscale=True, encoder=encoder)
    table = from_table({"km": [1, 2], "kind": ["cat", "dog"]}, "kind", test_share=0).encoder
    with pytest.raises(ValueError, match="TableEncoder"):
        from_image_folder(tmp_path, encoder=table)


def test_the_encoder_reads_new_images_as_the_stream_did(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    paths = []
    for label in ("cat", "dog"):
        for number in range(2):
            pixels = draws.integers(256, size=(20, 30, 3), dtype=np.uint8)
            paths.append(tmp_path / "pets" / label / f"{number}.png")
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(paths[-1])
    stream = from_image_folder(tmp_path / "pets", size=(8, 10), grayscale=True, test_share=0)
    assert stream.encoder is not None
    stream.encoder.save(tmp_path / "encoder.json")
    encoder = ImageEncoder.load(tmp_path / "encoder.json")
    assert torch.equal(encoder.encode(paths), stream.tasks[0].samples().inputs)
    assert encoder.encode(paths[0]).shape == (1, 1, 8, 10)
    for other in ([Image.open(path) for path in paths], [path.open("rb") for path in paths]):
        assert torch.equal(encoder.encode(other), encoder.encode(paths))
        for opened in other:
            opened.close()
    with pytest.raises(ValueError, match="floating-point"):
        encoder.encode(Image.new("F", (8, 8)))
    for wrong in (np.zeros((8, 8)), b"bytes", None, 5):
        kind = type(wrong).__name__
        with pytest.raises(ValueError, match=f"{kind} cannot be read .*expected a path"):
            encoder.encode(wrong)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", tmp_path / "none.png"):
        with pytest.raises(ValueError, match="no such file"):
            encoder.encode(str(path))
    with pytest.raises(ValueError, match="is a folder"):
        encoder.encode(tmp_path)
    assert encoder.decode([1]) == ["dog"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once Ghostscript was started."""
    file, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{file}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow searches for it once
    return file


def postscript() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (9, 6)).save(content, "EPS")
    return content.getvalue()


@pytest.mark.parametrize("name", ["1.png", "1.eps"])
def test_no_program_is_started_to_read_an_image(tmp_path: Path, started: Path, name: str) -> None:
    fill(tmp_path / "pets", "cat", "dog")
    (tmp_path / "pets/cat" / name).write_bytes(postscript())
    if name == "1.eps":
        with pytest.warns(UserWarning, match=r"\.eps"):
            stream = from_image_folder(tmp_path / "pets", size=2, test_share=0)
        assert len(stream.tasks[0].samples().labels) == 10
    else:
        with pytest.raises(ValueError, match=r"1\.png cannot be read as an image"):
            from_image_folder(tmp_path / "pets", size=2)
    encoder = ImageEncoder(class_names=("cat", "dog"), height=2, width=2)
    for source in (tmp_path / "pets/cat" / name, io.BytesIO(postscript())):
        with pytest.raises(ValueError, match="cannot be read as an image"):
            encoder.encode(source)
    assert not started.exists()


@pytest.mark.parametrize(
    "suffix", ["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm"]
)
def test_common_formats_are_read(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "a" / f"0.{suffix}", (200, 200, 200))
    write(tmp_path / "b" / f"0.{suffix.upper()}", (200, 200, 200))
    inputs = from_image_folder(tmp_path, size=2, test_share=0).tasks[0].samples().inputs
    assert inputs.shape == (2, 3, 2, 2)
    assert inputs.unique().tolist() == [200]


def test_the_first_folder_may_have_a_single_class(tmp_path: Path) -> None:
    fill(tmp_path, "cat")
    with pytest.warns(UserWarning, match="single class, 'cat'"):
        first = from_image_folder(tmp_path, size=2)
    assert first.class_names == ("cat",)
    from_image_folder(tmp_path, encoder=first.encoder)  # a warning would be an error


@pytest.mark.parametrize("text", ["", ",size=2", " "])
def test_an_empty_path_is_not_the_current_folder(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fill(tmp_path, "cat", "dog"))
    with pytest.raises(ValueError, match="path is missing"):
        stream_from_files("images", text)
    assert stream_from_files("images", ".,size=2").class_names == ("cat", "dog")


def test_an_encoder_with_two_classes_of_the_same_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'cat' occurs twice"):
        ImageEncoder(class_names=("cat", "dog", "cat"), height=2, width=2)
    ImageEncoder(class_names=("cat", "dog"), height=2, width=2).save(tmp_path / "encoder.json")
    text = (tmp_path / "encoder.json").read_text()
    (tmp_path / "encoder.json").write_text(text.replace("dog", "cat"))
    with pytest.raises(ValueError, match="'cat' occurs twice"):
        ImageEncoder.load(tmp_path / "encoder.json")


@pytest.mark.parametrize("size", [{"height": 10**6}, {"width": 10**6}, {"height": 10**30}])
def test_an_encoder_of_huge_images_is_refused(tmp_path: Path, size: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="size is"):
        ImageEncoder(class_names=("cat",), **{"height": 2, "width": 2, **size})
    encoder = ImageEncoder(class_names=("cat",), height=2, width=2)
    encoder.save(tmp_path / "encoder.json")
    content = json.loads((tmp_path / "encoder.json").read_text())
    (tmp_path / "encoder.json").write_text(json.dumps({**content, **size}))
    with pytest.raises(ValueError, match="cannot be read as an ImageEncoder"):
        ImageEncoder.load(tmp_path / "encoder.json")
