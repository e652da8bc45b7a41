"""The paper's own tables, as far as the runs allow: ours first, theirs below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure import catalog, presets
from perdure.presets import Figure, paper_figures
from perdure.report.runs import Collection, Setting, method_title
from perdure.report.tables import WITHIN, Cell, Table, answer, beside, figures_of, made_by

_BY_STREAM = {
    "1": "Class-IL and Domain-IL",
    "2": "MNIST-360",
    "3": "GCIL-CIFAR-100, mean over the cumulative tests",
}
_NETWORKS = ("stable", "plastic", "working")
_SWEPT = ("consistency_weight", "stable_rate", "plastic_rate")


def paper_tables(collection: Collection) -> Iterator[Table]:
    """The paper's tables as far as the runs allow, ours first and theirs below."""
    published = [s for s in collection.settings if s.published]
    for number, about in _BY_STREAM.items():
        yield from _by_stream(number, about, published)
    yield from _components(collection)
    yield from _one_memory(collection)
    yield from _sensitivity(collection)


def _by_stream(number: str, about: str, settings: Sequence[Setting]) -> Iterator[Table]:
    """Rows by buffer and method, columns by stream."""
    figures = {
        (f.stream, f.method, f.buffer_size): f for f in paper_figures(number) if f.predictor is None
    }
    cells: dict[tuple[int | None, str], dict[str, Setting]] = {}
    for setting in settings:
        if (setting.stream, setting.method, setting.buffer_size) in figures and answer(setting):
            cells.setdefault((setting.buffer_size, setting.method), {})[setting.stream] = setting
    used = [setting for row in cells.values() for setting in row.values()]
    if not used:
        return
    order = list(dict.fromkeys(figure.stream for figure in figures.values()))
    streams = [stream for stream in order if any(stream in row for row in cells.values())]
    rows = []
    for (buffer_size, method), row in sorted(cells.items(), key=_by_buffer):
        found = [Cell("–" if buffer_size is None else str(buffer_size), buffer_size or 0)]
        found.append(Cell(method_title(method)))
        for stream in streams:
            one = row.get(stream)
            figure = figures.get((stream, method, buffer_size))
            ours = None if one is None else answer(one)
            found.append(beside(ours, figure, link="" if one is None else one.key))
        rows.append(tuple(found))
    yield Table(
        f"table-{number}",
        f"Table {number}: {about}",
        f"Ours, and below it the paper's figure. {WITHIN}",
        ("buffer_size", "method", *streams),
        tuple(rows),
        *made_by(used),
    )


def _components(collection: Collection) -> Iterator[Table]:
    """Table S1: the networks of CLS-ER."""
    chosen = [
        (setup, setting)
        for setup in collection.setups
        for setting in setup.settings
        if setting.method == "clser" and set(_NETWORKS) <= set(setting.predictors)
    ]
    if not chosen:
        return
    rows = []
    for setup, setting in chosen:
        figures = {f.predictor: f for f in figures_of("S1", setting)}
        spreads = {name: setting.spread(name) for name in _NETWORKS}
        known = {name: spread.mean for name, spread in spreads.items() if spread}
        top = max((round(mean, 2) for mean in known.values()), default=None)
        best = ", ".join(name for name, mean in known.items() if round(mean, 2) == top) or "–"
        rows.append(
            (
                Cell(setup.name),
                Cell(setting.label, link=setting.key),
                *(beside(spreads[name], figures.get(name)) for name in _NETWORKS),
                Cell(best),
            )
        )
    yield Table(
        "table-S1",
        "Table S1: the networks of CLS-ER",
        "Accuracy in percent of each network; below it the paper's figure where it may stand.",
        ("stream", "setting", *_NETWORKS, "best"),
        tuple(rows),
        *made_by([setting for _, setting in chosen]),
    )


