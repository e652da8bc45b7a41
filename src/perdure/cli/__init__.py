"""The command line: one file per verb, which parses and hands on."""

from perdure.cli.command import main, parse
from perdure.cli.data import DataOptions, FetchOptions
from perdure.cli.report import ReportOptions
from perdure.cli.reproduce import ReproduceOptions
from perdure.cli.run import RunOptions
from perdure.cli.tune import TuneOptions

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
