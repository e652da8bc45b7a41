"""The tables of the CLS-ER paper, filled with our results next to the published ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure import catalog
from perdure.config import method_title
from perdure.presets import paper_figures
from perdure.report.tables import AGREES, Cell, Table, commands, result_cell
from perdure.results.table import Collection, Setting

_BY_STREAM = {
    "1": "Class-IL and Domain-IL",
    "2": "MNIST-360",
    "3": "GCIL-CIFAR-100, mean over the cumulative tests",
}
_NETWORKS = ("stable", "plastic", "working")


def paper_tables(collection: Collection) -> Iterator[Table]:
    """The tables for which there are runs."""
    for number, title in _BY_STREAM.items():
        yield from _by_stream(number, title, collection.settings)
    yield from _networks(collection)
    yield from _semantic_memories(collection)
    yield from _sensitivity(collection)


def _by_stream(number: str, title: str, settings: Sequence[Setting]) -> Iterator[Table]:
    """Tables 1 to 3: rows by buffer size and method, columns by stream."""
    cells: dict[tuple[int | None, str], dict[str, Setting]] = {}
    for setting in settings:
        if setting.figures(table=number):
            row = cells.setdefault((setting.config.buffer_size, setting.config.method), {})
            row[setting.config.stream] = setting
    used = [setting for row in cells.values() for setting in row.values()]
    if not used:
        return
    order = dict.fromkeys(figure.stream for figure in paper_figures(number))
    streams = [stream for stream in order if any(stream in row for row in cells.values())]
    methods = list(catalog.METHODS)
    rows = [
        (
            Cell("–" if size is None else str(size), size or 0),
            Cell(method_title(method)),
            *(
                result_cell(row[stream], table=number) if stream in row else Cell("–")
                for stream in streams
            ),
        )
        for (size, method), row in sorted(
            cells.items(), key=lambda item: (item[0][0] or 0, methods.index(item[0][1]))
        )
    ]
    yield Table(
        f"table-{number}",
        f"Table {number}: {title}",
        f"Our results, with the published ones below. {AGREES}",
        ("buffer", "method", *streams),
        tuple(rows),
        commands(used),
    )


def _networks(collection: Collection) -> Iterator[Table]:
    """Table S1: the networks of CLS-ER."""
    chosen = [
        (comparison, setting)
        for comparison in collection.comparisons
        for setting in comparison.settings
        if setting.config.method == "clser" and set(_NETWORKS) <= set(setting.predictors)
    ]
    rows = []
    for comparison, setting in chosen:
        spreads = {name: setting.spread(name) for name in _NETWORKS}
        means = {name: round(spread.mean, 2) for name, spread in spreads.items() if spread}
        top = max(means.values(), default=None)
        rows.append(
            (
                Cell(comparison.name),
                Cell(setting.label, link=setting.key),
                *(result_cell(setting, name, "S1") for name in _NETWORKS),
                Cell(", ".join(name for name, mean in means.items() if mean == top) or "–"),
            )
        )
    if rows:
        yield Table(
            "table-S1",
            "Table S1: the networks of CLS-ER",
            "Accuracy of each network in percent, with the published figure below.",
            ("stream", "setting", *_NETWORKS, "best"),
            tuple(rows),
            commands(setting for _, setting in chosen),
        )


def _semantic_memories(collection: Collection) -> Iterator[Table]:
    """Table S2: one semantic memory compared with two."""
    rows = []
    used: list[Setting] = []
    for comparison in collection.comparisons:
        for size in comparison.buffer_sizes():
            methods = comparison.by_method(size)
            if {"clser", "mean-er"} <= set(methods):
                pair = [methods["mean-er"], methods["clser"]]
                cells = (result_cell(setting, table="S2") for setting in pair)
                rows.append((Cell(comparison.name), Cell(str(size), size or 0), *cells))
                used += pair
    if rows:
        yield Table(
            "table-S2",
            "Table S2: one semantic memory compared with two",
            "Mean-ER has one semantic memory, CLS-ER two. Accuracy in percent, with the published "
            "figure below.",
            ("stream", "buffer", "Mean-ER", "CLS-ER"),
            tuple(rows),
            commands(used),
        )


def _sensitivity(collection: Collection) -> Iterator[Table]:
    """Table S3, and the same for every method with several settings of hyperparameters."""
    for comparison in collection.comparisons:
        groups: dict[tuple[str, int | None], list[Setting]] = {}
        for setting in comparison.settings:
            config = setting.config
            groups.setdefault((config.method, config.buffer_size), []).append(setting)
        for (method, size), settings in groups.items():
            varied = _varied(settings)
            if not varied:
                continue
            networks = settings[0].predictors
            rows = [
                (
                    *(_value_cell(_values(setting).get(name), setting) for name in varied),
                    Cell(str(len(setting.runs)), float(len(setting.runs))),
                    *(result_cell(setting, network, "S3") for network in networks),
                )
                for setting in settings
            ]
            buffer = "" if size is None else f", buffer {size}"
            yield Table(
                f"table-S3-{comparison.name}-{method}-{size}",
                f"Table S3: sensitivity of {method_title(method)} on {comparison.name}{buffer}",
                "Accuracy in percent with other hyperparameters; those without a column are the "
                "same in every row.",
                (*(name.replace("_", " ") for name in varied), "seeds", *networks),
                tuple(rows),
                commands(settings),
            )


def _varied(settings: Sequence[Setting]) -> list[str]:
    """The hyperparameters in which the settings differ."""
    everything = [_values(setting) for setting in settings]
    names = dict.fromkeys(name for values in everything for name in values)
    return [name for name in names if len({values.get(name) for values in everything}) > 1]


def _values(setting: Setting) -> dict[str, float | str]:
    return {**setting.config.hyperparameters, "update": setting.config.update}


def _value_cell(value: float | str | None, setting: Setting) -> Cell:
    if isinstance(value, str) or value is None:
        return Cell(value or "–", link=setting.key)
    return Cell(f"{value:g}", value, link=setting.key)
