"""From run folders to something one wants to read: tables, figures, one page.

`collect` reads the runs, `compose` makes the content, `page`, `markdown` and `latex` write it.
"""

from perdure.report.analyses import complete
from perdure.report.content import Report, compose
from perdure.report.panels import Figure
from perdure.report.reading import collect
from perdure.report.runs import Collection

__all__ = ["Collection", "Figure", "Report", "collect", "complete", "compose"]
