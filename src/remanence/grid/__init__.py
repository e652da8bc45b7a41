"""Many runs: the tables of the paper or a user's own grid, on this machine or on a cluster."""

from remanence.grid.engines import Engine, Local
from remanence.grid.planning import Entry, Plan, plan_grid
from remanence.grid.speeds import Speeds
from remanence.grid.standing import Standing
from remanence.grid.tables import PAPER, Cell, Grid, choose, paper_grid, read_grid

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
