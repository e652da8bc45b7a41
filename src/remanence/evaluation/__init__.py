"""From predictors to numbers."""

from remanence.evaluation.accuracy import Accuracies as Accuracies
from remanence.evaluation.accuracy import accuracies as accuracies
from remanence.evaluation.accuracy import accuracies_of as accuracies_of
from remanence.evaluation.agreement import Agreement as Agreement
from remanence.evaluation.agreement import agreement as agreement
from remanence.evaluation.answers import ask as ask
from remanence.evaluation.calibration import Calibration as Calibration
from remanence.evaluation.calibration import calibration as calibration
from remanence.evaluation.confusion import Confusion as Confusion
from remanence.evaluation.confusion import confusion as confusion
from remanence.evaluation.flatness import Flatness as Flatness
from remanence.evaluation.flatness import flatness as flatness
from remanence.evaluation.metrics import backward_transfer as backward_transfer
from remanence.evaluation.metrics import forgetting as forgetting
from remanence.evaluation.metrics import forward_transfer as forward_transfer
from remanence.evaluation.metrics import mean_std as mean_std
from remanence.evaluation.task_bias import TaskProbabilities as TaskProbabilities
from remanence.evaluation.task_bias import task_probabilities as task_probabilities
