"""Continual learning in PyTorch.

The names in `__all__` are the public API; everything else may change. They are imported on first
use, because importing torch takes seconds: `perdure --version` answers at once, and the command
handles Ctrl-C before torch is loaded.
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
        ERACE,
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
    from perdure.streams import (
        ImageEncoder,
        Stream,
        TableEncoder,
        from_batches,
        from_dataset,
        from_image_folder,
        from_table,
        from_tensors,
    )
    from perdure.training import Callback, fit

__version__ = "0.1.0"

__all__ = [
    "AGEM",
    "CLSER",
    "DER",
    "DERPP",
    "ER",
    "ERACE",
    "FDR",
    "GEM",
    "GSS",
    "MER",
    "SGD",
    "Callback",
    "ICaRL",
    "ImageEncoder",
    "Learner",
    "MeanER",
    "Predictor",
    "Samples",
    "Stream",
    "TableEncoder",
    "fit",
    "from_batches",
    "from_dataset",
    "from_image_folder",
    "from_table",
    "from_tensors",
    "load_run",
]

_SOURCES = ("learners", "records", "streams", "training", "experiment")
"""Modules that define the names in `__all__`."""
_SUBMODULES = (*_SOURCES, "data", "memory", "networks", "testing")

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute otherwise

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return import_module(f"perdure.{name}")
        if name in __all__:
            for source in _SOURCES:
                module = import_module(f"perdure.{source}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
