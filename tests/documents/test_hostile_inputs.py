"""A thousand hostile inputs, generated from a seed: files and replies as nobody should write them.

Each is read from a real file, through the real client, against a loopback server. It ends in the right thing, checked
against a second reading of the bytes, or in one line that a person can use.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest
from hostile import Server, serving

from memagent_lib.agent import Agent
from memagent_lib.backends import Sampling
from memagent_lib.backends.openai import OpenAICompatible
from memagent_lib.backends.retries import RetryPolicy
from memagent_lib.documents import FileReading, read_files
from memagent_lib.documents.file_reading import SavedReading
from memagent_lib.errors import is_user_error
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.text import Tokenizer

INPUTS = 1000
WORDS = (
    "rain", "roof", "night", "boat", "mill", "owl", "code", "bold", "the", "of", "and", "is", "not\u00a0here",
    "caf\u00e9", "na\u00efve", "\u6771\u4eac", "\u05e9\u05dc\u05d5\u05dd", "\U0001f9ea", "e\u0301",
)  # fmt: skip
TAGS = (
    "<|im_start|>system", "<|im_end|>", "<|endoftext|>", "</s>", "[INST]", "{question}", "{chunk}", "{memory}", "{{",
    "}", "%s %d", "<think>", "</think>", "\\boxed{9}", "the answer is 9.", "KEEP", "DONE\n", "RECALL: owl", "<script>a",
    "Question: what?", "Memory: nothing yet", "Write the answer.", "\u2028", "\x85", "\u202e", "\ufeff", "\ufffd",
    "\r", "\x1b[2J",
)  # fmt: skip
ANSWER = "\\boxed{4711}"


class Hostile(NamedTuple):
    """The bytes of a file with the text that they say, as far as they are text, and what the server replies."""

    kind: str
    data: bytes
    text: str | None
    reply: Callable[[dict], object]
    right: str | None
    """The answer that a reply means, ``None`` where it means none."""


def words_of(rng: random.Random) -> str:
    spoken = [rng.choice(TAGS) if rng.random() < 0.25 else rng.choice(WORDS) for _ in range(rng.randrange(1, 120))]
    return rng.choice((" ", "\n", "")).join(spoken)


def broken_utf8(rng: random.Random) -> bytes:
    data = bytearray(words_of(rng).encode())
    bad = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf0\x9f\xa7", b"\x80" * 9, "r\u00e9sum\u00e9".encode("latin-1"))
    for _ in range(rng.randrange(1, 6)):
        data[(at := rng.randrange(len(data) + 1)) : at] = rng.choice(bad)
    return bytes(data)


FILES: dict[str, Callable[[random.Random], bytes]] = {
    "tags": lambda rng: words_of(rng).encode(),
    "broken utf-8": broken_utf8,
    "cut utf-8": lambda rng: (words_of(rng) + "\u6771").encode()[:-1],
    "utf-16": lambda rng: words_of(rng).encode("utf-16") + rng.choice((b"", b"\x00", b"\xdb", b"\x00\xd8")),
    "utf-32": lambda rng: words_of(rng).encode("utf-32") + rng.choice((b"", b"\x00", b"\xff\xff\xff\xff")),
    "utf-16 without a mark": lambda rng: words_of(rng).encode("utf-16-le"),
    "utf-8 with a mark": lambda rng: b"\xef\xbb\xbf" + words_of(rng).encode(),
    "cp1252": lambda rng: "\u201cna\u00efve\u201d caf\u00e9 ".encode("cp1252") * rng.randrange(1, 9),
    "shift jis": lambda rng: ("\u6771\u4eac\u306e" * rng.randrange(1, 40)).encode("shift_jis"),
    "zeros": lambda rng: words_of(rng).encode() + b"\0" * rng.randrange(1, 50),
    "a late zero": lambda rng: b"rain " * 13_200 + b"\0" + words_of(rng).encode(),
    "controls": lambda rng: bytes(rng.randrange(32) for _ in range(rng.randrange(1, 99))),
    "noise": lambda rng: rng.randbytes(rng.randrange(1, 300)),
    "nothing": lambda rng: rng.choice(
        (b"", b"\xef\xbb\xbf", b"\xff\xfe", b" \n\t", b"\n" * 500, "\u2003\u00a0".encode())
    ),
    "one line": lambda rng: rng.choice((b"x", b"\xff", "\u6771".encode(), b"ab cd ")) * rng.randrange(3000, 9000),
    "half a pdf": lambda rng: b"%PDF-1.7\n" + rng.randbytes(rng.randrange(200)),
    "zip": lambda rng: b"PK\x03\x04" + rng.randbytes(20),
    "html": lambda rng: f"<html><p>{words_of(rng)}<pre>a\n b</pre><!-- {words_of(rng)} --><b".encode(),
}
UNREADABLE = ("half a pdf", "zip", "utf-16", "utf-32", "controls", "zeros", "noise", "nothing", "html")
"""Files of which some say nothing."""
UNCERTAIN = ("broken utf-8", "cut utf-8", "cp1252", "shift jis", "one line", "noise")
"""Files whose encoding may be refused, which is never read as anything else."""


def replying(text: object, **more: object) -> Callable[[dict], dict]:
    """Make a server reply with a text, in the form that the request wants."""

    def reply(body: dict) -> dict:
        choice = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        return {"choices": [choice | {"finish_reason": "stop"} | more], "usage": {}}

    return reply


def whole(value: object) -> Callable[[dict], object]:
    return lambda body: value


OVERLOADED = "an error as a reply"
CALL = {
    "message": {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
}
REPLIES: dict[str, tuple[Callable[[dict], object], str | None]] = {
    "good": (replying(ANSWER), ANSWER),
    "good, thought": (replying(f"<think>9?</think>\n{ANSWER}"), ANSWER),
    "good, with tags": (replying(f"<|im_end|>{{memory}}\0{ANSWER}"), f"<|im_end|>{{memory}}\0{ANSWER}"),
    "good, half a pair": (replying("\ud83e" + ANSWER), "\ufffd" + ANSWER),
    "good, no usage": (lambda body: replying(ANSWER)(body) | {"usage": None}, ANSWER),
    "good, odd usage": (lambda body: replying(ANSWER)(body) | {"usage": {"prompt_tokens": "9", "total": -1.5}}, ANSWER),
    "good, odd usage tables": (lambda body: replying(ANSWER)(body) | {"usage": {"prompt_tokens_details": [3]}}, ANSWER),
    "good, no reason": (replying(ANSWER, finish_reason=None), ANSWER),
    "null": (replying(None), None),
    "a number": (replying(4711), None),
    "good, in parts": (replying([{"type": "text", "text": ANSWER}]), ANSWER),
    "parts without text": (replying([{"type": "image_url", "image_url": {"url": "x"}}]), None),
    "empty": (replying(""), None),
    "white space": (replying(" \n\t\u2003"), None),
    "a thought": (replying("<think>it could be 4711"), None),
    "a cut thought": (replying("<think>it could be 4711", finish_reason="length"), None),
    "a thought and nothing": (replying("<think>4711</think>"), None),
    "filtered": (replying(ANSWER, finish_reason="content_filter"), None),
    "a tool call": (whole({"choices": [CALL | {"finish_reason": "tool_calls"}]}), None),
    "no choice": (whole({"choices": []}), None),
    "null choices": (whole({"choices": None}), None),
    OVERLOADED: (whole({"error": {"message": "model\nis\noverloaded", "code": 500}}), None),
    "null body": (whole(None), None),
    "a list": (whole([1, 2]), None),
    "a text": (whole("4711"), None),
}  # fmt: skip


def generated(number: int) -> Hostile:
    rng = random.Random(f"hostile {number}")
    kind = rng.choice(list(FILES))
    data = FILES[kind](rng)
    odd = rng.choice(list(REPLIES)) if number % 2 else "good"
    return Hostile(f"{kind}, {odd}", data, text_of(kind, data), *REPLIES[odd])


def text_of(kind: str, data: bytes) -> str | None:
    """What the bytes say, by Python's own decoders at once; ``None`` where only a library could tell."""
    if kind in ("html", "noise", "half a pdf"):
        return None
    for mark, codec in ((b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16")):
        if data.startswith(mark):
            return data.decode(codec, errors="replace")
    codecs = {"cp1252": "cp1252", "shift jis": "cp932", "utf-16 without a mark": "utf-16-le"}
    return data.decode(codecs.get(kind, "utf-8-sig"), errors="replace")


@pytest.fixture(scope="module")
def tokens(tokenizer_folder) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


def agent_for(server: Server, tokens: Tokenizer, api: str, deadline_s: float) -> Agent:
    policy = RetryPolicy(deadline_s=deadline_s)
    backend = OpenAICompatible("small", Sampling(), base_url=server.url, api=api, retry_policy=policy)
    backend.expect_strangers()  # equal refusals stop nothing
    budget = Budget(chunk_tokens=1500, memory_tokens=64, answer_tokens=64, question_tokens=32)
    return Agent(Encoder(tokens, Template.load("short"), budget), backend)


def require_right(reading: FileReading, case: Hostile, bodies: list[dict], tokens: Tokenizer) -> None:
    """The answer is the reply's; all of the text was in a prompt and none of it is a control token."""
    assert case.right is not None, f"answered {reading.answers}"
    assert list(reading.answers.values()) == [case.right.strip()]
    chunks = [turn.prompt.chunk for turn in reading.trace.reads]
    assert len(bodies) == len(reading.trace.turns)
    if case.text is not None:
        assert chunks[-1].end == len(case.text) and chunks[0].start == 0
        spans = [(chunk.start, chunk.end) for chunk in chunks]
        assert all(end == start for (_, end), (start, _) in pairwise(spans))
        for body, (start, end) in zip(bodies, spans, strict=False):
            prompt = (
                body["messages"][0]["content"]
                if "messages" in body
                else tokens.backend.decode(body["prompt"], skip_special_tokens=False)
            )
            assert case.text[start:end].strip() in prompt
        written = Counter(case.data.decode("utf-8", "ignore"))["\ufffd"] if "utf-16" not in case.kind else 0
        replaced = case.text.count("\ufffd") - written
        notes = reading.document.notes
        assert (replaced > 0) == bool(notes) or "utf-" in case.kind, (replaced, notes)
    special = set(tokens.hf.all_special_ids)  # computed anew by each access, so once
    frame_tokens = len([i for i in tokens.chat("") if i in special])
    for body in bodies:
        if "prompt" in body:
            assert len([i for i in body["prompt"] if i in special]) == frame_tokens


def require_clear(error: Exception, case: Hostile) -> str:
    """One line that a person can use, for an input that has no answer; the line's beginning."""
    message = str(error)
    assert is_user_error(error) and 20 < len(message) < 500 and message.isprintable(), f"{case.kind}: {error!r}"
    refused = case.kind.startswith(UNCERTAIN) and "its encoding is uncertain" in message
    assert case.right is None or refused or case.kind.startswith(UNREADABLE), (
        f"{case.kind}, {case.data[:80]!r}: {error!r}"
    )
    return re.sub(r"[\d'\"].*", "", message)


def test_hostile_inputs_end_in_the_answer_or_one_clear_line(tokens, tmp_path):
    ends = Counter()
    names = ("{}.txt", "{}\n<b>.txt", "{}\udcff.txt", "{}.md", "{} {{chunk}}.txt")
    with serving() as server, serving() as overloaded:
        overloaded.reply = REPLIES[OVERLOADED][0]
        apis = ("chat", "completions")
        agents = [agent_for(server, tokens, api, deadline_s=20) for api in apis]
        hasty = [agent_for(overloaded, tokens, api, deadline_s=0.2) for api in apis]
        for number in range(INPUTS):
            case = generated(number)
            path = tmp_path / ("{}.html" if case.kind.startswith("html") else names[number % 5]).format(number)
            path.write_bytes(case.data)
            server.reply = case.reply
            server.bodies.clear()
            # An overloaded server is tried again until the deadline, and this one never recovers. It is another server,
            # because a request may still be on its way to it when the next input is read.
            reads = (hasty if case.kind.endswith(OVERLOADED) else agents)[number % 4 // 2]
            try:
                reading = read_files(reads, [path], ["What is the code?"])
                require_right(reading, case, server.bodies, tokens)
                if number % 7 == 0:
                    assert SavedReading.load(reading.save(tmp_path / "saved.json")).trace == reading.trace
                    assert "4711" in reading.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
                ends["read"] += 1
            except AssertionError as wrong:
                raise AssertionError(f"input {number} ({case.kind}, {case.data[:80]!r}): {wrong}") from wrong
            except Exception as error:
                ends[require_clear(error, case)] += 1
        for agent in (*agents, *hasty):
            agent.close()
    assert ends["read"] > 300 and len(ends) >= 5, ends
