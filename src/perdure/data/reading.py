"""Reading datasets, from their files or from the cache, and verifying them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from perdure.data import cache
from perdure.data.dataset import Dataset
from perdure.data.official import DATASETS
from perdure.data.search import absent, find, resolve
from perdure.data.spec import DataError, Spec
from perdure.records import Samples


def load(name: str | Spec, root: Path | str | None = None) -> Dataset:
    """The dataset of this name, or as a `Spec` of your own says, if its files are right.

    They are looked for in `root` and only there; without one, in the folder that
    `$PERDURE_DATA` names, then in the user's cache. They are decoded once; afterwards the
    arrays are mapped from the cache, and writing to them changes the memory of this process only.
    Files that have the size and time of change with which they passed are not hashed again.

    >>> digits = load("mnist5k")
    >>> digits.train.inputs.shape, digits.classes
    (torch.Size([4000, 1, 28, 28]), 10)
    """
    spec = resolve(name)
    found = find(spec, root)
    if found is None:
        raise DataError(absent(spec, root))
    with found.explained():
        key = None if spec.home else cache.key(spec, found.layout, found.root)
        kept = cache.recall(spec, key)
        if kept is None:
            arrays = found.decode()
            checksum = cache.fingerprint(arrays)
            kept = arrays if spec.home else cache.keep(spec, key, arrays, checksum), checksum
    (train_images, train_labels, test_images, test_labels), checksum = kept
    return Dataset(
        name=spec.name,
        train=Samples(torch.from_numpy(train_images), torch.from_numpy(train_labels)),
        test=Samples(torch.from_numpy(test_images), torch.from_numpy(test_labels)),
        classes=spec.classes,
        checksum=checksum,
    )


def locate(name: str | Spec, root: Path | str | None = None) -> Path | None:
    """The archive or folder from which `load` would read, right or not; None if there is none.

    >>> locate("mnist5k").name
    'mnist5k.npz'
    """
    found = find(resolve(name), root)
    return found and found.place


class Finding(NamedTuple):
    """What `verify` found of one dataset."""

    name: str
    path: Path | None
    state: Literal["ok", "missing", "damaged"]
    message: str


def verify(
    root: Path | str | None = None, names: Iterable[str | Spec] | None = None
) -> list[Finding]:
    """Read every file anew, whatever the cache remembers, and say how each dataset fares.

    A decoded copy in the cache that differs from its files is removed.

    >>> [(finding.name, finding.state) for finding in verify(names=["mnist5k"])]
    [('mnist5k', 'ok')]
    """
    return [_verify(resolve(name), root) for name in (DATASETS if names is None else names)]


def _verify(spec: Spec, root: Path | str | None) -> Finding:
    found = find(spec, root)
    if found is None:
        return Finding(spec.name, None, "missing", absent(spec, root))
    try:
        with found.explained():
            checksum = cache.fingerprint(found.decode())
    except DataError as error:
        return Finding(spec.name, found.place, "damaged", str(error))
    message = f"{spec.train[0]} training and {spec.test[0]} test images, checksum {checksum}"
    kept = cache.opened(spec, checksum)
    if kept is not None and cache.fingerprint(kept) != checksum:
        cache.forget(spec, checksum)
        message += "; a damaged decoded copy was removed from the cache"
    return Finding(spec.name, found.place, "ok", message)
