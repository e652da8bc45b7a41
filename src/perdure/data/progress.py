"""Progress of downloads and of decoding, on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perdure.data.spec import OnProgress

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

MANY_FILES = 1000
"""Reading fewer files takes too little time for a display."""
EVERY = 100
"""Files between two updates of the display."""


def progress_bar(count: ProgressColumn, *, shown: bool, transient: bool = False) -> Progress:
    """A bar with a count and the time left; shown on terminals only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    return Progress(
        "{task.description}",
        BarColumn(),
        count,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=transient,
        disable=not (shown and sys.stderr.isatty()),
    )


@contextlib.contextmanager
def decoding_progress(name: str, *, shown: bool = True) -> Iterator[OnProgress]:
    """Show the progress of decoding many files: a bar on a terminal, a line elsewhere."""
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn

    lock = threading.Lock()
    task = None
    with progress_bar(MofNCompleteColumn(), shown=shown, transient=True) as bar:

        def update(done: int, total: int) -> None:
            nonlocal task
            if not shown or total < MANY_FILES or (done % EVERY and done > 1):
                return
            with lock, contextlib.suppress(OSError):  # the terminal is gone
                if task is None:
                    task = bar.add_task(escape(f"decoding {name}"), total=total)
                    if bar.disable:
                        print(f"decoding {name}: {total} files", file=sys.stderr, flush=True)
                bar.update(task, completed=done)

        yield update
