"""Entry point of `perdure` and `python -m perdure`."""

import os
import signal
import sys
from types import FrameType

from perdure import __version__
from perdure.processes import leave_out_compiler


def main() -> int:
    """Run the command. Ctrl-C while torch is loading ends the process without a traceback."""
    if sys.argv[1:] == ["--version"]:
        print(f"perdure {__version__}")
        return 0
    # A shell starts background processes with SIGINT ignored; leave that as it is.
    handles_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_ctrl_c:
        signal.signal(signal.SIGINT, _exit)
    import perdure.cli  # imports torch

    leave_out_compiler()
    if handles_ctrl_c:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return perdure.cli.main()


def _exit(signum: int, frame: FrameType | None) -> None:
    # Raising KeyboardInterrupt is not enough: the module being imported could catch or replace it.
    os._exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
