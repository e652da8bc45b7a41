"""From predictors to numbers."""

from perdure.evaluation.accuracy import Accuracies as Accuracies
from perdure.evaluation.accuracy import accuracies as accuracies
from perdure.evaluation.accuracy import accuracies_of as accuracies_of
from perdure.evaluation.agreement import Agreement as Agreement
from perdure.evaluation.agreement import agreement as agreement
from perdure.evaluation.answers import ask as ask
from perdure.evaluation.calibration import Calibration as Calibration
from perdure.evaluation.calibration import calibration as calibration
from perdure.evaluation.confusion import Confusion as Confusion
from perdure.evaluation.confusion import confusion as confusion
from perdure.evaluation.flatness import Flatness as Flatness
from perdure.evaluation.flatness import flatness as flatness
from perdure.evaluation.metrics import backward_transfer as backward_transfer
from perdure.evaluation.metrics import forgetting as forgetting
from perdure.evaluation.metrics import forward_transfer as forward_transfer
from perdure.evaluation.metrics import mean_std as mean_std
from perdure.evaluation.task_bias import TaskProbabilities as TaskProbabilities
from perdure.evaluation.task_bias import task_probabilities as task_probabilities
