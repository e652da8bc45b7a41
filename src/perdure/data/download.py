"""Download a dataset's files from where they are published."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from perdure.data.loading import download_folder, load, locate
from perdure.data.progress import decoding_progress, progress_bar
from perdure.data.registry import find_spec
from perdure.data.spec import DataError, File, Spec


def fetch(
    name: str | Spec,
    root: Path | str | None = None,
    *,
    url: str | None = None,
    progress: bool = True,
) -> Path:
    """Download a dataset, unless an undamaged copy is available.

    Archives stay packed. A file appears under its name only when it is complete and its checksum
    matches. A download that is larger than the dataset can be is stopped.

    Args:
        name: Name of a dataset (see `DATASETS`), or a `Spec` of your own.
        root: Folder to download to. By default the user's cache, or the folder with a damaged
            copy, which is replaced.
        url: Web folder with the same files, to use instead of the official one.
        progress: Whether to report progress on stderr.

    Returns:
        The archive or folder with the files, as from `locate`.

    Raises:
        DataError: If a file cannot be downloaded or written.

    >>> fetch("mnist5k", progress=False).name  # bundled with the package
    'mnist5k.npz'
    """
    spec = find_spec(name)
    try:
        with decoding_progress(spec.name, shown=progress) as show:
            load(spec, root, on_progress=show)
    except DataError as error:
        if spec.bundled is not None:
            raise
        if progress and locate(spec, root) is not None:
            problem = DataError.of(error.flaws)
            print(f"note: {problem}; downloading the published files", file=sys.stderr)
        root = download_folder(spec, root)
        base = (url or spec.url).rstrip("/")
        for file in spec.layouts[0].files:
            _retrieve(f"{base}/{Path(file.path).name}", file, root, progress, spec.size_limit)
    else:
        if progress:
            reason = "comes with perdure" if spec.bundled else "is already available"
            print(f"{spec.name} {reason}; nothing to download", file=sys.stderr)
    place = locate(spec, root)
    assert place is not None  # loaded or downloaded above
    return place


def _retrieve(url: str, file: File, root: Path, progress: bool, limit: int) -> None:
    import pooch
    import requests

    manually = f"try again later, or save a copy as {root / file.path}"
    log = pooch.get_logger()
    level = log.level
    log.setLevel("ERROR")
    try:
        downloader = partial(_download, progress=progress, limit=limit)
        pooch.retrieve(url, file.digest, file.path, root, downloader=downloader)
    except requests.RequestException as error:
        raise DataError(f"{url} cannot be reached ({type(error).__name__}); {manually}") from None
    except OSError as error:
        raise DataError(
            f"{error.filename or root} cannot be written ({error.strerror}); "
            "free some space or choose another folder with --data"
        ) from None
    except DataError as error:
        raise DataError(f"{error}; {manually}") from None
    except ValueError:
        raise DataError(f"{url} does not match the checksum {file.digest}; {manually}") from None
    finally:
        log.setLevel(level)


def _download(url: str, output: str, _: Any, *, progress: bool, limit: int) -> None:
    import requests
    from rich.progress import DownloadColumn

    if progress and not sys.stderr.isatty():
        print(f"downloading {url}", file=sys.stderr)
    bar = progress_bar(DownloadColumn(), shown=progress)
    Path(output).chmod(0o644)  # pooch's temporary files are readable by their owner only
    with requests.get(url, stream=True, timeout=30) as response, open(output, "wb") as file, bar:
        if not response.ok:
            raise DataError(f"{url} returned {response.status_code} {response.reason}")
        # Some servers declare a .gz file to be a compressed response; it must stay compressed.
        response.raw.headers.pop("Content-Encoding", None)
        size = int(response.headers.get("Content-Length", 0))
        task = bar.add_task(url.rpartition("/")[2], total=size or None)
        too_large = f"{url} is larger than {limit} bytes, so it is not the expected file"
        if size > limit:
            raise DataError(too_large)
        try:
            for chunk in response.iter_content(2**18):
                bar.advance(task, file.write(chunk))
                if file.tell() > limit:
                    raise DataError(too_large)
        except requests.RequestException:
            received = file.tell()
            raise DataError(f"{url} disconnected after {received} of {size} bytes") from None
