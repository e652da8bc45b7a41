"""Learn from streams that change, and keep what was learned.

The public names are re-exported here one by one; everything else may change. They are imported when
the first is asked for: torch takes seconds, and by then the command listens to Ctrl-C.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.experiment import load_run
    from perdure.learners import (
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
    from perdure.records import Samples
    from perdure.streams import Stream, from_batches, from_dataset, from_tensors
    from perdure.training import fit

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

_HOMES = ("learners", "records", "streams", "training", "experiment")
"""Where the names above live."""
_PARTS = (*_HOMES, "data", "memory", "networks", "testing")

if not TYPE_CHECKING:  # or every misspelt name would pass a type checker

    def __getattr__(name: str) -> Any:
        if name in _PARTS:
            return import_module(f"perdure.{name}")
        if name in __all__:
            for part in _HOMES:
                module = import_module(f"perdure.{part}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