def _one_memory(collection: Collection) -> Iterator[Table]:
    """Table S2: one semantic memory against two, where both were run."""
    rows = []
    used: list[Setting] = []
    for setup in collection.setups:
        for buffer_size in setup.buffers():
            methods = {s.method: s for s in setup.comparison(buffer_size)}
            if not {"clser", "mean-er"} <= set(methods):
                continue
            row = [Cell(setup.name), Cell(str(buffer_size), buffer_size or 0)]
            for method in ("mean-er", "clser"):
                setting = methods[method]
                figures = figures_of("S2", setting)
                ours = answer(setting)
                row.append(beside(ours, figures[0] if figures else None, link=setting.key))
                used.append(setting)
            rows.append(tuple(row))
    if rows:
        yield Table(
            "table-S2",
            "Table S2: one semantic memory against two",
            "Mean-ER keeps one average of the weights, CLS-ER two. Accuracy in percent; below it "
            "the paper's figure where it may stand.",
            ("stream", "buffer_size", "Mean-ER", "CLS-ER"),
            tuple(rows),
            *made_by(used),
        )


def _sensitivity(collection: Collection) -> Iterator[Table]:
    """Table S3, and the same for any method that was run with several hyperparameters."""
    for setup in collection.setups:
        groups: dict[tuple[str, int | None], list[Setting]] = {}
        for setting in setup.settings:
            groups.setdefault((setting.method, setting.buffer_size), []).append(setting)
        for (method, buffer_size), settings in groups.items():
            swept = _swept(settings)
            if not swept:
                continue
            networks = settings[0].predictors
            rows = []
            for setting in settings:
                values = _varied(setting)
                figures = {f.predictor: f for f in _swept_figures(setting)}
                rows.append(
                    (
                        *(_value(values.get(key), setting) for key in swept),
                        Cell(str(len(setting.runs)), float(len(setting.runs))),
                        *(
                            beside(
                                setting.spread(n) if n in setting.predictors else None,
                                figures.get(n),
                            )
                            for n in networks
                        ),
                    )
                )
            title = f"{method_title(method)} on {setup.name}"
            if buffer_size is not None:
                title += f", buffer {buffer_size}"
            yield Table(
                f"table-S3-{setup.name}-{method}-{buffer_size}",
                f"Table S3: sensitivity of {title}",
                "Accuracy in percent under other hyperparameters; those not named are the same "
                "in every row.",
                (*(key.replace("_", " ") for key in swept), "seeds", *networks),
                tuple(rows),
                *made_by(settings),
            )


def _swept(settings: Sequence[Setting]) -> list[str]:
    """The hyperparameters in which these settings differ."""
    everything = [_varied(setting) for setting in settings]
    names = dict.fromkeys(key for values in everything for key in values)
    return [key for key in names if len({values.get(key) for values in everything}) > 1]


def _varied(setting: Setting) -> dict[str, float | str]:
    """What may be varied: its hyperparameters, and when its memories are updated."""
    return {**setting.config["values"], "update": setting.config.get("update") or "random"}


def _value(value: float | str | None, setting: Setting) -> Cell:
    if isinstance(value, str) or value is None:
        return Cell(value or "–", link=setting.key)
    return Cell(f"{value:g}", value, link=setting.key)


def _swept_figures(setting: Setting) -> list[Figure]:
    """Rows of Table S3 that were made with this setting: the paper's in all that it does not vary.

    Such a setting is not `published`: some of its values were given.
    """
    config, entry = setting.config, catalog.STREAMS.get(setting.stream)
    preset = presets.find(setting.method, setting.stream, setting.buffer_size)
    if entry is None or preset is None or config["dataset"] != entry.datasets[0]:
        return []
    usual = ("stream_seed", "validation", "max_steps", "update")
    others = {k: v for k, v in config["values"].items() if k not in _SWEPT}
    if (
        config["network"] != entry.network
        or any(config.get(key) is not None for key in usual)
        or others != {k: v for k, v in preset.values.items() if k not in _SWEPT}
        or not all(run.result["complete"] for run in setting.runs)
    ):
        return []
    figures = paper_figures("S3", setting.stream, setting.method, setting.buffer_size)
    return [f for f in figures if all(config["values"].get(k) == v for k, v in f.settings.items())]


def _by_buffer(item: tuple[tuple[int | None, str], object]) -> tuple[int, int]:
    (buffer_size, method), _ = item
    return buffer_size or 0, list(catalog.METHODS).index(method)
