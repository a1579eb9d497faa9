"""`python -m rft.push`."""

import sys

from rft.push.cli import main

if __name__ == "__main__":
    sys.exit(main())
