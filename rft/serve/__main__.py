"""`python -m rft.serve`."""

import sys

from rft.serve.cli import main

if __name__ == "__main__":
    sys.exit(main())
