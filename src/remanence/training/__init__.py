"""From settings to finished runs: plan, build, train, and the processes that do it."""

from remanence.training.build import Settings as Settings
from remanence.training.build import load_run as load_run
from remanence.training.loop import Hooks as Hooks
from remanence.training.loop import Progress as Progress
from remanence.training.loop import Run as Run
from remanence.training.loop import TrainingError as TrainingError
from remanence.training.loop import fit as fit
from remanence.training.loop import train as train
from remanence.training.plan import plan as plan
from remanence.training.record import Record as Record
