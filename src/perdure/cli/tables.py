"""Tables on stdout."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table

WIDE = 250
"""Columns of a log, which nobody folds."""


def show(*tables: Table) -> None:
    """Print tables as wide as the terminal; in a file or a pipe as wide as they want to be."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=WIDE)
    for table in tables:
        console.print(table)
