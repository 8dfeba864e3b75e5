"""`python -m smoothcert` is the command `smoothcert`."""

import sys

from smoothcert.cli import main

if __name__ == "__main__":
    sys.exit(main())
