"""`python -m lipdp` does what `lipdp` does."""

import sys

from lipdp.cli import main

if __name__ == "__main__":
    sys.exit(main())
