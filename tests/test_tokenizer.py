"""The tokenizer is the model's own, and is loaded without torch."""

import copy
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.prompts import Encoder
from memagent_lib.tokenizer import Tokenizer, TokenizerFiles

POCKET = "experiments/pocket/trained"


# Loading.

HARD_TEMPLATE = """{%- if tools %}tools{% endif -%}
{%- for m in messages -%}
    {%- if m.role == "system" %}{{ raise_exception("no system") }}{% endif -%}
    {%- if loop.index > 9 %}{% break %}{% endif %}
    {{ bos_token }}{{ m.role | tojson }}
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


@pytest.mark.parametrize(
    "files", [{}, {"model/config.json": "{}"}, {"tokenizer.json": "{}"}, {"tokenizer_config.json": "{"}]
)
def test_a_folder_that_is_not_a_model_is_named(tmp_path, tokenizer, files):
    tokenizer.backend.save(str(tmp_path / "tokenizer.json")) if "tokenizer_config.json" in files else None
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=str(tmp_path)):
        Tokenizer.load(tmp_path)


def test_a_client_of_a_server_loads_no_torch_or_transformers():
    code = f"""
import sys
from dataclasses import replace
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


# A chunk is encoded once.

PIECES = [
    "The code of ",
    "\n",
    "\U0001f989",
    "12345",
    " ",
    "e\u0301",
    "東京",
    "don't",
]


def _mixed(draw, size):
    """Text of all kinds, with stretches in which one piece is repeated."""
    text = ""
    while len(text) < size:
        text += "".join(draw.choices(PIECES, k=draw.randint(1, 60)))
        text += draw.choice(PIECES) * draw.choice([0, 0, draw.randint(1, 300)])
    return text


@pytest.mark.parametrize("kind", ["words of bytes", "unigram"])
def test_a_text_with_known_tokens_has_the_ids_of_the_whole(tokenizer, kind):
    from tokenizers import models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = copy.deepcopy(tokenizer.backend)
    trainer = trainers.BpeTrainer(vocab_size=400)
    if kind == "unigram":
        raw.model = models.Unigram()
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=120)
    raw.train_from_iterator([_mixed(random.Random(9), 20_000)], trainer)
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=raw))
    draw = random.Random(1)
    for _ in range(100):
        document = _mixed(draw, draw.randint(1, 9000))
        start, end = sorted(draw.choices(range(len(document) + 1), k=2))
        known = tokenizer.tokens(document).within(start, end)  # as they are in other surroundings
        before, after = _mixed(draw, draw.randint(0, 900)), _mixed(draw, draw.randint(0, 900))
        whole = before + document[start:end] + after
        assert tokenizer.encode_around(before, document[start:end], after, known) == tokenizer.encode(whole)


def test_a_chunk_is_encoded_once_on_its_way_into_a_prompt(tokenizer, encoder, monkeypatch):
    encoded = 0

    def counted(name):
        original = getattr(Tokenizer, name)

        def method(self, text):
            nonlocal encoded
            encoded += len(text)
            return original(self, text)

        return method

    for name in ("encode", "tokens"):
        monkeypatch.setattr(Tokenizer, name, counted(name))
    encoder = Encoder(tokenizer, encoder.template, replace(encoder.budget, chunk_tokens=2000, memory_tokens=500))
    document = "A small boat drifts past the old mill. " * 1500
    backend = Scripted(lambda text: "A small boat drifts past. " * 20)
    trace = Agent(encoder, backend).read(document, "q")
    memories = sum(len(turn.reply.text) for turn in trace.turns)
    assert encoded < 1.6 * (len(document) + memories)
    assert [list(r.ids) for r in backend.requests] == [tokenizer.chat(r.text) for r in backend.requests]
