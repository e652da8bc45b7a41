"""`python -m remanence`."""

import sys

from remanence.cli import main

if __name__ == "__main__":
    sys.exit(main())
