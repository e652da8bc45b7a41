"""MNIST-360 as drawn by the published code: with replacement within a chunk.

Everything else is as in our stream, so a comparison shows the effect of the draws alone. Run from
this folder, with the full MNIST installed:

    perdure run mnist360_with_replacement:stream --method clser --buffer-size 200 --seeds 0:5 \
        --network mlp --lr 0.2 --batch 16 --memory-batch 16 --consistency-weight 0.75 \
        --stable-rate 1 --stable-decay 0.999 --plastic-rate 1 --plastic-decay 0.99 \
        --stable-window 0 --plastic-window 0
"""

from perdure.data import load
from perdure.streams import Stream, mnist360


def stream() -> Stream:
    """The stream, built from the full MNIST."""
    return mnist360(load("mnist"), replacement=True)
