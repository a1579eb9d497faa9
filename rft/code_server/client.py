"""Asks the code server, and tells a verdict from a server that could not give one (docs/code_rewards.md)."""

import os
from typing import NamedTuple

from rft.code_server import PORT, PROGRAM_CHARACTERS, SECONDS, TOKEN_VARIABLE, URL_VARIABLE, CodeServerError
from rft.json_client import PATIENCE, SHOWN, JsonClient, Service

URL = f"http://127.0.0.1:{PORT}"
READ_TIMEOUT = 1800.0  # seconds for an answer beyond what the tests may take: the queue, mostly
WALL = 4  # seconds that a test may last for one of CPU time, where the machine is busy
REPAIR = "start it with: .venv/bin/python -m rft.code_server"
SERVICE = Service("code server", URL_VARIABLE, URL, REPAIR, CodeServerError)


class Answer(NamedTuple):
    """What the server says of one program; the lists are in the order and number of the tests."""

    results: list[int]  # 1 passed, 0 not
    runtimes: list[float]  # seconds of CPU time
    causes: list[str]  # passed, failed, error, timeout, killed, unsupported, compile_error
    isolation: str  # namespaces, landlock, none


class Client(JsonClient):
    """A connection to one server, see `rft.json_client.JsonClient`.

    Args:
        url: `http://HOST:PORT`; without it CODE_SERVER_URL, else http://127.0.0.1:1234.
        token: what another host than the loopback asks for; without it CODE_SERVER_TOKEN.
        patience: seconds of trying again after the first failure of a request.
        read_timeout: seconds to wait for one answer, beyond four times the CPU time of the request's tests.

    Raises:
        ValueError: if the URL is none of HTTP.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience: float = PATIENCE,
        read_timeout: float = READ_TIMEOUT,
    ):
        url, token = url or os.environ.get(URL_VARIABLE) or URL, token or os.environ.get(TOKEN_VARIABLE)
        super().__init__(SERVICE, url, token, patience=patience, read_timeout=read_timeout)

    async def test_program(
        self,
        program: str,
        tests: list[str],
        *,
        setup: str = "",
        entry_point: str | None = None,
        max_execution_time: float = SECONDS,
    ) -> Answer:
        """Runs Python tests (`assert f(1) == 2`, or HumanEval's `check`) against a program of the model.

        Args:
            setup: code of the data set that runs before the tests, never with the program.
            entry_point: the function that tests call `candidate`.
            max_execution_time: seconds of CPU time a test.

        Raises:
            CodeServerError: no verdict. Never a result of 0.
        """
        more = {"setup": setup, "entry_point": entry_point}
        return await self._verdict("/test_program", program, tests, max_execution_time, more)

    async def test_program_stdio(
        self, program: str, tests: list[dict[str, str]], *, max_execution_time: float = SECONDS
    ) -> Answer:
        """Runs a program once a test, `{"input": text, "output": text}`: the output decides.

        Raises:
            CodeServerError: no verdict. Never a result of 0.
        """
        return await self._verdict("/test_program_stdio", program, tests, max_execution_time, {})

    async def _verdict(self, path: str, program: str, tests: list, seconds: float, more: dict) -> Answer:
        asked = {"program": program[: PROGRAM_CHARACTERS + 1], "tests": tests, "max_execution_time": seconds}
        found = await self.ask("POST", path, asked | more, WALL * len(tests) * seconds)
        try:
            answer = Answer(*(found[name] for name in Answer._fields))
            sound = all(len(each) == len(asked["tests"]) for each in answer[:3]) and set(answer.results) <= {0, 1}
        except (KeyError, TypeError):
            sound = False
        if not sound:
            raise CodeServerError(
                f"{self.url}{path}: found {str(found)[:SHOWN]!r}; wanted {len(asked['tests'])} results of a code "
                f"server of this version; {REPAIR}"
            )
        return answer
