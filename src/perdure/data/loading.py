"""Find, load and verify datasets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from perdure.data import cache
from perdure.data.dataset import Dataset
from perdure.data.decode import read_files
from perdure.data.registry import DATASETS, find_spec
from perdure.data.spec import Arrays, DataError, Layout, Spec
from perdure.records import Samples


def load(name: str | Spec, root: Path | str | None = None) -> Dataset:
    """Load a dataset after verifying its files.

    Files are decoded once; later calls map the decoded arrays from the cache. Writing to the
    tensors changes only the memory of this process. Files whose size and modification time have
    not changed since they were verified are not verified again.

    Args:
        name: Name of a dataset (see `DATASETS`), or a `Spec` of your own.
        root: The only folder to search. By default, the folder in `$PERDURE_DATA` is searched
            first, then the user's cache.

    Raises:
        DataError: If files are missing or damaged.

    >>> digits = load("mnist5k")
    >>> digits.train.inputs.shape, digits.classes
    (torch.Size([4000, 1, 28, 28]), 10)
    """
    spec = find_spec(name)
    found = _find(spec, root)
    if found is None:
        raise DataError(explain_missing(spec, root))
    with found.errors_explained():
        key = None if spec.bundled else cache.source_key(spec, found.layout, found.root)
        cached = cache.get(spec, key)
        if cached is None:
            arrays = found.decode()
            checksum = cache.fingerprint(arrays)
            cached = arrays if spec.bundled else cache.put(spec, key, arrays, checksum), checksum
    (train_images, train_labels, test_images, test_labels), checksum = cached
    return Dataset(
        name=spec.name,
        train=Samples(torch.from_numpy(train_images), torch.from_numpy(train_labels)),
        test=Samples(torch.from_numpy(test_images), torch.from_numpy(test_labels)),
        classes=spec.classes,
        checksum=checksum,
    )


def locate(name: str | Spec, root: Path | str | None = None) -> Path | None:
    """The archive or folder from which `load` would read, or None if no file is found.

    The files are not verified.

    Args:
        name: Name of a dataset, or a `Spec` of your own.
        root: The only folder to search, as for `load`.

    >>> locate("mnist5k").name
    'mnist5k.npz'
    """
    found = _find(find_spec(name), root)
    return found and found.path


def explain_missing(name: str | Spec, root: Path | str | None = None) -> str:
    """The error message for a dataset of which no file is found."""
    spec = find_spec(name)
    roots = _roots(spec, root)
    places = dict.fromkeys(str(_path(layout, Path())) for layout in spec.layouts)
    places.pop(".", None)
    return (
        f"{spec.name} is not in {' or '.join(map(str, roots))}; "
        f"download it with `{_command(spec, roots[-1])}`, "
        f"or set --data to the folder that contains {' or '.join(places)}"
    )


class Finding(NamedTuple):
    """State of one dataset, as determined by `verify`."""

    name: str
    path: Path | None
    state: Literal["ok", "missing", "damaged"]
    message: str


def verify(
    root: Path | str | None = None, names: Iterable[str | Spec] | None = None
) -> list[Finding]:
    """Read and verify all files of datasets, without relying on the cache.

    A cached copy that differs from its files is deleted.

    Args:
        root: The only folder to search, as for `load`.
        names: Datasets to verify; all by default.

    >>> [(finding.name, finding.state) for finding in verify(names=["mnist5k"])]
    [('mnist5k', 'ok')]
    """
    return [_verify(find_spec(name), root) for name in (DATASETS if names is None else names)]


def _verify(spec: Spec, root: Path | str | None) -> Finding:
    found = _find(spec, root)
    if found is None:
        return Finding(spec.name, None, "missing", explain_missing(spec, root))
    try:
        with found.errors_explained():
            checksum = cache.fingerprint(found.decode())
    except DataError as error:
        return Finding(spec.name, found.path, "damaged", str(error))
    message = f"{spec.train[0]} training and {spec.test[0]} test images, checksum {checksum}"
    cached = cache.open_arrays(spec, checksum)
    if cached is not None and cache.fingerprint(cached) != checksum:
        cache.remove(spec, checksum)
        message += "; deleted a damaged copy from the cache"
    return Finding(spec.name, found.path, "ok", message)


class _Location(NamedTuple):
    """A root folder with at least one file of a layout."""

    spec: Spec
    root: Path
    layout: Layout

    @property
    def path(self) -> Path:
        return _path(self.layout, self.root)

    def decode(self) -> Arrays:
        """Read and verify the files."""
        arrays = self.spec.decode(self.spec, read_files(self.layout, self.root))
        for field, (shape, dtype) in self.spec.arrays().items():
            array, what = getattr(arrays, field), f"{self.path} contains {field.replace('_', ' ')}"
            if array.shape != shape or array.dtype != dtype:
                raise DataError(
                    f"{what} {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}"
                )
            if "labels" in field and not 0 <= array.min() <= array.max() < self.spec.classes:
                raise DataError(
                    f"{what} from {array.min()} to {array.max()}, "
                    f"expected 0 to {self.spec.classes - 1}"
                )
        return arrays

    @contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Raise errors as DataErrors that say how to get the files again."""
        try:
            yield
            return
        except FileNotFoundError as error:
            problem = f"{error.filename} is missing"
        except OSError as error:
            problem = f"{error.filename or self.path} cannot be read ({error.strerror})"
        except DataError as error:
            problem = str(error)
        if self.spec.bundled is not None:
            raise DataError(f"{problem}; reinstall perdure")
        raise DataError(f"{problem}; download it again with `{_command(self.spec, self.root)}`")


def _find(spec: Spec, root: Path | str | None) -> _Location | None:
    """The first folder with files of the dataset; complete layouts before incomplete ones."""
    for folder in _roots(spec, root):
        for enough in (all, any):
            for layout in spec.layouts:
                if enough(os.path.exists(folder / file.path) for file in layout.files):
                    return _Location(spec, folder, layout)
    return None


def _roots(spec: Spec, root: Path | str | None) -> list[Path]:
    if spec.bundled is not None:
        return [spec.bundled]
    if root is not None:
        return [Path(root)]
    named = os.environ.get("PERDURE_DATA")
    return [Path(named), cache.folder()] if named else [cache.folder()]


def _path(layout: Layout, root: Path) -> Path:
    """A layout's only file, or the folder of its files."""
    first, *others = layout.files
    return (root / first.path).parent if others else root / first.path


def _command(spec: Spec, root: Path) -> str:
    where = "" if root == cache.folder() else f" --data {shlex.quote(str(root))}"
    return f"perdure data fetch {spec.name}{where}"
