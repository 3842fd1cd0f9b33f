"""The tokenizer is the model's own, loaded without torch, and long texts are encoded once."""

import copy
import json
import os
import random
import shutil
import subprocess
import sys
from array import array
from bisect import bisect_left
from dataclasses import replace

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.byte_level import ByteLevel
from memagent_lib.prompts import Encoder
from memagent_lib.token_seams import LONG_TOKENS, Tokens
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.tokenizer_files import TokenizerFiles

SENTENCE = "A small boat drifts past the old mill. "
POCKET = "experiments/pocket/trained"


PIECES = [
    "The code of ",
    "Rain taps. ",
    "\n",
    "\n\n",
    "\U0001f989",
    "12345",
    "owl",
    " ",
    "   ",
    "e\u0301",
    "東京",
    "====",
    "<|im_end|>",
    "don't",
    "\t",
]


def mixed(rng: random.Random, n: int) -> str:
    """Text of all kinds, with stretches in which one piece is repeated."""
    parts = []
    while sum(map(len, parts)) < n:
        parts += (
            rng.choices(PIECES, k=rng.randint(1, 60))
            if rng.random() < 0.7
            else [rng.choice(PIECES)] * rng.randint(1, 300)
        )
    return "".join(parts)


def test_parts_have_the_ids_of_their_joined_text(tokenizer):
    rng, joined = random.Random(1), 0
    for _ in range(150):
        document = mixed(rng, rng.randint(1, 9000))
        start, end = sorted(rng.choices(range(len(document) + 1), k=2))
        block = tokenizer.tokens(document)  # tokens of the middle as they are in other surroundings
        inner = slice(bisect_left(block.starts, start), bisect_left(block.starts, end))
        known = Tokens(block.ids[inner], array("I", [s - start for s in block.starts[inner]]))
        memory = mixed(rng, rng.randint(1, 1500))
        parts = ["Question: why?\nText: ", document[start:end], "\nMemory: ", memory, "\nWrite."]
        expected = tokenizer.encode("".join(parts))
        assert tokenizer.encode_parts(parts, [None, known, None, tokenizer.tokens(memory), None]) == expected
        assert tokenizer.encode_parts(parts) == expected
        joined += len(known.ids) > LONG_TOKENS
    assert joined > 50, "long parts were among them"


def test_a_chunk_is_encoded_once_on_its_way_into_a_prompt(tokenizer, encoder):
    encoded = 0

    class Counting(Tokenizer):
        def encode(self, text):
            nonlocal encoded
            encoded += len(text)
            return super().encode(text)

        def tokens(self, text):
            nonlocal encoded
            encoded += len(text)
            return super().tokens(text)

    budget = replace(encoder.budget, chunk_tokens=2000, memory_tokens=500)
    encoder = Encoder(Counting(tokenizer.hf), encoder.template, budget)
    document = SENTENCE * 1500
    backend = Scripted(lambda text: SENTENCE * 20)
    trace = Agent(encoder, backend).read(document, "q")
    assert [list(r.ids) for r in backend.requests] == [tokenizer.chat(r.text) for r in backend.requests]
    memories = sum(len(turn.reply.text) for turn in trace.turns)
    assert encoded < 1.35 * (len(document) + memories)


@pytest.mark.parametrize(
    "text",
    [
        "".join(random.Random(1).choices(PIECES, k=900)),
        "The owl’s code — “12345” — is 東京\U0001f989, naïve.\r\n" * 60,
        "<|im_start|>don't\t\u200b\u00a0 " * 200,
    ],
)
def test_computed_offsets_equal_the_tracked_ones(text):
    oracle = tokenizers.Tokenizer.from_file(f"{POCKET}/tokenizer.json")
    oracle.encode_special_tokens = True
    encoding = oracle.encode(text, add_special_tokens=False)
    starts = array("I", [start for start, _ in encoding.offsets])
    assert Tokenizer.load(POCKET).tokens(text) == Tokens(array("I", encoding.ids), starts)


@pytest.mark.parametrize(
    "changed",
    [
        {"normalizer": normalizers.Prepend(" ")},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {"post_processor": processors.ByteLevel(trim_offsets=True)},
    ],
)
def test_offsets_are_computed_only_where_tokens_add_up(changed):
    backend = tokenizers.Tokenizer.from_file(f"{POCKET}/tokenizer.json")
    assert ByteLevel.of(backend)
    for part, value in changed.items():
        setattr(backend, part, value)
    assert ByteLevel.of(backend) is None


# Loading.

