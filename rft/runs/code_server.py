"""Wait until a code server answers, and say how it isolates programs (docs/code_rewards.md); or end a run without it.

    .venv/bin/python -m rft.runs.code_server URL [--seconds 30] [--pid PID --log FILE]     as launch/code_server.sh does
    .venv/bin/python -m rft.runs.code_server URL --pid PID --log FILE --watch RUN_DIR      until the server has ended

Exit status 0 once it answers; 1 where its process has ended before, or the time is over, with the end of its log. With
--watch the launcher, which is the parent, is ended within seconds of its server, or a minute after that answers nothing
more, whatever the training does just then.
"""

import sys

from rft.code_server.client import SERVICE, Client
from rft.runs import service

SECONDS = 30.0  # that a server may take to answer
SERVER = service.Server(SERVICE, Client, SECONDS, lambda found: f"isolation {found['isolation']}")


def main() -> int:
    return service.main(SERVER, service.parser(SERVER, __doc__).parse_args())


if __name__ == "__main__":
    sys.exit(main())
