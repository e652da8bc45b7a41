"""Training: the loop, its callbacks and checkpoints, and how steps are executed."""

from perdure.training.callbacks import Callback as Callback
from perdure.training.callbacks import EventLog as EventLog
from perdure.training.loop import Interrupted as Interrupted
from perdure.training.loop import Progress as Progress
from perdure.training.loop import Run as Run
from perdure.training.loop import TrainingError as TrainingError
from perdure.training.loop import fit as fit
from perdure.training.loop import train as train
from perdure.training.record import Record as Record
