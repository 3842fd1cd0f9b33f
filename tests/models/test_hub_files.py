"""A policy on a hub has its settings there too, as a policy in a folder has."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memagent_lib.agent import AgentSettings, open_agent
from memagent_lib.models import hub_file, load_tokenizer
from memagent_lib.prompts import Budget

TRAINED = AgentSettings(template="short", budget=Budget(chunk_tokens=96))
COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """Two models on a loopback hub: ``me/trained`` has settings, ``me/plain`` has none."""

    def do_GET(self):
        body = json.dumps({"id": "m", "sha": COMMIT, "siblings": [{"rfilename": "config.json"}]}).encode()
        if self.path.endswith("/memagent.json"):
            body = (self.server.folder / "memagent.json").read_bytes()
        elif self.path == "/api/models/me/trained":
            body = body.replace(b"config.json", b"memagent.json")
        elif self.path != "/api/models/me/plain":
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            return
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
    message = record.getMessage()
    assert message.startswith("no memagent.json of me/trained from the hub (Cannot reach http://127.0.0.1")
    assert message.endswith("); reading with default settings")
    with pytest.raises(OSError, match="Cannot reach"):
        hub_file("me/trained", "memagent.json")


def test_a_hub_out_of_reach_is_told_from_a_missing_model(hub, monkeypatch):
    with pytest.raises(OSError, match="no tokenizer for 'nobody/nothing', neither here nor on the hub"):
        load_tokenizer("nobody/nothing")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"'me/trained' on this machine, .* HF_HUB_OFFLINE is set; unset it, or give a"):
        load_tokenizer("me/trained")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    says = r"the hub http://127\.0\.0\.1:9 cannot be reached \(.*refused\); give a model folder, or set HF_ENDPOINT to"
    with pytest.raises(OSError, match=says):
        load_tokenizer("me/trained")
    with pytest.raises(OSError, match=f"{says}.*--tokenizer"):
        open_agent("me/trained", "openai", base_url="http://127.0.0.1:9/v1")


def test_a_folder_or_a_plain_name_needs_no_hub(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    TRAINED.save(tmp_path)
    assert AgentSettings.load(tmp_path) == TRAINED
    assert AgentSettings.load("small") == AgentSettings.load("a/b/c") == AgentSettings()
    assert not caplog.records
