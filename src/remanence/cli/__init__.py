"""The command line: one file per verb, which parses and hands on."""

from remanence.cli.command import main, parse
from remanence.cli.data import DataOptions, FetchOptions
from remanence.cli.reproduce import ReproduceOptions
from remanence.cli.run import RunOptions

__all__ = ["DataOptions", "FetchOptions", "ReproduceOptions", "RunOptions", "main", "parse"]
