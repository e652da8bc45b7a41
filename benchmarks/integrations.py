"""Accuracy of the scikit-learn and river classifiers with their defaults.

    python benchmarks/integrations.py

Prints two Markdown tables, in percent, mean ± standard deviation over seeds. scikit-learn: one
class after the other in one pass, accuracy on a quarter of the rows that is held out, with and
without standardised features; the seed also draws the split. If the loss becomes infinite in any
seed, the cell says in how many. river: prequential accuracy by batch size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from river import datasets, evaluate, metrics
from river.datasets import synth
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split

from perdure.integrations import river, scikit_learn
from perdure.results.verdict import Spread

TABLES = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}
TABLE_SEEDS, STREAM_SEEDS = range(5), range(3)
BATCHES = (1, 2, 4, 8, 16, 32)


def streams() -> dict[str, Iterable[tuple[dict[str, float], object]]]:
    """Streams of river by name; the concept of SEA changes after half of the samples."""
    before, after = synth.SEA(variant=0, seed=1), synth.SEA(variant=3, seed=2)
    sea = synth.ConceptDriftStream(before, after, seed=1, position=1000, width=10)
    return {
        "Phishing, 1,250": datasets.Phishing(),
        "ImageSegments, 2,310": datasets.ImageSegments(),
        "Bananas, 2,000": datasets.Bananas().take(2000),
        "LED, 2,000": synth.LED(seed=1).take(2000),
        "SEA with a change of concept, 2,000": sea.take(2000),
    }


def held_out_accuracy(table: str, standardise: bool, seed: int) -> float | None:
    """Train on one class after the other and test on all; None if training diverges."""
    rows, labels = TABLES[table](return_X_y=True)
    rows, test_rows, labels, test_labels = train_test_split(
        rows, labels, test_size=0.25, stratify=labels, random_state=seed
    )
    classifier = scikit_learn.ContinualClassifier(standardise=standardise, random_state=seed)
    for label in np.unique(labels):
        try:
            classifier.partial_fit(rows[labels == label], labels[labels == label])
        except ValueError:  # the loss is infinite
            return None
    return 100 * float(classifier.score(test_rows, test_labels))


def scikit_learn_cell(table: str, standardise: bool) -> str:
    found = [held_out_accuracy(table, standardise, seed) for seed in TABLE_SEEDS]
    accuracies = [accuracy for accuracy in found if accuracy is not None]
    if len(accuracies) < len(found):
        return f"diverges in {len(found) - len(accuracies)} of {len(found)} seeds"
    return Spread.over(accuracies).text(1)


def prequential_accuracy(
    samples: Iterable[tuple[dict[str, float], object]], batch: int, seed: int
) -> float:
    """Predict each sample before learning from it."""
    classifier = river.ContinualClassifier(batch_size=batch, seed=seed)
    metric = metrics.Accuracy()
    evaluate.progressive_val_score(iter(samples), classifier, metric)
    return 100 * float(metric.get())


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    head = list(head)
    for line in itertools.chain([head, ["---"] * len(head)], rows):
        print(f"| {' | '.join(line)} |", flush=True)


def main() -> None:
    print_table(
        ["features", *TABLES],
        (
            [name, *(scikit_learn_cell(table, standardise) for table in TABLES)]
            for name, standardise in {"standardised": True, "raw": False}.items()
        ),
    )
    print()
    found = {name: list(samples) for name, samples in streams().items()}
    print_table(
        ["stream, samples", *(f"batch {batch}" for batch in BATCHES)],
        (
            [
                name,
                *(
                    Spread.over([prequential_accuracy(samples, b, s) for s in STREAM_SEEDS]).text(1)
                    for b in BATCHES
                ),
            ]
            for name, samples in found.items()
        ),
    )


if __name__ == "__main__":
    main()
