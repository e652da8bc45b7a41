"""Learn from streams that change, and keep what was learned.

The public names are re-exported here one by one; everything else may change.
"""

from remanence.learners import (
    AGEM,
    CLSER,
    DER,
    DERPP,
    ER,
    FDR,
    GEM,
    GSS,
    MER,
    SGD,
    ICaRL,
    Learner,
    MeanER,
    Predictor,
)
from remanence.records import Samples
from remanence.streams import Stream, from_batches, from_dataset, from_tensors
from remanence.training import fit, load_run

__version__ = "0.1.0"

__all__ = [
    "AGEM",
    "CLSER",
    "DER",
    "DERPP",
    "ER",
    "FDR",
    "GEM",
    "GSS",
    "MER",
    "SGD",
    "ICaRL",
    "Learner",
    "MeanER",
    "Predictor",
    "Samples",
    "Stream",
    "fit",
    "from_batches",
    "from_dataset",
    "from_tensors",
    "load_run",
]
