"""Checks before every request (host, origin, token, size) and security headers on every response."""

import asyncio
import hmac
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ppmn.serve.limits import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")  # as browsers send them
UPLOAD_PATH = "/api/images"
_MAX_JSON_BYTES = 1_000_000  # of a request without an image
_FORM_BYTES = 64_000  # of a multipart form around its image
_OPEN_PATHS = ("/", "/docs", "/openapi.json", "/healthz", "/favicon.ico")  # served without a token
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def error_response(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """A response that says what is wrong."""
    content = json.dumps({"error": sentence})  # ASCII, because the sentence may quote lone surrogates
    return Response(content, status, headers, "application/json")


@dataclass(frozen=True)
class Guard:
    """ASGI middleware; `observe` gets the route, the status and the seconds of every request.

    `hosts` are the names that the server answers to, without a port; empty: all.
    Handlers find the time at which the request must be answered in `request.state.deadline`.
    """

    app: ASGIApp
    limits: Limits
    token: str | None
    observe: Callable[[str, int, float], None]
    hosts: tuple[str, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.monotonic(), 500
        deadline = start + self.limits.seconds
        scope.setdefault("state", {})["deadline"] = deadline

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._refusal(scope) or self.app
        try:
            await app(scope, self._limited(scope, receive, deadline), send_with_headers)
        finally:
            self.observe(getattr(scope.get("route"), "path", "other"), status, time.monotonic() - start)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        origin, host = headers.get("origin"), headers.get("host", "")
        if self.hosts and re.sub(r":\d*$", "", host.lower()) not in self.hosts:
            return error_response(400, f"this server answers to {' and '.join(self.hosts)}, not to {host!r}")
        if origin is not None and origin.partition("://")[2] != host:
            return error_response(403, "pages of other sites may not use this server")
        if self.token and path not in _OPEN_PATHS and not path.startswith("/static/"):
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return error_response(401, "this server requires its token", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_bytes(path):
            return error_response(413, self._too_large(path))
        return None

    def _limited(self, scope: Scope, receive: Receive, deadline: float) -> Receive:
        """`receive` with limits on the size of the body and on the time it takes to arrive."""
        count, more = 0, True

        async def receive_limited() -> Message:
            nonlocal count, more
            if not more:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.01, deadline - time.monotonic()))
            except TimeoutError as error:
                raise HTTPException(408, f"the request did not arrive in {self.limits.seconds} s") from error
            count += len(message.get("body", b""))
            more = message.get("more_body", False)
            if count > self._max_bytes(scope["path"]):
                raise HTTPException(413, self._too_large(scope["path"]))
            return message

        return receive_limited

    def _max_bytes(self, path: str) -> int:
        return self.limits.upload_mb * 1_000_000 + _FORM_BYTES if path == UPLOAD_PATH else _MAX_JSON_BYTES

    def _too_large(self, path: str) -> str:
        if path == UPLOAD_PATH:
            return f"the image file is too large; the limit is {self.limits.upload_mb} MB"
        return f"the request is too large; the limit is {_MAX_JSON_BYTES:,} bytes"
