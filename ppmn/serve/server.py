"""Run the server of a model until it is interrupted."""

import re
import socket
from urllib.parse import quote

import uvicorn

from ppmn.errors import InputError
from ppmn.grounding.grounder import load
from ppmn.serve.app import create_app
from ppmn.serve.guard import LOOPBACK
from ppmn.serve.limits import Limits


def serve(model: str, device: str | None, host: str, port: int, token: str | None, limits: Limits) -> None:
    """Load a model and serve it."""
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise InputError(f"the token {token!r} must consist of printable ASCII characters without spaces")
    listener = _listen(host, port)
    app = create_app(load(model, device=device), limits, host, token)
    name = f"[{host}]" if ":" in host else host
    query = f"?token={quote(token)}" if token else ""
    print(
        f"{model} is served at http://{name}:{listener.getsockname()[1]}/{query} (Ctrl+C stops it)",
        flush=True,
    )
    if host not in LOOPBACK and not token:
        print("anyone who can reach this machine can use the server; --token restricts it", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run([listener])


def _listen(host: str, port: int) -> socket.socket:
    """Take the port first, because loading a model may take minutes; port 0 is any free one."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}:{port} ({error})") from error
