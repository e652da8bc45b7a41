"""`perdure`, and `python -m perdure`."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command; Ctrl-C while its libraries are loaded, for seconds, ends it quietly."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background
    if hears:
        signal.signal(signal.SIGINT, _leave)
    import perdure.cli
    import perdure.training.launch  # and with it torch

    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return perdure.cli.main()


def _leave(signum: int, frame: FrameType | None) -> None:
    # An exception could be swallowed by what is being imported, or come out as another one.
    os._exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
