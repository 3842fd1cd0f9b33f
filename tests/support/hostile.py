"""A small OpenAI-compatible server that misbehaves on purpose.

It listens on loopback, at a free port, in a thread of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock

Fault = Callable[[int], str | None]
"""Names the fault of the n-th POST, or ``None`` to answer it."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self,
        fault: Fault = lambda n: None,
        model: str = "small",
        window: int | None = 4096,
        hang_s: float = 2.0,
        key: str | None = None,
    ):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fault, self.model, self.window, self.hang_s, self.key = fault, model, window, hang_s, key
        self.lock, self.posts, self.answered = threading.Lock(), 0, Counter()
        self.closing, self.hangs_ended = threading.Event(), 0
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.fate: Callable[[str, int], str | None] = lambda body, attempt: None
        """Return the fault of each attempt at a request, whatever the order in which requests arrive."""
        self.attempts: Counter[str] = Counter()
        self.reply: Callable[[dict[str, Any]], dict[str, Any]] = completion
        self.refuse: Callable[[dict[str, Any]], tuple[int, dict[str, Any]] | None] = lambda body: None
        self.list_status = 200
        self.list_paths: tuple[str, ...] = ()
        """The only paths that have the list of models; by default all that end in ``/models``."""
        self.cards: Any = None
        """The list of models, if it is not a single model in OpenAI's form."""
        self.pages: dict[str, Any] = {}
        """The responses of other addresses, by path."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request, client_address) -> None:
        """Ignore errors: clients that hang up are part of the plan."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a reply's head and body are two packets, and the second would wait for 40 ms
    server: Server

    def log_message(self, *args) -> None:
        return

    def do_GET(self) -> None:
        self._note_authorization()
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            return self._say(401, {"error": {"message": "bad key"}})
        if self.path in self.server.pages:
            page = self.server.pages[self.path]
            return self._say(200, page(None) if callable(page) else page)
        if self.server.list_status != 200:
            return self._say(self.server.list_status, {"error": {"message": "Loading model"}})
        if not self.path.endswith("/models") or self.path not in (self.server.list_paths or (self.path,)):
            return self._say(404, {"error": {"message": "no such address"}})
        if self.server.cards is not None:
            return self._say(200, self.server.cards)
        card = {"id": self.server.model} | ({"max_model_len": self.server.window} if self.server.window else {})
        self._say(200, {"object": "list", "data": [card]})

    def do_POST(self) -> None:
        self._note_authorization()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/completions"):
            page = self.server.pages.get(self.path)
            return self._say(404, {}) if page is None else self._say(200, page(body) if callable(page) else page)
        with self.server.lock:
            number = self.server.posts
            self.server.posts += 1
            self.server.bodies.append(body)
            key = json.dumps(body, sort_keys=True)
            attempt = self.server.attempts[key]
            self.server.attempts[key] += 1
        refusal = self.server.refuse(body)
        if refusal is not None:
            return self._say(*refusal)
        fault = self.server.fault(number) or self.server.fate(key, attempt)
        if fault in ODD_REPLIES:
            self._say(200, ODD_REPLIES[fault])
        elif fault == "drop":
            self.close_connection = True
            self.connection.close()
        elif fault == "hang":
            self.server.hangs_ended += not self.server.closing.wait(self.server.hang_s)
            self.close_connection = True
        elif fault == "half":
            self._raw(200, json.dumps(self.server.reply(body))[:25].encode())
        elif fault == "torn":
            self._raw(200, json.dumps(self.server.reply(body)).encode(), sent=25)
            self.close_connection = True
        elif fault is not None:
            status, _, after = fault.partition("/")
            headers = {"Retry-After": after} if after else {}
            self._say(int(status), {"error": {"message": f"fault {status}"}}, headers)
        else:
            with self.server.lock:
                self.server.answered[key] += 1
            self._say(200, self.server.reply(body))

    def _note_authorization(self) -> None:
        with self.server.lock:
            self.server.authorizations.append(self.headers.get("Authorization", ""))
            self.server.headers.append(dict(self.headers))

    def _say(self, status: int, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> None:
        self._raw(status, body if isinstance(body, bytes) else json.dumps(body).encode(), headers or {})

    def _raw(self, status: int, data: bytes, headers: dict[str, str] | None = None, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:sent])


ODD_REPLIES: dict[str, dict[str, Any]] = {
    "empty": {"choices": [{"text": "", "message": {"content": ""}, "finish_reason": "stop"}]},
    "null choices": {"choices": None},
    "broken off": {"choices": [{"text": "no", "message": {"content": "no"}, "finish_reason": "error"}]},
    "an error": {"error": {"message": "overloaded", "code": 503}},
}
"""Faults that come with status 200."""


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return a reply that depends only on the prompt, so that two drivers can be compared."""
    asked = json.dumps(body.get("prompt") or body["messages"])
    text = "note " + hashlib.sha256(asked.encode()).hexdigest()[:6]
    said = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
    usage = {
        "prompt_tokens": len(body.get("prompt") or []),
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    return {"choices": [said | {"finish_reason": "stop"}], "usage": usage}


def fates(share: float, kinds: list[str], seed: int = 0) -> Callable[[str, int], str | None]:
    """Return a function like that of :func:`faults`, but of a request's body and how often it was sent before."""

    def fate(body: str, attempt: int) -> str | None:
        rng = random.Random(f"{seed} {attempt} {body}")
        return rng.choice(kinds) if rng.random() < share else None

    return fate


@contextmanager
def serving(**settings: Any) -> Iterator[Server]:
    """Start a server, whose clients in this process wait only for moments before they repeat a request."""
    server = Server(**settings)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    waits = mock.patch.multiple("openai._base_client", INITIAL_RETRY_DELAY=0.01, MAX_RETRY_DELAY=0.05)
    try:
        # Reading the certificates would take most of the time of a test; this folder has none.
        certificates = mock.patch.dict(os.environ, SSL_CERT_DIR=os.path.dirname(__file__))
        with waits, certificates, mock.patch("memagent_lib.backends.openai.USELESS_WAIT_S", 0.01):
            os.environ.pop("SSL_CERT_FILE", None)
            yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
