"""From predictors to numbers."""

from remanence.evaluation.accuracy import Accuracies as Accuracies
from remanence.evaluation.accuracy import accuracies as accuracies
from remanence.evaluation.metrics import backward_transfer as backward_transfer
from remanence.evaluation.metrics import forgetting as forgetting
from remanence.evaluation.metrics import forward_transfer as forward_transfer
from remanence.evaluation.metrics import mean_std as mean_std
