"""Files in all official layouts are found and decoded to the right tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perdure.data import DATASETS, DataError, Dataset, fetch, load, locate, verify

from .small import LAYOUTS, NAMES, make


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_every_layout_is_read(name: str, layout: int, tmp_path: Path) -> None:
    small = make(name)
    dataset = load(small.spec, small.write(tmp_path, layout))
    assert small.same(dataset)
    assert (dataset.name, dataset.classes) == (name, small.spec.classes)
    for samples, shape in ((dataset.train, small.spec.train), (dataset.test, small.spec.test)):
        assert samples.inputs.shape == shape
        assert samples.inputs.dtype == torch.uint8
        assert samples.labels.dtype == torch.int64


@pytest.mark.parametrize("name", NAMES)
def test_the_checksum_depends_on_the_content_not_on_the_layout(name: str, tmp_path: Path) -> None:
    small = make(name)
    roots = [small.write(tmp_path / str(i), i) for i in range(len(small.spec.layouts))]
    checksums = {load(small.spec, root).checksum for root in roots}
    assert len(checksums) == 1
    assert checksums.isdisjoint(
        load(make(other).spec, make(other).write(tmp_path / other)).checksum
        for other in NAMES
        if other != name
    )


def test_only_the_given_root_is_searched(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make("mnist")
    small.write(cache)
    monkeypatch.setenv("PERDURE_DATA", str(small.write(tmp_path / "named")))
    with pytest.raises(DataError, match="is not in"):
        load(small.spec, tmp_path / "empty")
    assert locate(small.spec, tmp_path / "empty") is None


def test_the_data_folder_is_searched_before_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make("cifar10")
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    assert locate(small.spec) is None
    small.write(cache)
    assert locate(small.spec) == cache / "cifar-10-python.tar.gz"
    small.write(tmp_path, 1)
    assert locate(small.spec) == tmp_path / "cifar-10-batches-py"
    assert small.same(load(small.spec))


def test_a_complete_layout_is_preferred_to_an_incomplete_one(tmp_path: Path) -> None:
    small = make("mnist")
    small.write(tmp_path, 0)
    (tmp_path / small.paths(0)[1]).unlink()
    assert locate(small.spec, tmp_path) == tmp_path / "MNIST/raw"
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is missing"):
        load(small.spec, tmp_path)
    small.write(tmp_path, 3)
    assert locate(small.spec, tmp_path) == tmp_path
    assert small.same(load(small.spec, tmp_path))


def test_the_error_for_missing_data_says_how_to_get_it(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match=f"`perdure data fetch cifar10 --data {tmp_path}`"):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz or cifar-10-batches-py"):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match="`perdure data fetch mnist`"):
        load("mnist")


@pytest.mark.parametrize("use", [load, locate, fetch])
def test_an_unknown_name_is_rejected(use: object) -> None:
    assert callable(use)
    with pytest.raises(DataError, match=r"'fashion'.* mnist, mnist5k, cifar10"):
        use("fashion")


def test_writing_to_a_tensor_does_not_change_files(tmp_path: Path) -> None:
    small = make("cifar100")
    small.write(tmp_path)
    load(small.spec, tmp_path).train.inputs.zero_()
    again = load(small.spec, tmp_path)
    again.test.labels.zero_()
    assert small.same(load(small.spec, tmp_path))


def test_the_bundled_digits() -> None:
    digits = load("mnist5k", "/nowhere")
    assert digits.checksum == "c439be6ef3a9f330"
    assert digits.train.labels.bincount().tolist() == [400] * 10
    assert digits.test.labels.bincount().tolist() == [100] * 10
    both = torch.cat([digits.train.inputs, digits.test.inputs])
    assert len({image.numpy().tobytes() for image in both}) == 5000
    digits.train.inputs.zero_()
    assert load("mnist5k").train.inputs.any()


def test_a_validation_split_leaves_samples_for_training() -> None:
    digits = load("mnist5k")
    split = digits.validation(0.9997)
    assert (len(split.train.labels), len(split.test.labels)) == (1, 3999)
    for share in (0.9999, 1.0):
        with pytest.raises(ValueError, match=str(share)):
            digits.validation(share)


def test_damaged_bundled_digits_are_rejected(tmp_path: Path) -> None:
    spec = DATASETS["mnist5k"]
    path = locate(spec)
    assert path is not None
    (tmp_path / "mnist5k").mkdir()
    (tmp_path / "mnist5k" / "mnist5k.npz").write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"has sha256 .* expected ebff.*; reinstall perdure"):
        load(replace(spec, bundled=tmp_path))


def test_optional_dependencies_are_imported_lazily() -> None:
    code = (
        "import sys, perdure.data; perdure.data.load('mnist5k');"
        "print([m for m in ('pooch', 'PIL', 'rich', 'requests') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_registry_is_consistent() -> None:
    assert list(DATASETS) == ["mnist", "mnist5k", "cifar10", "cifar100", "tiny-imagenet"]
    for name, spec in DATASETS.items():
        assert spec.name == name
        assert spec.url.startswith("http") == (spec.bundled is None)
        for layout in spec.layouts:
            for file in (*layout.files, *layout.members):
                if file.digest is not None:
                    algorithm, digits = file.digest.split(":")
                    assert len(bytes.fromhex(digits)) == {"md5": 16, "sha256": 32}[algorithm]


REAL = os.environ.get("PERDURE_DATA")


def real(name: str) -> Dataset:
    if REAL is None or locate(name, REAL) is None:
        pytest.skip(f"$PERDURE_DATA has no {name}")
    return load(name, REAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "checksum"),
    [
        ("mnist", "11de40ec28a7c150"),
        ("cifar10", "e6216b9018fcebdb"),
        ("cifar100", "c352a4f18d4d70a7"),
        ("tiny-imagenet", "b3b06c00830ae5ae"),
    ],
)
def test_real_files(name: str, checksum: str) -> None:
    dataset = real(name)
    assert dataset.checksum == checksum
    assert (dataset.train.inputs.shape, dataset.test.inputs.shape) == (
        DATASETS[name].train,
        DATASETS[name].test,
    )
    if name != "mnist":
        for part in (dataset.train, dataset.test):
            assert set(part.labels.bincount().tolist()) == {len(part.labels) // dataset.classes}


@pytest.mark.slow
def test_the_bundled_digits_are_the_first_of_each_class_of_mnist() -> None:
    digits, mnist = load("mnist5k"), real("mnist")
    for c in range(10):
        first = mnist.train.inputs[mnist.train.labels == c][:500]
        assert digits.train.inputs[digits.train.labels == c].equal(first[:400])
        assert digits.test.inputs[digits.test.labels == c].equal(first[400:])
    assert REAL is not None
    assert [f.state for f in verify(REAL, ["mnist"])] == ["ok"]
