"""The command line: one file per verb."""

from perdure.cli.command import main as main
from perdure.cli.command import parse as parse
