"""Training: the loop, its callbacks, checkpoints, engines, and several processes for one run."""

from perdure.training.callbacks import Callback as Callback
from perdure.training.loop import Progress as Progress
from perdure.training.loop import Run as Run
from perdure.training.loop import TrainingError as TrainingError
from perdure.training.loop import fit as fit
from perdure.training.loop import train as train
from perdure.training.record import Record as Record
