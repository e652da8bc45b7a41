"""What learns: one file per method, all with the interface of `Learner`."""

from remanence.learners.agem import AGEM as AGEM
from remanence.learners.clser import CLSER as CLSER
from remanence.learners.der import DER as DER
from remanence.learners.derpp import DERPP as DERPP
from remanence.learners.er import ER as ER
from remanence.learners.fdr import FDR as FDR
from remanence.learners.gem import GEM as GEM
from remanence.learners.gss import GSS as GSS
from remanence.learners.icarl import ICaRL as ICaRL
from remanence.learners.learner import Learner as Learner
from remanence.learners.mean_er import MeanER as MeanER
from remanence.learners.mer import MER as MER
from remanence.learners.predictor import Predictor as Predictor
from remanence.learners.sgd import SGD as SGD
