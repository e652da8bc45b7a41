"""MNIST-360 as the published code draws it: with replacement inside a chunk.

The rest is our stream, so the difference between the two is what the draws alone are worth. From
this folder, with full MNIST where `perdure` finds it:

    perdure run mnist360_with_replacement:stream --method clser --buffer 200 --seeds 0:5 \
        --network mlp --lr 0.2 --batch 16 --memory-batch 16 --consistency-weight 0.75 \
        --stable-rate 1 --stable-decay 0.999 --plastic-rate 1 --plastic-decay 0.99
"""

from perdure.data import load
from perdure.streams import Stream, mnist360


def stream() -> Stream:
    """The stream, made from full MNIST."""
    return mnist360(load("mnist"), replacement=True)
