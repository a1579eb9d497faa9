"""`.venv/bin/python -m rft.runs.samples`"""

import signal
import sys

from rft.runs.samples.cli import main

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
sys.exit(main())
