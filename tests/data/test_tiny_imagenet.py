"""A folder of images: its checksum, all its flaws, and a damaged archive next to it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.cli import main
from perdure.data import DATASETS, DataError, Spec, archives, decoding_progress, load, verify

from .small import Small, make, put

TOP = "tiny-imagenet-200"


def flipped(data: bytes) -> bytes:
    """One bit of a JPEG file altered, so that it still decodes."""
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


@pytest.mark.parametrize("name", ["train/n02/images/n02_1.JPEG", "val/images/val_3.JPEG"])
def test_a_flipped_bit_in_an_image_is_detected(name: str, tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    path = small.write(tmp_path, 1) / TOP / name
    put(path, flipped(path.read_bytes()))
    (finding,) = verify(tmp_path, [small.spec])
    assert finding.state == "damaged"
    assert f"{tmp_path / TOP / name.partition('/')[0]} differs" in finding.message
    with pytest.raises(DataError, match="differs from the published files"):
        load(small.spec, tmp_path)


def test_files_that_are_not_used_do_not_matter(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    for name in ("val/.DS_Store", "val/images/._val_0.JPEG", "train/n01/images/._n01_0.JPEG"):
        put(root / name, b"")  # macOS writes such files
    (root / "train/n01/n01_boxes.txt").unlink()
    assert small.same(load(small.spec, tmp_path))
    (finding,) = verify(tmp_path, [known_files(small)])
    assert (finding.state, finding.flaws) == ("ok", ())


def test_blanks_in_the_list_of_classes_do_not_matter(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    path = small.write(tmp_path, 1) / TOP / "wnids.txt"
    put(path, b"".join(line + b" \t\r\n" for line in path.read_bytes().split()) + b"\n")
    assert small.same(load(small.spec, tmp_path))


def test_the_official_folders_have_checksums() -> None:
    _, train, val = DATASETS["tiny-imagenet"].layouts[1].files
    assert train.digest is not None
    assert val.digest is not None


def test_verify_reports_all_flaws(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    (root / "train/n01/images/n01_0.JPEG").unlink()
    put(root / "train/n02/images/n02_0.JPEG", b"")
    put(root / "val/images/val_2.JPEG", b"")
    (root / "val/val_annotations.txt").unlink()
    (finding,) = verify(tmp_path, [small.spec])
    assert len(finding.flaws) == 4
    for part in ("n01/images", "n02_0.JPEG", "val_2.JPEG", "val_annotations.txt"):
        assert sum(part in flaw for flaw in finding.flaws) == 1
    assert finding.flaws[0] not in finding.message  # `perdure data verify` prints it below


def test_an_error_that_leaves_out_flaws_says_how_to_list_them(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    for number in range(3):
        put(root / f"val/images/val_{number}.JPEG", b"")
    with pytest.raises(DataError, match=r"\(and 2 more\)") as error:
        load(small.spec, tmp_path)
    assert f"`perdure data verify tiny-imagenet --data {tmp_path}`" in str(error.value)


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make("tiny-imagenet")
    folder = small.write(tmp_path, 1) / TOP / "train/n02/images"
    scandir = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:  # permissions do not apply to root
        if str(path) == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    (finding,) = verify(tmp_path, [small.spec])
    assert f"{folder} cannot be read (Permission denied)" in finding.message
    with pytest.raises(DataError, match="Permission denied"):
        load(small.spec, tmp_path)


def test_files_are_compared_also_if_the_list_of_classes_cannot_be_read(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    (root / "wnids.txt").unlink()
    os.mkfifo(root / "wnids.txt")
    image = root / "val/images/val_3.JPEG"
    put(image, flipped(image.read_bytes()))
    (finding,) = verify(tmp_path, [known_files(small)])
    assert len(finding.flaws) == 2
    for path, flaw in zip((root / "wnids.txt", image), finding.flaws, strict=True):
        assert str(path) in flaw


def test_verify_compares_both_folders_with_their_checksums(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    for name in ("train/n02/images/n02_1.JPEG", "val/images/val_3.JPEG"):
        put(root / name, flipped((root / name).read_bytes()))
    (finding,) = verify(tmp_path, [small.spec])
    for part, flaw in zip(("train", "val"), finding.flaws, strict=True):
        assert flaw.startswith(f"{root / part} differs")


def test_verify_names_missing_and_additional_images_and_files_that_are_none(
    tmp_path: Path,
) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    image = (root / "val/images/val_1.JPEG").rename(root / "val/images/extra.JPEG")
    put(root / "train/n01/images/n01_0.JPEG", b"")
    (root / "train/n02/images/n02_0.JPEG").unlink()
    os.mkfifo(root / "train/n02/images/n02_0.JPEG")
    (finding,) = verify(tmp_path, [small.spec])
    for part in (image.name, "val_1.JPEG", "n01_0.JPEG", "n02_0.JPEG"):
        assert sum(part in flaw for flaw in finding.flaws) == 1, part


def known_files(small: Small) -> Spec:
    """The spec, with the first bytes of the checksum of each file that is used."""
    known: dict[str, dict[str, bytes]] = {"train": {}, "val": {}}
    for path in small.paths(1):
        if path.endswith(("JPEG", "annotations.txt")):
            _, folder, name = path.split("/", 2)
            known[folder][name] = hashlib.sha256(small.files[path]).digest()[:2]
    return replace(small.spec, checksums=lambda: known)


def test_altered_files_are_named_if_their_checksums_are_known(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    spec, root = known_files(small), small.write(tmp_path, 1) / TOP
    names = ["train/n02/images/n02_1.JPEG", "train/n03/images/n03_0.JPEG", "val/images/val_3.JPEG"]
    for name in names:
        put(root / name, flipped((root / name).read_bytes()))
    (finding,) = verify(tmp_path, [spec])
    for name, flaw in zip(names, finding.flaws, strict=True):
        assert str(root / name) in flaw
    with pytest.raises(DataError, match=rf"{names[0]} .*\(and 2 more\)"):
        load(spec, tmp_path)


def test_altered_files_are_named_also_if_others_are_wrong(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    spec, root = known_files(small), small.write(tmp_path, 1) / TOP
    (root / "wnids.txt").unlink()
    (root / "train/n01/images/n01_0.JPEG").unlink()
    put(root / "train/n02/images/n02_0.JPEG", b"")
    put(root / "val/images/val_3.JPEG", flipped((root / "val/images/val_3.JPEG").read_bytes()))
    put(root / "val/images/extra.JPEG", b"")
    parts = ("wnids.txt", "n01_0.JPEG", "n02_0.JPEG", "val_3.JPEG", "extra.JPEG")
    (finding,) = verify(tmp_path, [spec])
    assert len(finding.flaws) == len(parts)
    put(root / "wnids.txt", small.files[f"{TOP}/wnids.txt"])
    (finding,) = verify(tmp_path, [spec])
    for part in parts[1:]:
        assert any(f"{part} is" in flaw for flaw in finding.flaws), part


def test_folders_next_to_a_missing_file_are_not_reported(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    spec, root = known_files(small), small.write(tmp_path, 1) / TOP
    (root / "wnids.txt").unlink()
    (finding,) = verify(tmp_path, [spec])
    assert finding.flaws == (f"{root / 'wnids.txt'} is missing",)


def test_many_altered_files_are_one_flaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MANY", 2)
    small = make("tiny-imagenet")
    spec, root = known_files(small), small.write(tmp_path, 1) / TOP
    for path in root.rglob("*.JPEG"):
        put(path, flipped(path.read_bytes()))
    (finding,) = verify(tmp_path, [spec])
    assert len(finding.flaws) == 2
    assert finding.flaws[0].startswith(f"6 files in {root / 'train'} are")


def test_the_known_checksums_are_those_of_the_official_names() -> None:
    known = DATASETS["tiny-imagenet"].checksums()
    assert [len(known[folder]) for folder in ("train", "val")] == [100_000, 10_001]
    assert known["train"]["n01443537/images/n01443537_0.JPEG"] == bytes.fromhex("edbf")
    assert {len(start) for folder in known.values() for start in folder.values()} == {2}


def test_an_image_that_cannot_be_decoded_is_listed_once(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    image = root / "train/n02/images/n02_1.JPEG"
    put(image, image.read_bytes()[:-100])
    (finding,) = verify(tmp_path, [known_files(small)])
    assert len(finding.flaws) == 1
    assert str(image) in finding.message


def test_many_images_without_a_class_are_one_flaw(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    root = small.write(tmp_path, 1) / TOP
    put(root / "val/val_annotations.txt", b"")
    (finding,) = verify(tmp_path, [small.spec])
    (flaw,) = finding.flaws
    assert "val_annotations.txt assigns no class" in flaw
    assert "more" in flaw


def test_the_folder_of_the_dataset_leads_to_the_one_that_contains_it(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    small.write(tmp_path, 1)
    with pytest.raises(DataError, match=f"set --data to {tmp_path}, which contains it"):
        load(small.spec, tmp_path / TOP)


@pytest.mark.parametrize("here", [TOP, f"{TOP}/val", ".."])
def test_a_folder_near_the_dataset_leads_to_the_one_that_contains_it(
    here: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    small = make("tiny-imagenet")
    monkeypatch.setitem(DATASETS, "tiny-imagenet", small.spec)
    data = small.write(tmp_path / "data", 1)
    monkeypatch.chdir(data / here)
    for command in (["data", "verify", "tiny-imagenet"], ["list"]):
        main([*command, "--data", "."])
        assert f"{data}, which contains it" in capsys.readouterr().out


def test_a_zip_file_of_the_user_is_to_be_unpacked(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    small.write(tmp_path, 1)
    shutil.make_archive(str(tmp_path / "own" / TOP), "zip", tmp_path, TOP)
    with pytest.raises(DataError, match=r"\.zip .* has md5 .*unpack it .*perdure data fetch"):
        load(small.spec, tmp_path / "own")


def test_verify_reports_all_damaged_files_of_a_layout(tmp_path: Path) -> None:
    small = make("mnist")
    first, second, *_ = (tmp_path / path for path in small.paths())
    small.write(tmp_path)
    first.unlink()
    put(second, b"damaged")
    (finding,) = verify(tmp_path, [small.spec])
    assert all(str(p) in flaw for p, flaw in zip((first, second), finding.flaws, strict=True))


def test_a_damaged_archive_does_not_block_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = make("tiny-imagenet")
    small.write(tmp_path, 1)
    put(tmp_path / f"{TOP}.zip", b"cut")
    assert small.same(load(small.spec, tmp_path))
    assert f"{TOP}.zip" in caplog.text
    (finding,) = verify(tmp_path, [small.spec])
    assert (finding.state, len(finding.flaws)) == ("ok", 1)
    caplog.clear()
    assert small.same(load(small.spec, tmp_path))  # from the cache
    assert caplog.text == ""


def test_if_all_copies_are_damaged_the_first_is_reported(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    put(small.write(tmp_path, 1) / TOP / "wnids.txt", b"")
    put(tmp_path / f"{TOP}.zip", b"cut")
    with pytest.raises(DataError, match=r"\.zip"):
        load(small.spec, tmp_path)


def test_progress_counts_files_and_can_stop(tmp_path: Path, cache: Path) -> None:
    small = make("tiny-imagenet")
    small.write(tmp_path, 1)
    seen = []
    load(small.spec, tmp_path, on_progress=lambda done, total: seen.append((done, total)))
    assert max(seen) == (12, 12)
    assert len(seen) == 14  # and two text files

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    for entry in cache.glob("decoded/sources/*"):
        entry.unlink()
    with pytest.raises(KeyboardInterrupt):
        load(small.spec, tmp_path, on_progress=stop)


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_an_error_of_a_display_is_not_one_of_the_files(
    kind: type[Exception], tmp_path: Path
) -> None:
    small = make("tiny-imagenet")
    small.write(tmp_path, 1)
    error = kind("the display failed")

    def fail(done: int, total: int) -> None:
        raise error

    with pytest.raises(kind) as raised:
        verify(tmp_path, [small.spec], on_progress=fail)
    assert raised.value is error


def test_the_display_of_progress_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as closed:
        monkeypatch.setattr("sys.stderr", closed)
        with decoding_progress("own") as update:
            update(1, 5000)
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            closed.close()


def test_progress_of_many_files_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for total, shown in ((10, True), (5000, False)):
        with decoding_progress("own", shown=shown) as update:
            update(1, total)
        assert capsys.readouterr().err == ""
    with decoding_progress("own") as update:
        for done in range(1, 3001):
            update(done, 5000)
    assert capsys.readouterr().err == "decoding own: 5000 files\n"


def test_the_list_and_verify_commands_take_a_data_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    small = make("tiny-imagenet")
    monkeypatch.setitem(DATASETS, "tiny-imagenet", small.spec)
    small.write(tmp_path, 1)
    assert main(["list", "--data", str(tmp_path)]) == 0
    assert str(tmp_path) in capsys.readouterr().out
    assert main(["data", "verify", "tiny-imagenet", "--data", str(tmp_path)]) == 0
    for number in (1, 2):
        os.truncate(tmp_path / TOP / f"val/images/val_{number}.JPEG", 0)
    assert main(["data", "verify", "tiny-imagenet", "--data", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "  " + str(tmp_path / TOP / "val/images/val_2.JPEG") in out
