"""Thoughts are set aside by the marks of the model's own family; other models may write those marks."""

import json
from pathlib import Path

import pytest
import tokenizers

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.thinking import Thoughts
from memagent_lib.tokenizer import Tokenizer

POCKET = Path("experiments/pocket/trained")
CHAT = "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant\n"
QWEN = CHAT + "{% if '</think>' in '' %}{% endif %}"


def model(folder: Path, added: dict[str, bool], chat_template: str | None = CHAT) -> Tokenizer:
    """The pocket tokenizer with more added tokens (whether each is special) and another chat template."""
    backend = tokenizers.Tokenizer.from_file(str(POCKET / "tokenizer.json"))
    for token, special in added.items():
        (backend.add_special_tokens if special else backend.add_tokens)([token])
    backend.save(str(folder / "tokenizer.json"))
    table = {"chat_template": chat_template} if chat_template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(table))
    return Tokenizer.load(folder)


def split(written: str, chat_template: str = "", added: tuple[str, ...] = (), prompt_end: str = "") -> tuple[str, str]:
    parts = Thoughts.of(chat_template, added, prompt_end).split(written)
    assert parts.finished
    return parts.thinking, parts.text


@pytest.mark.parametrize(
    "reply",
    [
        "<think>\nlong\n</think>\n\ncode 4711",
        # waybarrios/vllm-mlx#599: Mistral's marks
        "[THINK]long[/THINK]code 4711",
        # kekzl/imp#768, ml-explore/mlx-lm#875: harmony whole, and as Augustas11/macprovider#743 received it
        "<|channel|>analysis<|message|>long<|end|><|start|>assistant<|channel|>final<|message|>code 4711<|return|>",
        "analysislong.assistantfinalcode 4711",
        # jundot/omlx#560, qwersyk/Newelle#427: Gemma 4's lopsided marks, and its empty thought with thinking off
        "<|channel>thought\nlong\n<channel|>code 4711",
        "<seed:think>a<seed:cot_budget_reflect>b</seed:cot_budget_reflect>c</seed:think>code 4711",
        # vLLM's reasoning parsers; MoonshotAI/Kimi-Dev#6: marks that are no single tokens
        "<|START_THINKING|>x<|END_THINKING|><|START_RESPONSE|>code 4711<|END_RESPONSE|>",
        "<|open|>think<|sep|>x<|close|>think<|sep|><|open|>response<|sep|>code 4711<|close|>response<|sep|>",
        "<think>a</think>\n<think>b</think>code 4711",
    ],
)
def test_a_whole_thought_is_set_aside_in_every_familys_marks(reply):
    assert split(reply)[1] == "code 4711"


@pytest.mark.parametrize(
    "reply",
    [
        "the tag </think> stands before code 4711",
        "analysis of the rent: 1200",
        "code of the <think> door</think>",
    ],
)
def test_a_model_that_does_not_think_may_write_the_marks(reply):
    assert split(reply, CHAT, ("<think>", "</think>")) == ("", reply)


def test_a_closing_mark_alone_ends_what_the_prompt_began():
    # vllm-project/vllm#34625: MiniMax M2's template opens the thought
    assert split("long</think>code", QWEN, prompt_end="assistant\n<think>\n") == ("long", "code")
    assert split("long[/THINK]391", "[/THINK]") == ("long", "391")  # waybarrios/vllm-mlx#599
    assert split("long</think>code", "", ("<think>", "</think>")) == ("long", "code")
    off = "assistant\n<think>\n\n</think>\n\n"  # vLLM's Qwen3 parser: with thinking off all is content
    assert split("code</think> is a tag", QWEN, prompt_end=off) == ("", "code</think> is a tag")


@pytest.mark.parametrize(
    "reply",
    [
        "<|channel|>analysis<|message|>We need",
        # odysseus-dev/odysseus#4522: a tool call is no final channel
        '<|channel|>commentary to=functions.x<|message|>{"a":1}<|call|>',
    ],
)
def test_a_reply_without_its_text_is_no_memory(encoder, reply):
    with pytest.raises(BackendError, match="still thinking when its reply ended"):
        Agent(encoder, Scripted(lambda text: reply)).read("The code is 4711.", "q")


def test_gpt_oss_without_its_special_tokens_still_thinks():
    thoughts = Thoughts.of("<|channel|>analysis<|message|>", (), "<|start|>assistant")
    assert not thoughts.split("analysisWe need to keep").finished
    assert thoughts.split("the code is 4711") == ("", "the code is 4711", True)
    closed = thoughts.split(thoughts.close("<|channel|>analysis<|message|>We need"))
    assert (closed.text, closed.finished) == ("", True)


def test_marks_that_are_special_tokens_survive_decoding(tmp_path):
    tokenizer = model(tmp_path, {"[THINK]": True, "[/THINK]": True}, CHAT + "{# [/THINK] #}")
    ids = tokenizer.backend.encode("[THINK]rain taps[/THINK]the code<|im_end|>", add_special_tokens=False).ids
    text = tokenizer.decode(ids)
    assert tokenizer.thoughts.split(text)[:2] == ("[THINK]rain taps", "the code")


@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_in_a_document_is_plain_text(tmp_path, special):
    # PrimeIntellect-ai/renderers#116: `{type<image>|bold}` became the image token; huggingface/tokenizers#1850
    added = ("<think>", "</think>", "<image>", "<|turn>")
    tokenizer = model(tmp_path, dict.fromkeys(added, special))
    plain = Tokenizer.load(POCKET)
    control = {tokenizer.backend.token_to_id(token) for token in (*added, "<|im_start|>")}
    text = "press <think> then </think> on {type<image>|bold} and <|turn>\n<|im_start|>system"
    ids = tokenizer.encode(text)
    assert not control & set(ids) and tokenizer.decode(ids) == text
    assert ids == plain.encode(text) == tokenizer.tokens(text).ids.tolist()
    framed = tokenizer.chat(text)
    assert [i for i in framed if i in control] == [tokenizer.backend.token_to_id("<|im_start|>")] * 2
