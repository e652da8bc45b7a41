"""Find, load and verify datasets."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from perdure.data import cache
from perdure.data.archives import FolderChecksum, read_files
from perdure.data.registry import DATASETS, find_spec
from perdure.data.spec import Arrays, Contents, DataError, Dataset, Layout, OnProgress, Reader, Spec
from perdure.records import Samples

_log = logging.getLogger(__name__)


def load(
    name: str | Spec,
    root: Path | str | None = None,
    *,
    on_progress: OnProgress | None = None,
    keep: bool = False,
) -> Dataset:
    """Load a dataset after verifying its files.

    Files are decoded once; later calls map the decoded arrays from the cache. Writing to the
    tensors changes only the memory of this process. Files whose size and modification time have not
    changed since they were verified are not verified again. The decoded arrays are verified against
    their checksum once a day of use.

    Args:
        name: Name of a dataset (see `DATASETS`), or a `Spec` of your own.
        root: The only folder to search. By default, the folder in `$PERDURE_DATA` is searched
            first, then the user's cache.
        on_progress: Called with the number of files read so far and the number of files while
            they are decoded, from any thread. An exception that it raises ends the loading.
        keep: Whether to keep a dataset in memory if the cache cannot be written, until another one
            is decoded with `keep`. Later calls with `keep` share its memory, so do not write to the
            tensors.

    Raises:
        DataError: If files are missing or damaged. Of several copies (an archive and the folder
            unpacked from it), the first undamaged one is used.

    >>> digits = load("mnist5k")
    >>> digits.train.inputs.shape, digits.classes
    (torch.Size([4000, 1, 28, 28]), 10)
    """
    spec = find_spec(name)
    places = _find(spec, root)
    if not places:
        raise DataError(explain_missing(spec, root))
    (train_images, train_labels, test_images, test_labels), checksum = _decoded_before(
        places, keep
    ) or _decode_first_undamaged(places, on_progress, keep)
    return Dataset(
        name=spec.name,
        train=Samples(torch.from_numpy(train_images), torch.from_numpy(train_labels)),
        test=Samples(torch.from_numpy(test_images), torch.from_numpy(test_labels)),
        classes=spec.classes,
        checksum=checksum,
    )


_kept: list[tuple[Spec, str, tuple[Arrays, str]]] = []
"""The last dataset that was to be kept and is not in the cache: its arrays and their checksum."""


def _decoded_before(places: list[_Location], keep: bool) -> tuple[Arrays, str] | None:
    """Arrays of one of the copies and their checksum, if kept in memory or in the cache."""
    for place in places:
        if place.spec.bundled:
            continue
        key = place.key()
        for spec, kept_key, kept in _kept:
            if keep and (spec, kept_key) == (place.spec, key):
                return kept
        if cached := cache.get(place.spec, key):
            return cached
    return None


def _decode_first_undamaged(
    places: list[_Location], on_progress: OnProgress | None, keep: bool
) -> tuple[Arrays, str]:
    """Decode the first copy without flaws and cache it; returns the arrays and their checksum."""
    if keep:
        _kept.clear()  # at most one is kept: its data may be large
    failed = []
    for place in places:
        key = place.key()
        try:
            arrays = place.decode(on_progress)
        except DataError as error:
            failed.append(error)
            continue
        for earlier in failed:
            _log.warning("%s; using %s instead", earlier.flaws[0], place.path)
        checksum = cache.fingerprint(arrays)
        if place.spec.bundled:
            return arrays, checksum
        stored = cache.put(place.spec, key, arrays, checksum)
        if keep and key is not None and stored is arrays:
            _kept.append((place.spec, key, (arrays, checksum)))
        return stored, checksum
    raise failed[0]


def locate(name: str | Spec, root: Path | str | None = None) -> Path | None:
    """The archive or folder from which `load` would read, or None if no file is found.

    The files are not verified.

    Args:
        name: Name of a dataset, or a `Spec` of your own.
        root: The only folder to search, as for `load`.

    >>> locate("mnist5k").name
    'mnist5k.npz'
    """
    places = _find(find_spec(name), root)
    return places[0].path if places else None


def explain_missing(name: str | Spec, root: Path | str | None = None) -> str:
    """The error message for a dataset of which no file is found."""
    spec = find_spec(name)
    roots = _roots(spec, root)
    searched = " or ".join(map(str, roots))
    if base := find_nearby(spec, root):
        return f"{spec.name} is not in {searched}; set --data to {base}, which contains it"
    places = dict.fromkeys(str(_path(layout, Path())) for layout in spec.layouts)
    places.pop(".", None)
    command = download_command(spec, root)
    download = f"download it with `{command}`, or " if command else ""
    return (
        f"{spec.name} is not in {searched}; "
        f"{download}set --data to the folder that contains {' or '.join(places)}"
    )


def find_nearby(name: str | Spec, root: Path | str | None = None) -> Path | None:
    """The folder to search instead: one above or directly below those in which `load` looks.

    None if the dataset is in none of these.

    Args:
        name: Name of a dataset, or a `Spec` of your own.
        root: The only folder to search, as for `load`.
    """
    spec = find_spec(name)
    nearby = (base for folder in _roots(spec, root) for base in _nearby_folders(folder))
    return next((base for base in nearby if _copies(spec, base)), None)


def _nearby_folders(folder: Path) -> Iterator[Path]:
    folder = Path(os.path.abspath(folder))  # "." has no parents
    with contextlib.suppress(OSError):  # it does not exist or cannot be read
        with os.scandir(folder) as entries:
            below = sorted(entry.path for entry in entries if entry.is_dir())
        yield from (folder.parent, folder.parent.parent, *map(Path, below))


def download_command(name: str | Spec, root: Path | str | None = None) -> str:
    """The command that downloads a dataset to where `load` finds it; empty for your own.

    Args:
        name: Name of a dataset, or a `Spec` of your own.
        root: The only folder to search, as for `load`.
    """
    spec = find_spec(name)
    return _command("fetch", spec, _roots(spec, root)[-1])


class Finding(NamedTuple):
    """State of one dataset, as determined by `verify`."""

    name: str
    path: Path | None
    """The archive or folder that `load` uses, or the first damaged one."""
    state: Literal["ok", "missing", "damaged"]
    message: str
    flaws: tuple[str, ...] = ()
    """Everything that is wrong, also with copies that `load` does not use."""


def verify(
    root: Path | str | None = None,
    names: Iterable[str | Spec] | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> list[Finding]:
    """Read and verify all files of datasets, without relying on the cache.

    A cached copy that differs from its files is deleted.

    Args:
        root: The only folder to search, as for `load`.
        names: Datasets to verify; all by default.
        on_progress: Called with the number of files read so far and the number of files of each
            dataset, as for `load`.

    >>> [(finding.name, finding.state) for finding in verify(names=["mnist5k"])]
    [('mnist5k', 'ok')]
    """
    wanted = DATASETS if names is None else names
    return [_verify(find_spec(name), root, on_progress) for name in wanted]


def _verify(spec: Spec, root: Path | str | None, on_progress: OnProgress | None) -> Finding:
    places = _find(spec, root)
    if not places:
        return Finding(spec.name, None, "missing", explain_missing(spec, root))
    good: tuple[Path, str] | None = None
    errors: list[DataError] = []
    for place in places:
        try:
            checksum = cache.fingerprint(place.decode(on_progress, all_flaws=True))
        except DataError as error:
            errors.append(error)
        else:
            good = good or (place.path, checksum)
    flaws = tuple(flaw for error in errors for flaw in error.flaws)
    if good is None:
        copies = " and ".join(str(place.path) for place in places)
        several = f"{len(flaws)} flaws in {copies}{places[0].remedy()}"
        message = str(errors[0]) if len(flaws) == 1 else several
        return Finding(spec.name, places[0].path, "damaged", message, flaws)
    path, checksum = good
    message = f"{spec.train[0]} training and {spec.test[0]} test images, checksum {checksum}"
    cached = cache.open_arrays(spec, checksum)
    if cached is not None and cache.fingerprint(cached) != checksum:
        cache.remove(spec, checksum)
        message += "; deleted a damaged copy from the cache"
    return Finding(spec.name, path, "ok", message, flaws)


class _Location(NamedTuple):
    """A root folder with at least one file of a layout."""

    spec: Spec
    root: Path
    layout: Layout

    @property
    def path(self) -> Path:
        return _path(self.layout, self.root)

    def key(self) -> str | None:
        """Identifies the files in their current state for the cache; None if they cannot be."""
        try:
            return cache.source_key(self.spec, self.layout, self.root)
        except OSError:
            return None

    def decode(self, on_progress: OnProgress | None = None, *, all_flaws: bool = False) -> Arrays:
        """Read and verify the files.

        Args:
            on_progress: As for `load`.
            all_flaws: Whether to compare every file with its checksum although others are wrong.

        Raises:
            DataError: That says how to get the files again.
        """
        flaws: Sequence[str] = ()
        contents: Contents = {}
        try:
            contents, checksums = read_files(self.layout, self.root, self.spec.size_limit)
            counted = _counted(contents, self.spec, on_progress) if on_progress else contents
            try:
                arrays = self.spec.decode(self.spec, counted)
            except DataError as error:
                if not all_flaws:
                    raise
                differing = self._differing(counted, checksums, error.flaws)
                raise DataError.of([*dict.fromkeys((*error.flaws, *differing))]) from None
            if differing := self._differing(counted, checksums):
                raise DataError.of(differing)
            self._check_arrays(arrays)
            return arrays
        except _ProgressError as wrapped:
            raise wrapped.error from None
        except OSError as error:
            problem = str(DataError.reading(error.filename or self.path, error))
        except DataError as error:
            problem, flaws = str(error), error.flaws
        except Exception as error:  # in a user's decoder, or from files without checksums
            problem = f"{self.path} cannot be decoded ({type(error).__name__}: {error})"
        if len(contents) <= len(self.layout.files) + len(self.layout.members):
            flaws = _unreadable(contents) or flaws
            problem = str(DataError.of(flaws)) if flaws else problem
        raise DataError(f"{problem}{self.remedy(several=len(flaws) > 1)}", flaws or (problem,))

    def remedy(self, *, several: bool = False) -> str:
        """What to do about a damaged copy, to be appended to what is wrong with it.

        Args:
            several: Whether there are more flaws than the message states.
        """
        if self.spec.bundled is not None:
            return "; reinstall perdure"
        ways = []
        if several and (command := _command("verify", self.spec, self.root)):
            ways.append(f"list all flaws with `{command}`")
        first = self.layout.files[0]
        packed = first.digest is not None and first.path.endswith((".zip", ".tar.gz"))
        if packed and len(self.spec.layouts) > 1:
            ways.append("unpack it if you packed it yourself")
        if command := _command("fetch", self.spec, self.root):
            ways.append(f"download it again with `{command}`")
        return f"; {', or '.join(ways)}" if ways else ""

    def _differing(
        self,
        contents: Contents,
        checksums: Sequence[FolderChecksum],
        reported: Sequence[str] = (),
    ) -> list[str]:
        """How folders differ from the published ones, as far as that is known.

        `reported` has the flaws for which decoding has failed; files that have them are left out.
        """
        wrong = [checksum for checksum in checksums if not checksum.matches()]
        published = self.spec.checksums() if wrong else {}
        flaws = []
        for checksum in wrong:
            known = published.get(checksum.folder.name, {})
            if known or not reported:  # otherwise, files may not have been read
                flaws += checksum.flaws(contents, known, reported)
        return flaws

    def _check_arrays(self, arrays: Arrays) -> None:
        for (field, (shape, dtype)), array in zip(self.spec.arrays().items(), arrays, strict=True):
            what = f"{self.path} contains {field.replace('_', ' ')}"
            if not isinstance(array, np.ndarray):
                raise DataError(f"{what} of type {type(array).__name__}, expected an array")
            if array.shape != shape or array.dtype != dtype:
                raise DataError(
                    f"{what} {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}"
                )
            if "labels" not in field or not len(array):
                continue
            if not 0 <= array.min() <= array.max() < self.spec.classes:
                raise DataError(
                    f"{what} from {array.min()} to {array.max()}, "
                    f"expected 0 to {self.spec.classes - 1}"
                )


def _unreadable(contents: Contents) -> list[str]:
    """What is wrong with each of these files by itself: missing, unreadable, a wrong checksum."""
    flaws = []
    for path, read in contents.items():
        try:
            read()
        except OSError as error:
            flaws.append(str(DataError.reading(path, error)))
        except DataError as error:
            flaws.append(str(error))
    return flaws


class _ProgressError(BaseException):
    """`on_progress` raised an exception, which says nothing about the files."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _counted(contents: Contents, spec: Spec, on_progress: OnProgress) -> Contents:
    """The same contents, with every file that is read reported."""
    total = min(len(contents), spec.train[0] + spec.test[0])
    numbers = itertools.count(1)

    def counted(read: Reader, limit: int | None = None) -> bytes:
        try:
            on_progress(min(next(numbers), total), total)
        except Exception as error:
            raise _ProgressError(error) from error
        return read(limit)

    return {path: partial(counted, read) for path, read in contents.items()}


def _find(spec: Spec, root: Path | str | None) -> list[_Location]:
    """Copies in the first folder with files of the dataset: the complete ones, or the first."""
    for folder in _roots(spec, root):
        if found := _copies(spec, folder) or _copies(spec, folder, complete=False)[:1]:
            return found
    return []


def download_folder(spec: Spec, root: Path | str | None) -> Path:
    """The folder to download a dataset to: that of a damaged copy, since `load` stops there."""
    if found := _find(spec, root):
        return found[0].root
    return cache.folder() if root is None else Path(root)


def _copies(spec: Spec, folder: Path, *, complete: bool = True) -> list[_Location]:
    """The copies in a folder that have all of their files, or any of them."""
    enough = all if complete else any
    return [
        _Location(spec, folder, layout)
        for layout in spec.layouts
        if enough(os.path.exists(folder / file.path) for file in layout.files)
    ]


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


def _command(action: str, spec: Spec, root: Path) -> str:
    """The command that downloads or verifies a dataset; empty for a user's own."""
    if spec.name not in DATASETS:
        return ""
    where = "" if root == cache.folder() else f" --data {shlex.quote(str(root))}"
    return f"perdure data {action} {spec.name}{where}"
