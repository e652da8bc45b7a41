"""Published hyperparameters and results.

One TOML file per method has its hyperparameters by stream and buffer size; `paper.toml` has the
tables of the CLS-ER paper. The published settings for MNIST-360 do not mention epochs; one epoch
is assumed. This package does not import torch.
"""

from perdure.presets._figures import Figure as Figure
from perdure.presets._figures import paper_figures as paper_figures
from perdure.presets._figures import published_code_figures as published_code_figures
from perdure.presets._find import Preset as Preset
from perdure.presets._find import find as find
from perdure.presets._find import published_buffers as published_buffers
