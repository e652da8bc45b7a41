"""The command line: one file per verb, which parses and hands on."""

from remanence.cli.command import main, parse
from remanence.cli.data import DataOptions, FetchOptions
from remanence.cli.report import ReportOptions
from remanence.cli.reproduce import ReproduceOptions
from remanence.cli.run import RunOptions
from remanence.cli.tune import TuneOptions

__all__ = [
    "DataOptions",
    "FetchOptions",
    "ReportOptions",
    "ReproduceOptions",
    "RunOptions",
    "TuneOptions",
    "main",
    "parse",
]
