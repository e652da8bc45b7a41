"""Reports on runs: tables and figures as one HTML page, Markdown or LaTeX.

`compose` makes the content from a `perdure.results.Collection`; `render` writes it.
"""

from perdure.report.charts import Figure as Figure
from perdure.report.content import Report as Report
from perdure.report.content import compose as compose
from perdure.report.rendering import render as render
