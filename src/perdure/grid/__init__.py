"""Many runs: the tables of the paper or a user's own grid, on this machine or on a cluster."""

from perdure.grid.engines import Engine, Local
from perdure.grid.planning import Entry, Plan, plan_grid
from perdure.grid.speeds import Speeds
from perdure.grid.standing import Standing
from perdure.grid.tables import PAPER, Cell, Grid, choose, paper_grid, read_grid

__all__ = [
    "PAPER",
    "Cell",
    "Engine",
    "Entry",
    "Grid",
    "Local",
    "Plan",
    "Speeds",
    "Standing",
    "choose",
    "paper_grid",
    "plan_grid",
    "read_grid",
]
