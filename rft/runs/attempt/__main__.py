"""`.venv/bin/python -m rft.runs.attempt`"""

import sys

from rft.runs.attempt.cli import main

sys.exit(main())
