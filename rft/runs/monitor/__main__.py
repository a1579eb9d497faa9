"""`.venv/bin/python -m rft.runs.monitor`"""

import sys

from rft.runs.monitor.cli import main

sys.exit(main())
