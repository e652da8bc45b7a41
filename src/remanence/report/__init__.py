"""From run folders to something one wants to read: tables, figures, one page.

`collect` reads the runs, `compose` makes the content, `page`, `markdown` and `latex` write it.
"""

from remanence.report.analyses import complete
from remanence.report.content import Report, compose
from remanence.report.panels import Figure
from remanence.report.reading import collect
from remanence.report.runs import Collection

__all__ = ["Collection", "Figure", "Report", "collect", "complete", "compose"]
