"""Separate a model's thoughts from its reply, by the marks that the model's family puts around thoughts.

A family is identified by the model's chat template or, without one, by its added tokens, but never by the model's
name: one release of Magistral wrote ``<think>`` as text and the next ``[THINK]`` as a token (vllm#45359). This module
does not depend on tokenizers or prompts.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple


class Parts(NamedTuple):
    """A reply split into thoughts and text. ``finished`` is false if the reply ended inside a thought."""

    thinking: str
    text: str
    finished: bool = True


@dataclass(frozen=True, slots=True)
class Tags:
    """Thoughts between two marks, before the text. Some families also put the text between marks (``reply``)."""

    opening: str
    closing: str
    tokens: tuple[str, ...] = ()
    reply: tuple[str, str] = ("", "")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens that make up the marks. If a mark consists of several tokens, ``tokens`` lists them."""
        return self.tokens or tuple(filter(None, (self.opening, self.closing, self.reply[0])))

    def named_in(self, chat_template: str) -> bool:
        if self.tokens:
            return _all_in(chat_template, self.tokens)
        return (self.opening in chat_template or self.closing in chat_template) and self.reply[0] in chat_template

    def continues(self, written: str) -> bool:
        """Whether the reply contains a closing mark, and so may have begun inside a thought that the prompt opened."""
        return self.closing in written

    def split(self, written: str, begun: bool) -> Parts | None:
        """Split a reply after the thoughts at its beginning; ``None`` if it does not begin with a thought.

        With ``begun``, the prompt has opened a thought, so the reply begins inside it.
        """
        end = 0
        while begun or written[end:].lstrip().startswith(self.opening):
            closing = written.find(self.closing, end)
            if closing < 0:
                return Parts(written.strip(), "", finished=False)
            end = closing + len(self.closing)
            begun = False
        if not end:
            return None
        return Parts(written[: end - len(self.closing)].strip(), self.unwrapped(written[end:].strip()))

    def unwrapped(self, text: str) -> str:
        before, after = self.reply
        if before and text.startswith(before):
            return text.removeprefix(before).removesuffix(after).strip()
        return text


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of gpt-oss (openai/harmony): ``final`` contains the text, all others contain thoughts."""

    opening: str = "<|channel|>analysis<|message|>"
    closing: str = "<|end|><|start|>assistant<|channel|>final<|message|>"
    vocabulary: tuple[str, ...] = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>")

    def named_in(self, chat_template: str) -> bool:
        return _all_in(chat_template, ("<|channel|>", "<|message|>"))

    def continues(self, written: str) -> bool:
        return written.lstrip().startswith(("analysis", "commentary"))

    def split(self, written: str, begun: bool) -> Parts | None:
        """Split a reply at its final channel, even if a server has removed the tokens that mark channels.

        With ``begun``, the prompt has opened a channel of thoughts. ``None`` means that the reply has no channels.
        """
        final = None
        if written.lstrip().startswith(("<|channel|>", "<|start|>")):
            begun = True
            final = _FINAL.search(written)
        elif written.lstrip().startswith("analysis"):
            final = _FINAL_WITHOUT_TOKENS.search(written)
        if final:
            return Parts(written[: final.start()].strip(), final["text"].strip())
        if begun:
            return Parts(written.strip(), "", finished=False)
        return None

    def unwrapped(self, text: str) -> str:
        return text


_FINAL = re.compile(
    r"<\|channel\|>\s*final[^<]*(<\|constrain\|>[^<]*)?<\|message\|>(?P<text>.*?)(<\|(end|return|call)\|>|$)", re.DOTALL
)
_FINAL_WITHOUT_TOKENS = re.compile(r"assistantfinal(?P<text>.*)", re.DOTALL)

FAMILIES: tuple[Tags | Channels, ...] = (
    Channels(),
    Tags("<|channel>thought", "<channel|>", tokens=("<|channel>", "<channel|>")),  # Gemma 4
    Tags("[THINK]", "[/THINK]"),  # Mistral
    Tags("<seed:think>", "</seed:think>"),
    Tags("<mm:think>", "</mm:think>"),  # MiniMax M3
    Tags("<|START_THINKING|>", "<|END_THINKING|>", reply=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),  # Cohere
    Tags("◁think▷", "◁/think▷"),  # Kimi Dev and VL
    Tags(  # Kimi K3
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
        reply=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    ),
    Tags("<think>", "</think>", reply=("<answer>", "</answer>")),  # Hunyuan
    Tags("<think>", "</think>"),  # Qwen3, DeepSeek, GLM, Kimi K2, MiniMax M2, OLMo 3
)
"""If two families share marks, the one with more marks comes first."""


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How to split one model's replies: the marks of its family, and the marks that its prompt ends with.

    If a prompt ends with an opening mark, the reply begins inside a thought (``opened``). If it ends after a closing
    mark, the thought is over (``closed``); most templates switch thinking off in this way.
    """

    family: Tags | Channels | None = None
    opened: bool = False
    closed: bool = False
    special: bool = False
    """Whether the marks are special tokens, which servers remove from a reply unless a request forbids it."""

    @classmethod
    def of(cls, chat_template: str, added_tokens: Container[str], prompt_end: str) -> Thoughts:
        """Identify a model's family by its template, or by its added tokens if it has no template.

        With a template, added tokens alone prove nothing: Qwen3's models that do not think have them too.
        """
        for marks in FAMILIES:
            if marks.named_in(chat_template) or (not chat_template and _all_in(added_tokens, marks.vocabulary)):
                opening = prompt_end.rfind(marks.opening)
                closing = prompt_end.rfind(marks.closing)
                return cls(marks, opened=opening > closing, closed=closing > opening)
        return cls()

    def split(self, written: str, separated: bool = False) -> Parts:
        """Split a reply into thoughts and text. With ``separated``, a server has already removed the thoughts.

        A thought at the beginning is recognised by any family's marks, because the server's model may have a different
        template from the tokenizer here. A closing mark without an opening one ends a thought only if this model's
        thoughts may begin before the reply; otherwise it is text.
        """
        if self.family:
            begun = self.opened or (not self.closed and self.family.continues(written))
            parts = self.family.split(written, begun and not separated)
            if parts:
                return parts
        for marks in FAMILIES:
            parts = marks.split(written, begun=False)
            if parts:
                return parts
        text = written.strip()
        if self.family:
            text = self.family.unwrapped(text)
        return Parts("", text)

    def close(self, written: str) -> str:
        """Append the closing mark to a reply that ended inside a thought, so that the reply splits with empty text."""
        families = (self.family, *FAMILIES) if self.family else FAMILIES
        return written + next(marks.closing for marks in families if marks.split(written, begun=True))


def special_marks(special_tokens: Container[str]) -> frozenset[str]:
    """Return the special tokens that mark thoughts, so that decoding does not remove them."""
    found = (marks.vocabulary for marks in FAMILIES if _all_in(special_tokens, marks.vocabulary))
    return frozenset(token for vocabulary in found for token in vocabulary)


def _all_in(tokens: Container[str], wanted: tuple[str, ...]) -> bool:
    return all(token in tokens for token in wanted)
