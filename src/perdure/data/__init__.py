"""Datasets: download, verify, and decode once to uint8 tensors."""

from perdure.data.download import fetch as fetch
from perdure.data.loading import Finding as Finding
from perdure.data.loading import explain_missing as explain_missing
from perdure.data.loading import load as load
from perdure.data.loading import locate as locate
from perdure.data.loading import verify as verify
from perdure.data.progress import decoding_progress as decoding_progress
from perdure.data.registry import DATASETS as DATASETS
from perdure.data.spec import DataError as DataError
from perdure.data.spec import Dataset as Dataset
from perdure.data.spec import File as File
from perdure.data.spec import Layout as Layout
from perdure.data.spec import Spec as Spec
