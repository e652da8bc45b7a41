"""Datasets: found, checked, decoded once to uint8 tensors; downloaded on request."""

from perdure.data.dataset import Dataset
from perdure.data.download import fetch
from perdure.data.official import DATASETS
from perdure.data.reading import Finding, load, locate, verify
from perdure.data.spec import DataError, File, Layout, Spec

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "File",
    "Finding",
    "Layout",
    "Spec",
    "fetch",
    "load",
    "locate",
    "verify",
]
