"""A server that listens on a port and runs until it is interrupted."""

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from ppmn.errors import InputError
from ppmn.grounding.grounder import Grounder
from ppmn.serve.app import create_app
from ppmn.serve.guard import LOOPBACK
from ppmn.serve.limits import Limits


@dataclass(frozen=True)
class Server:
    """A loaded model on an open port; `public` if other machines can use it without a token."""

    app: FastAPI
    listener: socket.socket
    url: str
    public: bool

    def run(self) -> None:
        """Serve until interrupted."""
        config = uvicorn.Config(self.app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        uvicorn.Server(config).run([self.listener])


def open_server(
    load: Callable[[], Grounder], *, host: str, port: int, token: str | None, limits: Limits
) -> Server:
    """Take the port, then load the model; port 0 is any free one."""
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise InputError(f"the token {token!r} must consist of printable ASCII characters without spaces")
    listener = _listen(host, port)
    app = create_app(load(), limits, host, token)
    name = f"[{host}]" if ":" in host else host
    query = f"?token={quote(token)}" if token else ""
    url = f"http://{name}:{listener.getsockname()[1]}/{query}"
    return Server(app, listener, url, public=host not in LOOPBACK and token is None)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}:{port} ({error})") from error
