"""Before the application: the token, the time that a body may take, and the count of answers."""

import asyncio
import hmac
from collections.abc import Callable

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 30.0  # from the end of the headers to the end of the body


def refusal(status: int, cause: str, detail: object, **headers: str) -> JSONResponse:
    """An answer without what was asked for: `{"cause": word, "detail": what was found and wanted}`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"cause": cause, "detail": detail}, status, named)


class Guard:
    """ASGI middleware.

    Args:
        app: the application behind it.
        count: is told path and status of every answer.
        paths: those that have a count of their own.
        token: what `Authorization: Bearer` must say; None asks for nothing.
        variable: of the environment, where clients have the token.
    """

    def __init__(
        self,
        app: ASGIApp,
        count: Callable[[str, int], None],
        paths: frozenset[str],
        token: str | None,
        variable: str,
    ):
        self.app, self.count, self.paths, self.variable = app, count, paths, variable
        self.wanted = None if token is None else b"Bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count(path, message["status"])
            await send(message)

        given = dict(scope["headers"]).get(b"authorization", b"")
        app = self.app
        if self.wanted is not None and not hmac.compare_digest(given, self.wanted):
            detail = f"wanted the header 'Authorization: Bearer TOKEN'; set {self.variable}"
            app = refusal(401, "token", detail, WWW_Authenticate="Bearer", Connection="close")
        await app(scope, _in_time(receive), counted)


def _in_time(receive: Receive) -> Receive:
    """`receive`, which raises HTTPException if the body is not there in time; what follows the body may be late."""
    deadline, whole = asyncio.get_running_loop().time() + BODY_SECONDS, False

    async def receive_in_time() -> Message:
        nonlocal whole
        try:
            async with asyncio.timeout_at(None if whole else deadline):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"wanted the whole body within {BODY_SECONDS:g} s") from None
        whole = not message.get("more_body")
        return message

    return receive_in_time
