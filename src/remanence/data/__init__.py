"""Datasets: found, checked, decoded once to uint8 tensors; downloaded on request."""

from remanence.data.dataset import Dataset
from remanence.data.download import fetch
from remanence.data.official import DATASETS
from remanence.data.reading import Finding, load, locate, verify
from remanence.data.spec import DataError, File, Layout, Spec

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
