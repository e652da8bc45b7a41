"""Experiments: from a choice of stream and method to finished runs, grids, studies and analyses."""

from perdure.experiment.build import load_run as load_run
