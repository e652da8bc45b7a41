"""Downloading a dataset's files from where they are published."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from perdure.data import cache
from perdure.data.reading import load, locate
from perdure.data.search import resolve
from perdure.data.spec import DataError, File, Spec


def fetch(
    name: str | Spec,
    root: Path | str | None = None,
    *,
    url: str | None = None,
    progress: bool = True,
) -> Path:
    """Download a dataset into `root` or the user's cache, unless it is there and right.

    `url` is a web folder with the same files, to be used in place of the official one. Archives
    stay packed. A file gets its name only when all of it is there and its checksum is right.
    Returns where the files are, as `locate` does. `progress` is shown on stderr.

    >>> fetch("mnist5k", progress=False).name  # comes with the package
    'mnist5k.npz'
    """
    spec = resolve(name)
    if _right(spec, root):
        if progress:
            here = "comes with perdure" if spec.home else "is there already"
            print(f"{spec.name} {here}: nothing to fetch", file=sys.stderr)
    else:
        root = cache.folder() if root is None else Path(root)
        base = (url or spec.url).rstrip("/")
        for file in spec.layouts[0].files:
            _retrieve(f"{base}/{Path(file.path).name}", file, root, progress)
    place = locate(spec, root)
    assert place is not None
    return place


def _right(spec: Spec, root: Path | str | None) -> bool:
    try:
        load(spec, root)
    except DataError:
        if spec.home is not None:
            raise
        return False
    return True


def _retrieve(url: str, file: File, root: Path, progress: bool) -> None:
    import pooch
    import requests

    by_hand = f"try again later, or put a copy of it at {root / file.path}"
    log = pooch.get_logger()
    level = log.level
    log.setLevel("ERROR")
    try:
        pooch.retrieve(
            url, file.digest, file.path, root, downloader=partial(_download, progress=progress)
        )
    except requests.RequestException as error:
        raise DataError(f"{url} cannot be reached ({type(error).__name__}); {by_hand}") from None
    except OSError as error:
        raise DataError(
            f"{error.filename or root} cannot be written ({error.strerror}); "
            "free the space or name another folder with --data"
        ) from None
    except DataError as error:
        raise DataError(f"{error}; {by_hand}") from None
    except ValueError:
        raise DataError(f"{url} has other content than {file.digest}; {by_hand}") from None
    finally:
        log.setLevel(level)


def _download(url: str, output: str, _: Any, *, progress: bool) -> None:
    """Write the bytes as they are sent (a server may declare a .gz file a compressed answer)."""
    import requests
    from urllib3.exceptions import HTTPError

    received = 0
    Path(output).chmod(0o644)  # pooch's temporary files are for their owner alone
    with requests.get(url, stream=True, timeout=30) as response, open(output, "wb") as file:
        if not response.ok:
            raise DataError(f"{url} answered {response.status_code} {response.reason}")
        size = int(response.headers.get("Content-Length", 0))
        with _progress(url, size, progress) as advance:
            try:
                for chunk in response.raw.stream(2**18, decode_content=False):
                    received += file.write(chunk)
                    advance(len(chunk))
            except HTTPError:
                raise DataError(f"{url} broke off after {received} of {size} bytes") from None


@contextmanager
def _progress(url: str, size: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line elsewhere."""
    if shown and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(url.rpartition("/")[2], total=size or None)
            yield lambda n: bar.advance(task, n)
        return
    if shown:
        print(f"fetching {url}", file=sys.stderr)
    yield lambda _: None
