"""A stand-in for the Hugging Face hub: the requests that downloading and uploading a model make."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories by name; each is a table of files."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.tokens: dict[str, str] = {}  # of the last request of each kind
        self.downloads: list[str] = []


def tree_entry(name: str, content: bytes) -> dict[str, object]:
    """A file in the list of a repository's files."""
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def json(self, status: int, content: object) -> None:
            self.answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                repo = "/".join(parts[2:4])
                if repo not in hub.repos:
                    return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
                if parts[4:5] == ["tree"]:
                    return self.json(200, [tree_entry(*item) for item in hub.repos[repo].items()])
                siblings = [{"rfilename": name} for name in hub.repos[repo]]
                return self.json(200, {"id": repo, "sha": SHA, "siblings": siblings, "tags": []})
            repo, name = "/".join(parts[:2]), "/".join(parts[4:])
            content = hub.repos[repo][name]
            if self.command == "GET":
                hub.downloads.append(name)
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            return self.answer(200, content, {"ETag": etag, "X-Repo-Commit": SHA})

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            parts = self.path.partition("?")[0].strip("/").split("/")
            hub.tokens[parts[-2]] = self.headers.get("Authorization", "")
            if parts == ["api", "repos", "create"]:
                made = json.loads(body)
                name = f"{made['organization']}/{made['name']}" if made.get("organization") else made["name"]
                hub.repos.setdefault(name, {})
                hub.private[name] = made.get("private", made.get("visibility") == "private")
                return self.json(200, {"url": f"http://{self.headers['Host']}/{name}"})
            if parts[-1] == "validate-yaml":  # the head of a model card
                return self.json(200, {"warnings": [], "errors": []})
            repo = "/".join(parts[2:4])
            if parts[4] == "preupload":
                files = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                return self.json(200, {"files": files})
            for line in body.decode().splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    hub.repos[repo][row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            address = f"http://{self.headers['Host']}/{repo}/commit/{SHA}"
            return self.json(200, {"commitUrl": address, "commitOid": SHA})

    return Handler


@contextmanager
def running_hub() -> Iterator[tuple[Hub, str]]:
    """A hub on a port of its own, and its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(10)
