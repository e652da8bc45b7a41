"""Datasets: download, verify, and decode once to uint8 tensors."""

from perdure.data.dataset import Dataset
from perdure.data.download import fetch
from perdure.data.loading import Finding, explain_missing, load, locate, verify
from perdure.data.registry import DATASETS
from perdure.data.spec import DataError, File, Layout, Spec

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "File",
    "Finding",
    "Layout",
    "Spec",
    "explain_missing",
    "fetch",
    "load",
    "locate",
    "verify",
]
