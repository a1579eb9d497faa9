"""Asks a service of a run over HTTP: JSON in, JSON out, with retries, without proxies, one session an event loop."""

import asyncio
import time
from typing import NamedTuple
from weakref import WeakKeyDictionary

import aiohttp

from rft.address import is_address

PATIENCE = 40.0  # seconds of trying again after the first failure: a run whose server has died ends within a minute
CONNECT_TIMEOUT = 10.0
FIRST_WAIT, LONGEST_WAIT = 0.25, 5.0  # seconds between tries; doubled each time
SHOWN = 300  # characters of an answer that an error quotes


class Service(NamedTuple):
    """Who is asked, for messages."""

    name: str  # "code server"
    variable: str  # of the environment, that says where it is
    default: str  # where it is by default
    repair: str  # what starts one
    error: type[Exception]  # what is raised where it gives no answer


class JsonClient:
    """A connection to one server, with a session for each event loop that uses it.

    A session ends with `close()`, or `async with`, in the loop that used it.

    Args:
        service: who is asked.
        url: `http://HOST:PORT`.
        token: what another host than the loopback asks for.
        patience: seconds of trying again after the first failure of a request.
        read_timeout: seconds to wait for one answer.

    Raises:
        ValueError: if the URL is none of HTTP.
    """

    def __init__(self, service: Service, url: str, token: str | None, *, patience: float, read_timeout: float):
        self.service, self.url = service, url.rstrip("/")
        if not is_address(self.url):
            raise ValueError(
                f"found {self.url!r} as the {service.name}'s address; wanted {service.default}; set {service.variable}"
            )
        self._token, self._patience, self._read_timeout = token, patience, read_timeout
        self._sessions: WeakKeyDictionary = WeakKeyDictionary()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session of the running event loop, if it has one."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def health(self) -> dict:
        """What the server says of itself.

        Raises:
            service.error: as for an answer.
        """
        return await self.ask("GET", "/health")

    async def ask(self, method: str, path: str, asked: dict | None = None, seconds: float = 0.0) -> dict:
        """The JSON of an answer with status 200, which may take `seconds` more to make; tries again what may pass.

        Raises:
            service.error: no connection or a status from 500 on until the patience is over; any other status, or no
                JSON, at once.
        """
        service, address = self.service, self.url + path
        limit = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT, sock_read=self._read_timeout + seconds)
        since, failures, wait = None, [], FIRST_WAIT
        while True:
            started = time.monotonic()
            fault, retry_after = "", 0.0
            try:
                async with self._session().request(
                    method, address, json=asked, timeout=limit, allow_redirects=False
                ) as got:
                    if got.status == 200:
                        return await got.json()
                    fault = f"status {got.status}: {(await got.text())[:SHOWN]}"
                    if got.status < 500:
                        raise service.error(f"{address} refused the request with {fault}")
                    retry_after = _seconds(got.headers.get("Retry-After"))
            except (aiohttp.ContentTypeError, ValueError, RecursionError) as error:
                raise service.error(
                    f"{address}: found an answer that is no JSON ({str(error)[:SHOWN]}); wanted a {service.name} "
                    f"there; {service.repair}"
                ) from error
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                fault = f"{type(error).__name__}: {error}"[:SHOWN]
            failures.append(f"{fault} after {time.monotonic() - started:.1f} s")
            since = since or time.monotonic()
            pause = max(wait, min(retry_after, LONGEST_WAIT))
            if time.monotonic() + pause > since + self._patience:
                raise service.error(
                    f"no answer from the {service.name} at {address}: {len(failures)} tries, the first: "
                    f"{failures[0]}; the last: {failures[-1]}. {service.repair} (or set {service.variable})"
                )
            await asyncio.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)

    def _session(self) -> aiohttp.ClientSession:
        """The running loop's session. Without the environment's proxies: what is asked goes to the server alone."""
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
