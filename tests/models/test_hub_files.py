"""A policy on a hub has its settings there too, as a policy in a folder has."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memagent_lib.agent import AgentSettings
from memagent_lib.prompts import Budget

TRAINED = AgentSettings(template="short", budget=Budget(chunk_tokens=96))
COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """Two models on a loopback hub: ``me/trained`` has settings, ``me/plain`` has none."""

    def do_GET(self):
        missing = {"me/plain": "EntryNotFound", "nobody/nothing": "RepoNotFound"}
        name = "/".join(self.path.split("/")[1:3])
        if name in missing:
            self.send_response(404)
            self.send_header("X-Error-Code", missing[name])
            self.end_headers()
            return
        body = (self.server.folder / "memagent.json").read_bytes()
        self.send_response(200)
        for name, value in {"ETag": '"e"', "X-Repo-Commit": COMMIT, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that can be reached, and an empty cache."""
    TRAINED.save(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.folder = tmp_path
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    files = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


def test_a_hub_name_has_the_settings_of_its_repository(hub, monkeypatch):
    assert AgentSettings.load("me/trained") == TRAINED
    assert AgentSettings.are_saved("me/trained") and not AgentSettings.are_saved("me/plain")
    assert AgentSettings.load("me/plain") == AgentSettings.load("nobody/nothing") == AgentSettings()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert AgentSettings.load("me/trained") == TRAINED, "from the cache"


def test_settings_that_cannot_be_had_are_one_warning(hub, monkeypatch, caplog):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert AgentSettings.load("me/trained") == AgentSettings()
    (record,) = caplog.records
    assert "me/trained" in record.getMessage()


def test_a_folder_or_a_plain_name_needs_no_hub(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    TRAINED.save(tmp_path)
    assert AgentSettings.load(tmp_path) == TRAINED
    assert AgentSettings.load("small") == AgentSettings.load("a/b/c") == AgentSettings()
    assert not caplog.records
