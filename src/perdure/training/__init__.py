"""From settings to finished runs: plan, build, train, and the processes that do it."""

from perdure.training.build import Settings as Settings
from perdure.training.build import load_run as load_run
from perdure.training.loop import Hooks as Hooks
from perdure.training.loop import Progress as Progress
from perdure.training.loop import Run as Run
from perdure.training.loop import TrainingError as TrainingError
from perdure.training.loop import fit as fit
from perdure.training.loop import train as train
from perdure.training.plan import plan as plan
from perdure.training.record import Record as Record
