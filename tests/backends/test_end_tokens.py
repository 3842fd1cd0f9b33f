"""A reply ends at the chat's own end token too, whatever a model's files state."""

import json
import shutil
from pathlib import Path

import pytest

from memagent_lib.agent import run_sync
from memagent_lib.backends import end_tokens, open_backend
from memagent_lib.prompts import Request
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.trace import Reply

POCKET = Path("experiments/pocket/trained")
LOOP = "{% for m in messages %}"
CHATML = LOOP + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
LLAMA3 = (
    "<|begin_of_text|>"
    + LOOP
    + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
)
GPT_OSS = (
    LOOP + "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ m.content }}<|end|>{% endfor %}"
)
FAMILIES = {
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|endoftext|>", ["<|im_end|>", "<|endoftext|>"]),
    # meta-llama/Llama-3.1-8B-Instruct: config.json of the first upload stated <|end_of_text|> alone
    "llama 3": (
        LLAMA3,
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"],
        "<|end_of_text|>",
        ["<|eot_id|>", "<|end_of_text|>"],
    ),
    # <|end|> follows every thought; a reply that ended there would never reach its text
    "gpt-oss": (
        GPT_OSS,
        ["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>"],
        "<|return|>",
        ["<|return|>"],
    ),
    "refusing": ("{{ raise_exception('roles') }}", [], "<|endoftext|>", ["<|endoftext|>"]),
    "base": (None, [], "<|endoftext|>", ["<|endoftext|>"]),
}


def model(folder: Path, chat_template: str | None, added: list[str], eos: str, config=None, generation=None) -> Path:
    """A folder with the pocket tokenizer, more added tokens and a family's chat template; it has no weights."""
    table = json.loads((POCKET / "tokenizer.json").read_text())
    known = {token["content"] for token in table["added_tokens"]}
    size = len(table["model"]["vocab"]) + len(known)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    new = [content for content in (*added, eos) if content not in known]
    table["added_tokens"] += [{"id": size + i, "content": token} | flags for i, token in enumerate(dict.fromkeys(new))]
    (folder / "tokenizer.json").write_text(json.dumps(table))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, "chat_template": chat_template}))
    stated = json.loads((POCKET / "config.json").read_text()) | {"eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(stated | (config or {})))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_the_chats_own_end_token_ends_a_reply(tmp_path, family):
    chat_template, added, eos, expected = FAMILIES[family]
    folder = model(tmp_path, chat_template, added, eos)
    tokenizer = Tokenizer.load(folder)
    ends = end_tokens(str(folder), tokenizer)
    assert [tokenizer.backend.id_to_token(i) for i in ends] == expected
    transformers_own = Tokenizer(tokenizer.hf)
    assert transformers_own.end_ids == tokenizer.end_ids


def test_stated_end_tokens_come_from_both_configurations(tmp_path):
    folder = model(tmp_path, None, [], "<|endoftext|>", {"eos_token_id": 7}, {"eos_token_id": [9, 7, 11]})
    tokenizer = Tokenizer.load(folder)
    assert end_tokens(str(folder), tokenizer) == (*tokenizer.end_ids, 9, 7, 11)


def _reply(kind: str, folder: str, tokenizer: Tokenizer) -> Reply:
    backend = open_backend(kind, folder, window=256, threads=1)
    reply = run_sync(backend.complete(Request(tuple(tokenizer.chat("The code of the violet otter")), "", 9)))
    run_sync(backend.close())
    return reply


@pytest.fixture(scope="module")
def ended(model_folder, tokenizer, tmp_path_factory) -> tuple[Path, tuple[int, ...]]:
    """A model whose chat ends at the first token of its greedy reply, and that reply of a model without this end."""
    reply = _reply("transformers", model_folder, tokenizer).token_ids
    folder = shutil.copytree(model_folder, tmp_path_factory.mktemp("ended") / "model")
    table = json.loads((folder / "tokenizer.json").read_text())
    content = tokenizer.backend.id_to_token(reply[0])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    table["added_tokens"].append({"id": reply[0], "content": content} | flags)
    (folder / "tokenizer.json").write_text(json.dumps(table))
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template.replace("<|im_end|>", content))
    return folder, reply


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_an_engine_stops_at_the_chats_end(ended, tokenizer, kind):
    pytest.importorskip(kind)
    folder, plain = ended
    assert len(plain) > 3
    reply = _reply(kind, str(folder), tokenizer)
    assert reply.token_ids == plain[:1]
    assert (reply.finish_reason, reply.text) == ("stop", "")
