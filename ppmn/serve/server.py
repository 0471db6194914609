"""`ppmn serve`: load the model, take the port, serve until interrupted."""

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
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise InputError(f"the token {token!r} must be of ASCII letters, digits and signs without spaces")
    listening = _listen(host, port)
    app = create_app(load(model, device=device), limits, host, token)
    name, number = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
    query = f"?token={quote(token)}" if token else ""
    print(f"{model} is served at http://{name}:{number}/{query} (Ctrl+C ends it)", flush=True)
    if host not in LOOPBACK and not token:
        print("anyone who reaches this machine may use it: --token asks them for a word", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    """The port, before minutes may go into the model; 0 is any that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"{host}:{port} cannot be listened on ({error})") from error
