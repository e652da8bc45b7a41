"""Continual-learning methods: one file per method, all with the interface of `Learner`."""

from perdure.learners.agem import AGEM as AGEM
from perdure.learners.clser import CLSER as CLSER
from perdure.learners.der import DER as DER
from perdure.learners.derpp import DERPP as DERPP
from perdure.learners.er import ER as ER
from perdure.learners.er_ace import ERACE as ERACE
from perdure.learners.fdr import FDR as FDR
from perdure.learners.gem import GEM as GEM
from perdure.learners.gss import GSS as GSS
from perdure.learners.icarl import ICaRL as ICaRL
from perdure.learners.learner import Learner as Learner
from perdure.learners.mean_er import MeanER as MeanER
from perdure.learners.mer import MER as MER
from perdure.learners.multi_batch import MultiBatchNetwork as MultiBatchNetwork
from perdure.learners.predictor import Predictor as Predictor
from perdure.learners.sgd import SGD as SGD
