"""Results: run folders, typed records, and tables over seeds."""

from perdure.results.folder import RunFolder as RunFolder
from perdure.results.records import RunRecord as RunRecord
from perdure.results.records import SkippedFolder as SkippedFolder
from perdure.results.records import read_run as read_run
from perdure.results.table import Collection as Collection
from perdure.results.table import Comparison as Comparison
from perdure.results.table import Setting as Setting
from perdure.results.table import collect as collect
from perdure.results.verdict import Spread as Spread
from perdure.results.verdict import verdict as verdict
