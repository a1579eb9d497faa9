"""`python -m rft.code_server`."""

import sys

from rft.code_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
