"""`perdure list`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ListOptions:
    """Show the methods, the streams, and which datasets are there."""


def show_list(options: ListOptions) -> int:
    """Methods, streams, and which datasets are there."""
    from rich.table import Table

    from perdure import catalog, presets
    from perdure.data import DATASETS, locate
    from perdure.results.terminal import show

    methods = Table("method", "", "paper", title="Methods")
    for name, method in catalog.METHODS.items():
        methods.add_row(name, method.title, method.paper)
    streams = Table("stream", "", "data", "published buffers", title="Streams")
    streams.columns[0].no_wrap = True
    for name, entry in catalog.STREAMS.items():
        buffers = ", ".join(map(str, presets.published_buffers("clser", name)))
        datasets = " or ".join(entry.datasets)
        streams.add_row(name, entry.title, datasets, buffers or "–")
    present = Table("dataset", "where", title="Datasets")
    for name in DATASETS:
        place = locate(name)
        shipped = "ships with perdure" if name == "mnist5k" else None
        absent = f"not found: perdure data fetch {name}"
        present.add_row(name, shipped or (str(place) if place else absent))
    show(methods, streams, present)
    return 0
