"""`python -m rft.overlay CMD …`"""

import sys

if sys.version_info < (3, 11):  # checked before anything else is imported: older parsers fail on what follows
    sys.stderr.write(
        "error: the overlay needs Python 3.11 or newer\n  found: %s (%s)\n  repair: pass --python PATH\n"
        % (sys.version.split()[0], sys.executable)
    )
    sys.exit(3)

from rft.overlay.cli import main

sys.exit(main())
