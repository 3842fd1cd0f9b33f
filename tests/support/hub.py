"""A stand-in for the Hugging Face hub on a loopback address: repositories, their files, and commits of small files."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_right"


class Hub(ThreadingHTTPServer):
    """``files`` maps repositories to their files by name; ``private`` has the repositories that are."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.commits: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        name, _, tree = self.path.partition("?")[0].removeprefix("/api/models/").partition("/tree/")
        name = name.partition("/revision/")[0]
        if name not in self.server.files:
            return self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if tree:
            files = self.server.files[name].items()
            return self._send(200, [{"type": "file", "path": f, "oid": "0", "size": len(data)} for f, data in files])
        siblings = [{"rfilename": file} for file in self.server.files[name]]
        self._send(200, {"id": name, "private": name in self.server.private, "siblings": siblings, "sha": "0" * 40})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, {"error": "Invalid username or password."})
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._send(200, {"warnings": []})
        name, _, call = path.removeprefix("/api/models/").rpartition("/main")[0].rpartition("/")
        if call == "preupload":
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self._send(200, {"files": [{"path": file["path"]} | modes for file in json.loads(body)["files"]]})
        return self._commit(name, [json.loads(line) for line in body.splitlines()])

    def _create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        answer = {"url": f"{self.server.url}/{name}", "name": name}
        if name in self.server.files:
            return self._send(409, answer | {"error": "You already created this model repo"})
        self.server.files[name] = {".gitattributes": b""}
        if wanted.get("visibility") == "private" or wanted.get("private"):
            self.server.private.add(name)
        self._send(200, answer)

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["key"] == "file":
                self.server.files[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del self.server.files[name][line["value"]["path"]]
            elif line["key"] == "header":
                self.server.commits.append(line["value"]["summary"])
        address = f"{self.server.url}/{name}/commit/{'1' * 40}"
        self._send(200, {"success": True, "commitOid": "1" * 40, "commitUrl": address, "hookOutput": ""})

    def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
