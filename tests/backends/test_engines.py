"""Engines in this process, with a real model: vLLM and transformers, side by side."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from pocket import pocket_task
from ports import free_port
from waiting import wait_for

from memagent_lib.agent import open_agent, run_sync
from memagent_lib.backends import BackendError, BackendUnavailable, Sampling, open_backend
from memagent_lib.backends.vllm import KV_CACHE_VARIABLE, cpu_cache
from memagent_lib.data import make
from memagent_lib.driver import gather
from memagent_lib.prompts import Request

POCKET = Path(__file__).parents[2] / "experiments" / "pocket" / "trained"

PROMPTS = ["The code of the violet otter", "Rain taps", "A small boat drifts past the old mill. " * 3, "Snow"]


@pytest.fixture(scope="module")
def vllm(model_folder):
    pytest.importorskip("vllm")
    backend = open_backend("vllm", model_folder, Sampling(), window=256, threads=1)
    yield backend
    run_sync(backend.close())


@pytest.fixture(scope="module")
def transformers(model_folder):
    backend = open_backend("transformers", model_folder, threads=1)
    yield backend
    run_sync(backend.close())


def requests(tokenizer, max_tokens=9) -> list[Request]:
    return [Request(tuple(tokenizer.chat(text)), text, max_tokens) for text in PROMPTS]


def ask(backend, wanted):
    return run_sync(gather(backend.complete(request) for request in wanted))


def test_both_engines_give_the_models_own_greedy_reply(vllm, transformers, tokenizer, model_folder):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    for request, one, other in zip(
        requests(tokenizer), ask(vllm, requests(tokenizer)), ask(transformers, requests(tokenizer)), strict=True
    ):
        ids = list(request.ids)
        for _ in range(request.max_tokens):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.hf.eos_token_id:
                break
        expected = tuple(ids[len(request.ids) :])
        assert one.token_ids == other.token_ids == expected
        assert one.text == other.text == tokenizer.decode(expected)
        assert (one.prompt_tokens, one.reply_tokens) == (len(request.ids), len(expected))


def test_a_model_folders_sampling_and_penalties_are_not_applied(model_folder, tokenizer, tmp_path):
    plain = replies_of(model_folder, requests(tokenizer, 12))
    folder = shutil.copytree(model_folder, tmp_path / "penalised")
    config = json.loads((folder / "generation_config.json").read_text())
    told = {"repetition_penalty": 50.0, "do_sample": True, "temperature": 9.0, "top_k": 3}
    (folder / "generation_config.json").write_text(json.dumps(config | told))
    assert replies_of(folder, requests(tokenizer, 12)) == plain


def replies_of(model_folder, wanted: list[Request]) -> list[tuple[int, ...]]:
    backend = open_backend("transformers", str(model_folder), threads=1)
    replies = [reply.token_ids for reply in ask(backend, wanted)]
    run_sync(backend.close())
    return replies


def test_a_draft_from_the_prompt_changes_no_reply_and_spares_passes():
    agents = [open_agent(POCKET, kind, threads=1) for kind in ("transformers", "vllm")]
    passes = []
    agents[0].backend.model.base_model.register_forward_hook(lambda *_: passes.append(1))
    for example in make(pocket_task("update"), 3, 5, agents[0].encoder.tokenizer, chunks=6):
        drafted, other = (agent.read(example.document, example.question) for agent in agents)
        assert [turn.reply.token_ids for turn in drafted.turns] == [turn.reply.token_ids for turn in other.turns]
    assert 2 * len(passes) < 3 * other.reply_tokens
    for agent in agents:
        agent.close()


@pytest.mark.parametrize(
    ("positions", "window", "needed", "settings"),
    [
        # One token takes 2 x 28 layers x 8 heads x 128 numbers of 4 bytes: 1 GiB holds 4,681 tokens.
        (40_960, None, 8_200, {"max_model_len": 8_200, "kv_cache_memory_bytes": 8_328 * 229_376}),
        (40_960, None, 1_000, {"max_model_len": 4_681, "kv_cache_memory_bytes": 4_809 * 229_376}),
        (4_096, None, 8_200, {}),
    ],
)
def test_a_cpus_cache_holds_the_window_that_a_reader_needs(positions, window, needed, settings, tmp_path, monkeypatch):
    from transformers import Qwen3Config

    monkeypatch.delenv(KV_CACHE_VARIABLE, raising=False)
    sizes = {"num_hidden_layers": 28, "num_key_value_heads": 8, "num_attention_heads": 16, "head_dim": 128}
    Qwen3Config(**sizes, max_position_embeddings=positions).save_pretrained(tmp_path)
    assert cpu_cache(str(tmp_path), window, needed) == settings
    monkeypatch.setenv(KV_CACHE_VARIABLE, "2")
    assert cpu_cache(str(tmp_path), window, needed) == {}


class Ending:
    """An engine with the methods of vLLM's ``AsyncLLM``, whose process has ended or has not."""

    def __init__(self, errored: bool):
        self.errored = errored
        self.model_config = SimpleNamespace(max_model_len=64)

    async def generate(self, *_):
        raise RuntimeError("EngineCore encountered an issue")
        yield


@pytest.mark.parametrize(("errored", "failure"), [(True, BackendUnavailable), (False, BackendError)])
def test_an_engine_that_has_ended_is_unavailable(model_folder, monkeypatch, errored, failure):
    pytest.importorskip("vllm")
    monkeypatch.setattr("memagent_lib.backends.vllm._start", lambda *_: Ending(errored))
    backend = open_backend("vllm", model_folder, Sampling())
    with pytest.raises(failure, match="EngineCore encountered an issue"):
        ask(backend, [Request((5, 6), "", 2)])


@pytest.fixture(scope="module")
def vllm_server(tmp_path_factory):
    """The address of vLLM's own server with the pocket policy, in a folder that asks for a repetition penalty."""
    folder = shutil.copytree(POCKET, tmp_path_factory.mktemp("served") / "pocket")
    config = folder / "generation_config.json"
    stated = json.loads(config.read_text()) if config.exists() else {}
    # RL#3497: Qwen2.5-0.5B-Instruct has 1.1, which vLLM applies to requests that state no penalty
    config.write_text(json.dumps(stated | {"repetition_penalty": 50.0, "top_k": 1, "temperature": 0.7}))
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "pocket", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--dtype", "float32", "--block-size", "32", "--max-num-seqs", "16"]
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=os.environ | quiet, start_new_session=True, **pipes)
    try:
        wait_for(lambda: server.poll() is not None or _answers(f"http://127.0.0.1:{port}/v1/models"), 400)
        assert server.poll() is None, "the server ended"
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_vllms_own_server_has_a_window_and_the_same_replies(vllm_server, api):
    local = open_agent(POCKET, "transformers")
    how = {"template": local.encoder.template, "budget": local.encoder.budget, "tokenizer": POCKET}
    agent = open_agent("pocket", "openai", base_url=vllm_server, api=api, **how)
    assert agent.backend.window == 1024
    for example in make(pocket_task("needle"), 8, 5, local.encoder.tokenizer, chunks=4):
        ours, theirs = (one.read(example.document, example.question) for one in (local, agent))
        assert [turn.reply.text for turn in theirs.turns] == [turn.reply.text for turn in ours.turns]
        assert theirs.prompt_tokens == ours.prompt_tokens and theirs.reply_tokens == ours.reply_tokens
    agent.close()
