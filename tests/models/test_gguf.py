"""A GGUF file is a model like any other: the same replies and ids as the folder it was made from, or one clear line."""

import copy
import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from gguf_models import CONTROL, NORMAL, USER_DEFINED, write_gguf

from memagent_lib import provenance
from memagent_lib.agent import open_agent
from memagent_lib.backends import BackendUnavailable
from memagent_lib.errors import MissingFile
from memagent_lib.models import ModelError, find_model
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
    made = Tokenizer.load(find_model(str(gguf())))
    assert made.encode(TEXT) == tokenizer.encode(TEXT)
    assert made.chat(TEXT) == tokenizer.chat(TEXT) == Tokenizer(made.hf).chat(TEXT)
    assert made.decode(made.encode("A 12 don't")) == "A 12 don't"
    assert made.end_ids == tokenizer.end_ids
    assert (made.hf.eos_token, made.hf.pad_token, made.hf.bos_token) == ("<|im_end|>", "<|endoftext|>", None)


def test_smollms_words_have_every_digit_apart(gguf, tokenizer, cache):
    from tokenizers import pre_tokenizers

    made = Tokenizer.load(find_model(str(gguf(pre="smollm"))))
    # the pre-tokenizer of HuggingFaceTB/SmolLM2-135M-Instruct
    digits = pre_tokenizers.Digits(individual_digits=True)
    published = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    words = made.backend.pre_tokenizer.pre_tokenize_str("codes 4821 don't\n\n  x")
    assert words == published.pre_tokenize_str("codes 4821 don't\n\n  x")
    assert [word for word, _ in words][:6] == ["codes", "\u0120", "4", "8", "2", "1"]


def test_a_stated_bos_begins_prompts_without_a_chat_template(gguf, tokenizer, cache):
    stated = {"more": {"tokenizer.ggml.add_bos_token": True}, "special": {"bos": 0, "eos": 2}, "chat_template": None}
    made = Tokenizer.load(find_model(str(gguf(**stated))))
    assert made.chat("code")[0] == 0
    stated["more"] = {"tokenizer.ggml.add_bos_token": False}
    other = Tokenizer.load(find_model(str(gguf("other.gguf", **stated))))
    assert other.chat("code")[0] == tokenizer.encode("code")[0]


def test_user_defined_tokens_are_added_and_not_special(gguf, tokenizer, cache):
    mill = tokenizer.encode(" mill")[0]
    kinds = [
        CONTROL if number < 3 else USER_DEFINED if number == mill else NORMAL for number in range(len(tokenizer.hf))
    ]
    made = Tokenizer.load(find_model(str(gguf(kinds=kinds))))
    added = made.backend.get_added_tokens_decoder()
    assert sorted(added) == [0, 1, 2, mill]
    assert [added[number].special for number in (0, 1, 2, mill)] == [True, True, True, False]


def test_sentencepiece_merges_follow_from_the_scores(llama, tmp_path, cache):
    # scores as SentencePiece's BPE has them: the earlier a merge was learnt, the higher
    learnt = ["\u2581a", "ab", "\u2581ab", "abc"]
    tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xBC>", *learnt, "\u2581", "a", "b", "c"]
    kinds = [2, CONTROL, CONTROL, 6, 6, *[NORMAL] * 8]
    scores = [0.0] * 5 + [-float(rank) for rank in range(4)] + [-100.0] * 4
    special = {"bos": 1, "eos": 2, "unknown": 0}
    file = write_gguf(
        tmp_path / "sp.gguf", llama, tokens, kinds, kind="llama", pre="default", scores=scores, special=special
    )
    made = Tokenizer.load(find_model(str(file)))
    named = [made.backend.id_to_token(number) for number in made.encode("ab abc\u00fc")]
    assert named == ["\u2581ab", "\u2581ab", "c", "<0xC3>", "<0xBC>"]
    assert made.decode(made.encode("ab abc\u00fc")) == "ab abc\u00fc"
    assert made.chat("ab")[0] == 1


def test_a_file_is_converted_once_and_again_after_a_kill(gguf, cache):
    file = gguf()
    folder = Path(find_model(str(file)))
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode
    copy = shutil.copy(file, file.with_name("tiny copy.gguf"))
    assert find_model(str(file)) == str(folder)
    assert Path(find_model(str(copy))).name == f"tiny copy-{folder.name.rpartition('-')[2]}"
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    unfinished = folder.rename(folder.with_name(f"{folder.name}.part"))
    (unfinished / "config.json").write_text("{")
    assert find_model(str(file)) == str(folder)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    assert not unfinished.exists()