HARD_TEMPLATE = """{%- if tools %}tools{% endif -%}
{%- for m in messages -%}
    {%- if m.role == "system" %}{{ raise_exception("no system") }}{% endif -%}
    {%- if loop.index > 9 %}{% break %}{% endif %}
    {{ bos_token }}{{ m | tojson }}
    {%- generation %} {{ m["content"] }} {% endgeneration -%}
{% endfor %}
{%- if add_generation_prompt %}{{ eos_token }}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize("template", [None, "", HARD_TEMPLATE])
def test_the_files_alone_make_transformers_own_tokenizer(tokenizer, tmp_path, template):
    from transformers import AutoTokenizer

    hf = AutoTokenizer.from_pretrained(_saved(tokenizer, tmp_path))
    if template is not None:
        hf.chat_template, hf.bos_token = template or None, "<|endoftext|>"
        hf.save_pretrained(tmp_path)
        (tmp_path / "chat_template.jinja").unlink(missing_ok=not template)
        if template:
            (tmp_path / "chat_template.jinja").write_text(template)
    ours, theirs = Tokenizer.load(tmp_path), Tokenizer(AutoTokenizer.from_pretrained(tmp_path))
    assert isinstance(ours.source, TokenizerFiles)
    text = "The code is 4821. <|im_end|> Gr\u00fc\u00dfe \u6771\u4eac \U0001f989\n\n  don't"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.chat(text) == theirs.chat(text)
    ids = [*theirs.chat(text), *theirs.encode(text), 10_000]
    assert ours.decode(ids) == theirs.decode(ids) == theirs.hf.decode(ids[:-1], skip_special_tokens=True)
    assert ours.hf.get_vocab() == theirs.hf.get_vocab()


@pytest.mark.parametrize("limit", ["padding", "truncation"])
def test_a_saved_padding_or_truncation_changes_no_prompt(tokenizer, tmp_path, limit):
    folder = _saved(tokenizer, tmp_path)
    raw = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    if limit == "padding":
        raw.enable_padding(length=64, pad_token="<|endoftext|>")
    else:
        raw.enable_truncation(2)
    raw.save(f"{folder}/tokenizer.json")
    for saved in (Tokenizer.load(folder), Tokenizer(Tokenizer.load(folder).hf)):
        assert saved.chat("The code is 4821.") == tokenizer.chat("The code is 4821.")
        assert saved.end_ids == tokenizer.end_ids


def test_the_pocket_tokenizer_equals_the_one_of_transformers():
    from transformers import AutoTokenizer

    ours, theirs = Tokenizer.load(POCKET), Tokenizer(AutoTokenizer.from_pretrained(POCKET))
    text = "Question: What is the code of the silver heron?\nText: The code of the silver heron is 4821.\nMemory: x"
    assert (
        ours.chat(text)
        == theirs.chat(text)
        == theirs.hf.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"is no model folder: it has none of tokenizer\.json, .*vocab\.txt$"),
        ({"model/config.json": "{}"}, r"is no model folder: .*; its folder .*/model may be one"),
        ({"tokenizer.json": "{}"}, r"the tokenizer of .* cannot be loaded: tokenizer\.json is broken \("),
        ({"tokenizer.json": None, "tokenizer_config.json": "{"}, r"tokenizer_config\.json is broken \("),
    ],
)
def test_a_folder_that_is_no_model_is_named_in_one_line(tmp_path, tokenizer, files, message):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if text is None:
            tokenizer.backend.save(str(tmp_path / name))
        else:
            (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as refusal:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_client_of_a_server_loads_no_torch_or_transformers():
    code = f"""
import sys
from hostile import serving
from memagent_lib import open_agent
with serving(window=4096) as server:
    agent = open_agent("small", "openai", base_url=server.url, tokenizer={POCKET!r}, budget={{"chunk_tokens": 200}})
    agent.read("The code of the bold owl is 4821. " * 60, "What is the code of the bold owl?")
    agent.close()
print(*(m for m in ("torch", "transformers", "sklearn", "pandas", "mlflow") if m in sys.modules), "end")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.split() == ["end"], done.stderr


def _saved(tokenizer, folder):
    tokenizer.hf.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("chat_template", [None, "<|im_start|>{{ messages[0].content ~ '\n' }}"])
def test_a_bos_begins_every_prompt_exactly_once(tmp_path, chat_template):
    # vllm-project/vllm#52304: Gemma without its BOS repeats itself; vllm#55288: a template that writes it too
    from tokenizers.processors import TemplateProcessing

    hf = Tokenizer.load(POCKET).hf
    backend = hf.backend_tokenizer
    bos = backend.token_to_id("<|im_start|>")
    backend.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": chat_template} if chat_template else {})
    )
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.chat("code") == [bos, *tokenizer.encode("code\n")]
    assert tokenizer.chat_tokens == 2
    assert bos not in tokenizer.encode("code"), "a chunk has none"


@pytest.mark.parametrize(("stated", "begins"), [(True, True), (False, False), (None, False)])
def test_a_bos_may_be_stated_in_the_configuration_alone(tmp_path, stated, begins):
    files = {"bos_token": "<|im_start|>"} | ({} if stated is None else {"add_bos_token": stated})
    shutil.copy(f"{POCKET}/tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(files))
    tokenizer = Tokenizer.load(tmp_path)
    bos = [tokenizer.backend.token_to_id("<|im_start|>")] if begins else []
    assert tokenizer.chat("code") == [*bos, *tokenizer.encode("code\n")]


def test_a_digest_is_of_the_tokenizer_and_not_of_its_use(tokenizer, tokenizer_folder):
    used = copy.deepcopy(tokenizer.hf)
    used(["a", "a longer text"], padding=True, truncation=True, max_length=2)
    assert Tokenizer(used).digest == tokenizer.digest
    assert Tokenizer.load(tokenizer_folder).digest == Tokenizer.load(tokenizer_folder).digest
    used.chat_template += " "
    assert Tokenizer(used).digest != tokenizer.digest
    added = copy.deepcopy(tokenizer.hf)
    added.add_tokens(["<think>"])
    assert Tokenizer(added).digest != tokenizer.digest
