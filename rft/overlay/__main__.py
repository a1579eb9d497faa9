"""`bash apply_patches.sh CMD …`, or `.venv/bin/python -m rft.overlay CMD …`"""

import sys

# Checked before anything else is imported: older parsers fail on what follows.
if sys.version_info < (3, 11):  # noqa: UP036
    found = sys.version.split()[0] + " at " + sys.executable
    sys.stderr.write(
        "error: the overlay needs Python 3.11 or newer\n  found:  " + found + "\n  repair: pass --python PATH\n"
    )
    sys.exit(3)

from rft.overlay.cli import main

sys.exit(main())
