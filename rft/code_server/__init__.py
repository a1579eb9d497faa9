"""The code server: programs of the model against tests, over HTTP (docs/code_rewards.md)."""

# What server and client share.
PORT = 1234
SECONDS = 5.0  # CPU time a test may take unless the request says
PROGRAM_CHARACTERS = 1 << 18  # a longer program does not compile, by definition; clients cut it behind one more
URL_VARIABLE, TOKEN_VARIABLE = "CODE_SERVER_URL", "CODE_SERVER_TOKEN"


class CodeServerError(RuntimeError):
    """The code server gave no verdict: it is down, refused the request, or answered what is none."""