def test_a_changed_file_is_another_model(gguf, cache):
    first = find_model(str(gguf()))
    weights = provenance.model_hash(first)
    second = find_model(str(gguf(chat_template=None)))
    assert first != second and weights != provenance.model_hash(second)


def test_the_hash_of_a_model_is_that_of_its_gguf_file(gguf, cache):
    import hashlib

    file = gguf()
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    folder = Path(find_model(str(file)))
    assert provenance.model_hash(file) == provenance.model_hash(folder) == expected[:16]
    source = json.loads((folder / "source.json").read_text())
    assert (source["file"], source["sha256"], source["name"]) == ("tiny.gguf", expected, "Tiny")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "rwkv7"}, r"bad\.gguf has the architecture 'rwkv7', which transformers cannot read"),
        ({"pre": "viking"}, r"the tokenizer 'gpt2' with the words of 'viking', which cannot be made from the file"),
        ({"more": {"split.count": 3}}, r"bad\.gguf is one of 3 parts; join them with llama-gguf-split --merge"),
        ({"more": {"llama.rope.scaling.type": "yarn"}}, r"bad\.gguf scales its positions"),
    ],
)
def test_what_cannot_be_read_is_refused_before_a_weight_is(gguf, cache, changed, message, monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(ModelError, match=message):
        find_model(str(gguf("bad.gguf", **changed)))
    assert [path.name for path in cache.glob("*") if path.is_dir()] == ["hashes"]


def test_llama_3s_scaled_positions_are_read_or_refused(gguf, llama, cache):
    import numpy as np
    from transformers import AutoConfig, LlamaForCausalLM

    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = copy.deepcopy(llama.config)
    config.rope_parameters = scaling | {"rope_type": "llama3", "rope_theta": 10000.0}
    expected = LlamaForCausalLM(config).model.rotary_emb.inv_freq
    factors = (llama.model.rotary_emb.inv_freq / expected).numpy().astype(np.float32)
    assert factors.min() == 1 and factors.max() > 1
    folder = find_model(str(gguf("llama3.gguf", tensors={"rope_freqs.weight": factors})))
    made = LlamaForCausalLM(AutoConfig.from_pretrained(folder)).model.rotary_emb.inv_freq
    assert np.allclose(made.numpy(), expected.numpy(), rtol=1e-4)
    with pytest.raises(ModelError, match=r"other\.gguf scales its positions"):
        find_model(str(gguf("other.gguf", tensors={"rope_freqs.weight": factors[::-1].copy()})))


def test_broken_and_missing_files_are_one_line(gguf, tmp_path, cache):
    page = tmp_path / "page.gguf"
    page.write_text("<html>404</html>")
    with pytest.raises(ModelError, match=r"page\.gguf is no GGUF file: it begins with b'<htm'"):
        find_model(str(page))
    whole = gguf()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ModelError, match=r"cut\.gguf is broken or cut short"):
        find_model(str(cut))
    with pytest.raises(MissingFile, match=r"no GGUF file './none\.gguf'"):
        find_model("./none.gguf")


def test_too_little_disk_or_memory_is_named_with_numbers(gguf, cache, monkeypatch):
    file = gguf()
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
        with pytest.raises(ModelError, match=r"tiny\.gguf needs 0\.0 GB of disk in .*, and 0\.0 GB are free"):
            find_model(str(file))
    memory = namedtuple("memory", "available")
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory(200_000_000))
    with pytest.raises(ModelError, match=r"converting tiny\.gguf needs 0\.6 GB of memory, and 0\.2 GB are free"):
        find_model(str(file))


def test_a_servers_name_for_a_gguf_file_stays_a_name(tokenizer, cache):
    from hostile import serving

    # llama.cpp names a model by its file
    with (
        serving(window=512) as server,
        pytest.raises(BackendUnavailable, match=r"has no model 'qwen\.gguf'; it has small"),
    ):
        open_agent("qwen.gguf", "openai", base_url=server.url, tokenizer=tokenizer)
    with pytest.raises(OSError, match=r"no GGUF file 'qwen\.gguf'.*or name the tokenizer \(--tokenizer\)"):
        open_agent("qwen.gguf", "openai", base_url="http://127.0.0.1:1/v1")
