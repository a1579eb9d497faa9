"""`python -m rft.retriever`."""

import sys

from rft.retriever.cli import main

if __name__ == "__main__":
    sys.exit(main())
