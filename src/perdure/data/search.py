"""Where a dataset's files are, and what to say when they are not there or not right."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from perdure.data import cache, files
from perdure.data.official import DATASETS
from perdure.data.spec import Arrays, DataError, Layout, Spec


def resolve(name: str | Spec) -> Spec:
    """The dataset of this name.

    >>> resolve("cifar1000")
    Traceback (most recent call last):
    perdure.data.spec.DataError: no dataset is called 'cifar1000'; there are mnist, mnist5k, \
cifar10, cifar100, tiny-imagenet
    """
    if isinstance(name, Spec):
        return name
    if name not in DATASETS:
        raise DataError(f"no dataset is called {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name]


class Found(NamedTuple):
    """A place that has some of a dataset's files, at least."""

    spec: Spec
    root: Path
    layout: Layout

    @property
    def place(self) -> Path:
        """The one file, or the folder of several."""
        return _place(self.layout, self.root)

    def decode(self) -> Arrays:
        """Read the files, however often they were read before."""
        arrays = self.spec.decode(self.spec, files.contents(self.layout, self.root))
        for field, (shape, dtype) in self.spec.arrays().items():
            array, what = getattr(arrays, field), f"{self.place} holds {field.replace('_', ' ')}"
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
    def explained(self) -> Iterator[None]:
        """Give errors their remedy, and errors of the file system a sentence."""
        try:
            yield
            return
        except FileNotFoundError as error:
            flaw = f"{error.filename} is missing"
        except OSError as error:
            flaw = f"{error.filename or self.place} cannot be read ({error.strerror})"
        except DataError as error:
            flaw = str(error)
        if self.spec.home is not None:
            raise DataError(f"{flaw}; install perdure again")
        raise DataError(f"{flaw}; fetch it again with `{_command(self.spec, self.root)}`")


def find(spec: Spec, root: Path | str | None) -> Found | None:
    """The first place that has files of a dataset; all of a layout comes before some of one."""
    for folder in _roots(spec, root):
        for enough in (all, any):
            for layout in spec.layouts:
                if enough(os.path.exists(folder / file.path) for file in layout.files):
                    return Found(spec, folder, layout)
    return None


def absent(spec: Spec, root: Path | str | None) -> str:
    """The sentence for a dataset of which no file was found."""
    roots = _roots(spec, root)
    places = dict.fromkeys(str(_place(layout, Path())) for layout in spec.layouts)
    places.pop(".", None)
    return (
        f"{spec.name} is not in {' or '.join(map(str, roots))}; "
        f"fetch it with `{_command(spec, roots[-1])}`, "
        f"or point --data at the folder that holds {' or '.join(places)}"
    )


def _roots(spec: Spec, root: Path | str | None) -> list[Path]:
    if spec.home is not None:
        return [spec.home]
    if root is not None:
        return [Path(root)]
    named = os.environ.get("PERDURE_DATA")
    return [Path(named), cache.folder()] if named else [cache.folder()]


def _place(layout: Layout, root: Path) -> Path:
    first, *others = layout.files
    return (root / first.path).parent if others else root / first.path


def _command(spec: Spec, root: Path) -> str:
    where = "" if root == cache.folder() else f" --data {shlex.quote(str(root))}"
    return f"perdure data fetch {spec.name}{where}"
