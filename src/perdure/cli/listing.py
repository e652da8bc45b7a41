"""`perdure list`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from perdure import catalog, presets
from perdure.cli.options import Folder, check_data_folder
from perdure.data import DATASETS, locate
from perdure.data.loading import download_command, find_nearby
from perdure.results.terminal import show


@dataclass(frozen=True)
class ListOptions:
    """List the methods, streams and datasets, and where datasets are found."""

    data: Folder = None
    """The only folder to search for datasets. Default: $PERDURE_DATA, then the user's cache."""


def show_list(options: ListOptions) -> int:
    """List methods, streams and datasets."""
    check_data_folder(options.data)
    methods = Table("method", "name", "paper", title="Methods")
    for name, method in catalog.METHODS.items():
        methods.add_row(name, method.title, method.paper)
    streams = Table("stream", "description", "data", "published buffers", title="Streams")
    streams.columns[0].no_wrap = True
    for name, entry in catalog.STREAMS.items():
        buffers = ", ".join(map(str, presets.published_buffers("clser", name)))
        streams.add_row(name, entry.title, " or ".join(entry.datasets), buffers or "–")
    datasets = Table("dataset", "location", title="Datasets")
    for name in DATASETS:
        datasets.add_row(name, escape(_location(name, options.data)))
    show(methods, streams, datasets)
    return 0


def _location(name: str, root: Path | None) -> str:
    """Where a dataset is, or how to get it."""
    if DATASETS[name].bundled is not None:
        return "comes with perdure"
    if place := locate(name, root):
        return str(place)
    if base := find_nearby(name, root):
        return f"not found; use --data {base}, which contains it"
    return f"not found; download: {download_command(name, root)}"
