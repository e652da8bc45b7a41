"""What learns: one file per method, all with the interface of `Learner`."""

from remanence.learners.clser import CLSER as CLSER
from remanence.learners.er import ER as ER
from remanence.learners.learner import Learner as Learner
from remanence.learners.mean_er import MeanER as MeanER
from remanence.learners.predictor import Predictor as Predictor
from remanence.learners.sgd import SGD as SGD
