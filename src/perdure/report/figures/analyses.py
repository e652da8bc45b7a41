"""What the analyses of the saved networks show: Section 6 of the paper, and confusions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perdure.evaluation import mean_std
from perdure.report.figures.averages import mean_curve, mean_matrix, sums
from perdure.report.figures.networks import MOST_CELLS, answering, figure, networks
from perdure.report.panels import Bars, Curves, Figure, HeatMap, Line, Reliability, Series
from perdure.report.runs import Setting


def task_probabilities(settings: Sequence[Setting]) -> Figure | None:
    """Bars for each task (or class), a colour for each method."""
    series: list[Series] = []
    names: list[str] = []
    kind = "task"
    for network in answering(settings):
        found = network.analyses("task_probabilities")
        names = names or (found[0]["names"] if found else [])
        found = [f for f in found if f["names"] == names]
        if found:
            kind = found[0]["kind"]
            mean, std = mean_curve([[100 * share for share in f["mass"]] for f in found])
            series.append(Series(network.setting.title, network.look, mean, std))
    if not series:
        return None
    short = tuple(str(i + 1) for i in range(len(names))) if kind == "task" else tuple(names)
    equal = 100 / len(names) if names else None
    panel = Bars("", kind, "probability, percent", short, tuple(series), equal=equal)
    return figure(
        "probabilities",
        "What the networks expect",
        f"Softmax probability given to each {kind} over the whole test set, normalised, mean over "
        "seeds. The dashed line is an equal share; "
        + (
            "tall bars at the end are a bias towards what was learned last."
            if kind == "task"
            else "tall bars are classes that are expected too often."
        ),
        [panel],
    )


def calibration(settings: Sequence[Setting]) -> Figure | None:
    """A reliability diagram for each network, its seeds together."""
    panels = []
    for network in networks(settings, whole=("clser",)):
        found = [f for f in network.analyses("calibration") if f["bins"]]
        edges = {(*(b["lower"] for b in f["bins"]), f["bins"][-1]["upper"]) for f in found}
        if len(edges) != 1:
            continue
        bins = list(zip(*(f["bins"] for f in found), strict=True))
        counts = [float(sum(b["count"] for b in seeds)) for seeds in bins]
        panels.append(
            Reliability(
                network.label,
                network.look,
                edges.pop(),
                tuple(_weighted(seeds, "accuracy") for seeds in bins),
                tuple(_weighted(seeds, "confidence") for seeds in bins),
                tuple(count / (sum(counts) or 1.0) for count in counts),
                *mean_std([100 * f["ece"] for f in found]),
            )
        )
    return figure(
        "calibration",
        "How far confidence can be trusted",
        "Accuracy of answers by their confidence, all seeds together. On the dashed line a "
        "network is right as often as it thinks; bars below it are over-confidence. The deeper "
        "the colour, the more answers. ECE is the expected calibration error in percent: the "
        "smaller, the better.",
        panels,
    )


def _weighted(seeds: Sequence[Mapping[str, float | None]], key: str) -> float | None:
    """The mean over seeds of a bin in percent, each by its count; None where the bin is empty."""
    known = [(b["count"], b[key]) for b in seeds]
    weighed = [(count, value) for count, value in known if count and value is not None]
    total = sum(count for count, _ in weighed)
    return 100 * sum(count * value for count, value in weighed) / total if total else None


def flatness(settings: Sequence[Setting]) -> Figure | None:
    """Accuracy and loss under noise on the weights, a line for each network."""
    lines: dict[str, list[Line]] = {"accuracy": [], "loss": []}
    for network in networks(settings, whole=("clser",)):
        found = network.analyses("flatness")
        found = [f for f in found if f["sigmas"] == found[0]["sigmas"]]
        for key in lines if found else ():
            mean, std = mean_curve([f[key] for f in found])
            x = tuple(float(sigma) for sigma in found[0]["sigmas"])
            lines[key].append(Line(network.label, network.look, x, mean, std))
    if not lines["accuracy"]:
        return None
    noise = "standard deviation of the noise"
    return figure(
        "flatness",
        "How flat the minimum is",
        "Accuracy and loss on training samples when Gaussian noise is added to all weights; mean "
        "over seeds, the band is one standard deviation. The later a curve turns, the flatter "
        "the minimum. The loss has a logarithmic axis.",
        [
            Curves("accuracy", noise, "percent", tuple(lines["accuracy"]), scale="percent"),
            Curves("loss", noise, "cross-entropy", tuple(lines["loss"]), scale="log"),
        ],
    )


def confusion(settings: Sequence[Setting]) -> Figure | None:
    """For each answering network: true class by answer, in percent of the class."""
    panels = []
    for network in answering(settings):
        found = network.analyses("confusion")
        found = [f for f in found if f["classes"] == found[0]["classes"]]
        if not found or len(found[0]["classes"]) > MOST_CELLS:
            continue
        counts = [sums(rows) for rows in zip(*(f["counts"] for f in found), strict=True)]
        met = [i for i, row in enumerate(counts) if sum(row) or any(other[i] for other in counts)]
        names = tuple(str(found[0]["classes"][i]) for i in met)
        shares = tuple(tuple(_shares([counts[i][j] for j in met])) for i in met)
        panels.append(
            HeatMap(
                network.setting.title, names, names, shares, "true class", "answer", contrast=0.75
            )
        )
    return figure(
        "confusion",
        "What is taken for what",
        "Of the test samples of a class (row), the percentage that got each answer (column), "
        "all seeds together. A full column is a class that swallows others.",
        panels,
    )


def _shares(row: Sequence[float]) -> Iterator[float | None]:
    total = sum(row)
    return (100 * value / total if total else None for value in row)


def agreement(settings: Sequence[Setting]) -> Figure | None:
    """How often the networks of one learner answer alike."""
    panels = []
    for setting in settings:
        found = [run.analysis["agreement"] for run in setting.runs if run.analysis]
        found = [f for f in found if f["predictors"] == found[0]["predictors"]]
        mean = mean_matrix([f["matrix"] for f in found])
        if mean is None or len(mean) < 2:
            continue
        names = tuple(found[0]["predictors"])
        percent = tuple(tuple(None if v is None else 100 * v for v in row) for row in mean)
        least = min((v for row in percent for v in row if v is not None), default=0.0)
        low = 10 * ((least - 1e-9) // 10)  # networks of one learner are alike: show how much
        panels.append(HeatMap(setting.title, names, names, percent, "", "", low, decimals=1))
    return figure(
        "agreement",
        "Where the networks agree",
        "Percentage of the test samples to which two networks of the same learner give the same "
        "answer, mean over seeds.",
        panels,
    )
