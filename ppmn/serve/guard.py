"""What stands before every request: who may ask, from where, how much; and the headers of every answer."""

import asyncio
import hmac
import json
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ppmn.serve.limits import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TEXT = 1_000_000  # bytes of a request that holds no photo
FORM = 64_000  # bytes of a form around its photo
OPEN = ("/", "/docs", "/openapi.json", "/healthz", "/favicon.ico")  # these tell nothing a token would hide
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that says what is wrong."""
    return Response(json.dumps({"error": sentence}), status, headers, "application/json")


class Guard:
    """ASGI middleware; `seen` is told the route, the status and the seconds of every request."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        host: str,
        token: str | None,
        seen: Callable[[str, int, float], None],
    ) -> None:
        self.app, self.limits, self.token, self.seen = app, limits, token, seen
        self.hosts = LOOPBACK if host in LOOPBACK else None  # a name that leads elsewhere cannot be checked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.monotonic(), 500

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        app = refusal or self.app
        try:
            await app(scope, self._limited(scope, receive), send_guarded)
        finally:
            self.seen(getattr(scope.get("route"), "path", "other"), status, time.monotonic() - start)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            return problem(403, "this server answers to its own machine only")  # not to a rebound name
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return problem(403, "another site's page may not use this server")
        if self.token and path not in OPEN and not path.startswith("/static/"):
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return problem(401, "this server asks for its token", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._most(path):
            return problem(413, self._too_large(path))
        return None

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """The request's body, as long as it is not too large and comes in time."""
        count, more, until = 0, True, time.monotonic() + self.limits.seconds

        async def receive_limited() -> Message:
            nonlocal count, more
            if not more:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.01, until - time.monotonic()))
            except TimeoutError as error:
                raise HTTPException(408, f"the request did not arrive in {self.limits.seconds} s") from error
            count += len(message.get("body", b""))
            more = message.get("more_body", False)
            if count > self._most(scope["path"]):
                raise HTTPException(413, self._too_large(scope["path"]))
            return message

        return receive_limited

    def _most(self, path: str) -> int:
        return self.limits.upload * 1_000_000 + FORM if path == "/api/looks" else TEXT

    def _too_large(self, path: str) -> str:
        if path == "/api/looks":
            return f"the photo's file is too large; the most is {self.limits.upload} MB"
        return f"the request is too large; the most is {TEXT:,} bytes"


def _name(host: str) -> str:
    """A host without its port, an IPv6 address without its brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
