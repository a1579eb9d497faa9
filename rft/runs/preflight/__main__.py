"""`.venv/bin/python -m rft.runs.preflight`"""

import sys

from rft.runs.preflight.cli import main

sys.exit(main())
