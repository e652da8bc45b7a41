"""CIFAR-10 and CIFAR-100, the Python versions: pickled dictionaries of a byte array and labels."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.data.spec import Arrays, Contents, DataError, Spec


def decode(spec: Spec, contents: Contents) -> Arrays:
    """Read training batches, then one test batch. CIFAR-100 gives its fine labels."""
    *train, test = (_batch(spec, path, read()) for path, read in contents.items())
    images, labels = zip(*train, strict=True)
    return Arrays(np.concatenate(images), np.concatenate(labels), *test)


def _batch(spec: Spec, path: Path, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        labels = batch[b"fine_labels"] if b"fine_labels" in batch else batch[b"labels"]
        return batch[b"data"].reshape(-1, *spec.train[1:]), np.array(labels, np.int64)
    except Exception as error:  # a pickle can fail in any way
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is no pickled batch of {spec.name} ({why})") from None


def _dtype(kind: bytes, align: int, copy: int) -> np.dtype[Any]:
    return np.dtype(kind.decode("ascii"), align=bool(align), copy=bool(copy))


class _Unpickler(pickle.Unpickler):
    """Admits the three names that a pickled array of these files needs, and nothing else."""

    _admitted = {  # noqa: RUF012 (never changed)
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._admitted:
            raise pickle.UnpicklingError(f"{module}.{name} is not admitted")
        return self._admitted[module, name]
