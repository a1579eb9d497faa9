"""Asks the code server, and tells a verdict from a server that could not give one (docs/code_rewards.md)."""

import asyncio
import os
import time
from typing import NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp

from rft.code_server import PORT, PROGRAM_CHARACTERS, SECONDS, TOKEN_VARIABLE, URL_VARIABLE, CodeServerError

URL = f"http://127.0.0.1:{PORT}"
PATIENCE = 40.0  # seconds of trying again after the first failure: a run whose server has died ends within a minute
READ_TIMEOUT = 1800.0  # seconds for an answer beyond what the tests may take: the queue, mostly
WALL = 4  # seconds that a test may last for one of CPU time, where the machine is busy
CONNECT_TIMEOUT = 10.0
FIRST_WAIT, LONGEST_WAIT = 0.25, 5.0  # seconds between tries; doubled each time
REPAIR = "start it with: .venv/bin/python -m rft.code_server"
SHOWN = 300  # characters of an answer that an error quotes


class Answer(NamedTuple):
    """What the server says of one program; the lists are in the order and number of the tests."""

    results: list[int]  # 1 passed, 0 not
    runtimes: list[float]  # seconds of CPU time
    causes: list[str]  # passed, failed, error, timeout, killed, unsupported, compile_error
    isolation: str  # namespaces, landlock, none


class Client:
    """A connection to one server, with a session for each event loop that uses it.

    A session ends with `close()`, or `async with Client() as client:`, in the loop that used it.

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
        self.url = (url or os.environ.get(URL_VARIABLE) or URL).rstrip("/")
        place = urlsplit(self.url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"found {self.url!r} as the code server's address; wanted {URL}; set {URL_VARIABLE}")
        self._token = token or os.environ.get(TOKEN_VARIABLE)
        self._patience, self._read_timeout = patience, read_timeout
        self._sessions: WeakKeyDictionary = WeakKeyDictionary()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session of the running event loop, if it has one."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

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

    async def health(self) -> dict:
        """The server's isolation level, queue and uptime.

        Raises:
            CodeServerError: as for a verdict.
        """
        return await self._ask("GET", "/health")

    async def _verdict(self, path: str, program: str, tests: list, seconds: float, more: dict) -> Answer:
        asked = {"program": program[: PROGRAM_CHARACTERS + 1], "tests": tests, "max_execution_time": seconds}
        found = await self._ask("POST", path, asked | more, WALL * len(tests) * seconds)
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

    async def _ask(self, method: str, path: str, asked: dict | None = None, seconds: float = 0.0) -> dict:
        """The JSON of an answer with status 200, which may take `seconds` to make; tries again what may pass."""
        limit = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT, sock_read=self._read_timeout + seconds)
        since, failures, wait = None, [], FIRST_WAIT
        while True:
            started = time.monotonic()
            fault, retry_after = "", 0.0
            try:
                async with self._session().request(
                    method, self.url + path, json=asked, timeout=limit, allow_redirects=False
                ) as got:
                    if got.status == 200:
                        return await got.json()
                    fault = f"status {got.status}: {(await got.text())[:SHOWN]}"
                    if got.status < 500:
                        raise CodeServerError(f"{self.url}{path} refused the request with {fault}")
                    retry_after = _seconds(got.headers.get("Retry-After"))
            except (aiohttp.ContentTypeError, ValueError) as error:
                raise CodeServerError(
                    f"{self.url}{path}: found an answer that is no JSON ({str(error)[:SHOWN]}); wanted a code server "
                    f"there; {REPAIR}"
                ) from error
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                fault = f"{type(error).__name__}: {error}"[:SHOWN]
            failures.append(f"{fault} after {time.monotonic() - started:.1f} s")
            since = since or time.monotonic()
            pause = max(wait, min(retry_after, LONGEST_WAIT))
            if time.monotonic() + pause > since + self._patience:
                raise CodeServerError(
                    f"no answer from the code server at {self.url}{path}: {len(failures)} tries, the first: "
                    f"{failures[0]}; the last: {failures[-1]}. {REPAIR} (or set {URL_VARIABLE})"
                )
            await asyncio.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)

    def _session(self) -> aiohttp.ClientSession:
        """The running loop's session. Without the environment's proxies: programs and tests go to the server alone."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            self._sessions[loop] = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
                trust_env=False,
            )
        return self._sessions[loop]


def _seconds(text: str | None) -> float:
    """Retry-After as seconds; 0 where it says none."""
    return float(text) if text and text.isdecimal() else 0.0
