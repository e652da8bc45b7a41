"""The analyses of the saved networks: Section 6 of the paper, confusion and agreement."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.evaluation import mean_std
from perdure.report.charts import Bars, Curves, Figure, HeatMap, Line, Reliability, Series
from perdure.report.figures.common import (
    MAX_CELLS,
    class_label,
    figure,
    mean_curve,
    mean_matrix,
    networks,
    sums,
)
from perdure.results.table import Setting


def task_probabilities(settings: Sequence[Setting]) -> Figure | None:
    """Mean probability of each task (or class), a colour for each method."""
    series: list[Series] = []
    names: list[str] = []
    kind = "task"
    for network in networks(settings):
        found = [analysis.task_probabilities for analysis in network.analyses()]
        names = names or (found[0].names if found else [])
        found = [f for f in found if f.names == names]
        if found:
            kind = found[0].kind
            mean, std = mean_curve([[100 * share for share in f.mass] for f in found])
            series.append(Series(network.setting.config.method_title, network.style, mean, std))
    if not series:
        return None
    if kind == "task":
        short = tuple(str(i + 1) for i in range(len(names)))
    else:
        short = tuple(class_label(settings[0], int(name)) for name in names)
    equal = 100 / len(names) if names else None
    chart = Bars("", kind, "probability, percent", short, tuple(series), equal=equal)
    caption = (
        f"Softmax probability of each {kind} on the whole test set, normalised, mean over seeds. "
        "The dashed line marks equal shares. "
    )
    if kind == "task":
        caption += "Higher bars for later tasks show a bias towards recent tasks."
    else:
        caption += "High bars mark classes that are predicted too often."
    return figure("probabilities", "Predicted probabilities", caption, [chart])


def calibration(settings: Sequence[Setting]) -> Figure | None:
    """A reliability diagram for each network, over all its seeds."""
    charts = []
    for network in networks(settings, in_full=("clser",)):
        found = [a.calibration for a in network.analyses() if a.calibration.bins]
        edges = {(*(b.lower for b in f.bins), f.bins[-1].upper) for f in found}
        if len(edges) != 1:
            continue
        bins = list(zip(*(f.bins for f in found), strict=True))
        counts = [sum(b.count for b in seeds) for seeds in bins]
        correct = [sum(b.count * (b.accuracy or 0.0) for b in seeds) for seeds in bins]
        charts.append(
            Reliability(
                network.label,
                network.style,
                edges.pop(),
                tuple(100 * k / n if n else None for k, n in zip(correct, counts, strict=True)),
                tuple(count / (sum(counts) or 1) for count in counts),
                *mean_std([100 * f.ece for f in found]),
            )
        )
    return figure(
        "calibration",
        "Calibration",
        "Accuracy of predictions by confidence, over all seeds. A calibrated network lies on the "
        "dashed line; bars below it show overconfidence. Darker bars contain more predictions. "
        "ECE is the expected calibration error in percent; lower is better.",
        charts,
    )


def flatness(settings: Sequence[Setting]) -> Figure | None:
    """Accuracy and loss under noise on the weights, a line for each network."""
    lines: dict[str, list[Line]] = {"accuracy": [], "loss": []}
    for network in networks(settings, in_full=("clser",)):
        found = [a.flatness for a in network.analyses() if a.flatness is not None]
        found = [f for f in found if f.sigmas == found[0].sigmas]
        for key in lines if found else ():
            mean, std = mean_curve([getattr(f, key) for f in found])
            lines[key].append(Line(network.label, network.style, tuple(found[0].sigmas), mean, std))
    if not lines["accuracy"]:
        return None
    noise = "standard deviation of the noise"
    return figure(
        "flatness",
        "Flatness of the minimum",
        "Accuracy and loss on training samples with Gaussian noise added to all weights; mean "
        "over seeds with a band of one standard deviation. In a flatter minimum, accuracy falls "
        "and loss rises later. The loss axis is logarithmic.",
        [
            Curves("accuracy", noise, "percent", tuple(lines["accuracy"]), scale="percent"),
            Curves("loss", noise, "cross-entropy", tuple(lines["loss"]), scale="log"),
        ],
    )


def confusion(settings: Sequence[Setting]) -> Figure | None:
    """True and predicted classes of each default predictor, in percent of the true class."""
    charts = []
    for network in networks(settings):
        found = [analysis.confusion for analysis in network.analyses()]
        found = [f for f in found if f.classes == found[0].classes]
        if not found or len(found[0].classes) > MAX_CELLS:
            continue
        counts = [sums(rows) for rows in zip(*(f.counts for f in found), strict=True)]
        used = [i for i, row in enumerate(counts) if sum(row) or any(other[i] for other in counts)]
        names = tuple(class_label(network.setting, found[0].classes[i]) for i in used)
        totals = [sum(row) for row in counts]
        shares = tuple(
            tuple(100 * counts[i][j] / totals[i] if totals[i] else None for j in used) for i in used
        )
        title = network.setting.config.method_title
        charts.append(
            HeatMap(title, names, names, shares, "true class", "predicted class", contrast=0.75)
        )
    return figure(
        "confusion",
        "Confusion matrix",
        "Percentage of each true class (row) that was assigned to each class (column), over all "
        "seeds. A dark column is a class that is predicted too often.",
        charts,
    )


def agreement(settings: Sequence[Setting]) -> Figure | None:
    """How often the networks of one learner give the same answer."""
    charts = []
    for setting in settings:
        found = [run.analysis.agreement for run in setting.runs if run.analysis]
        found = [f for f in found if f.predictors == found[0].predictors]
        mean = mean_matrix([f.matrix for f in found])
        if mean is None or len(mean) < 2:
            continue
        names = tuple(found[0].predictors)
        percent = tuple(tuple(None if v is None else 100 * v for v in row) for row in mean)
        least = min((v for row in percent for v in row if v is not None), default=0.0)
        low = 10 * ((least - 1e-9) // 10)  # shows differences between networks that mostly agree
        title = setting.config.method_title
        charts.append(HeatMap(title, names, names, percent, "", "", low, decimals=1))
    return figure(
        "agreement",
        "Agreement between networks",
        "Percentage of the test samples on which two networks of the same learner give the same "
        "answer, mean over seeds.",
        charts,
    )
