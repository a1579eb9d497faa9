"""`.venv/bin/python -m rft.runs.report`"""

import sys

from rft.runs.report.cli import main

sys.exit(main())
