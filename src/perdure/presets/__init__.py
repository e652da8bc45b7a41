"""The published hyperparameters, and the figures they are known to give.

One TOML file per method holds its settings per stream and buffer; `paper.toml` holds the tables of
the CLS-ER paper. The released settings for MNIST-360 name no epochs: it is passed once. Nothing
here needs torch.
"""

from perdure.presets._figures import Figure, paper_figures, published_code_figures
from perdure.presets._find import Preset, find, published_buffers

__all__ = [
    "Figure",
    "Preset",
    "find",
    "paper_figures",
    "published_buffers",
    "published_code_figures",
]
