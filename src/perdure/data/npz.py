"""The dataset that ships inside the package: its four arrays in one npz file."""

from __future__ import annotations

import io

import numpy as np

from perdure.data.spec import Arrays, Contents, Spec


def decode(spec: Spec, contents: Contents) -> Arrays:
    """Read the arrays by their names in `Arrays`; labels are stored as bytes."""
    (read,) = contents.values()
    with np.load(io.BytesIO(read()), allow_pickle=False) as stored:
        return Arrays(*(stored[name].astype(dtype) for name, (_, dtype) in spec.arrays().items()))
