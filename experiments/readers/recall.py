"""Recall (after ReMemR1, arXiv 2509.23040): the model may request a past memory by words that occur in it.

The paper's objective is, in a recipe,

    [rewards]
    rollout_weight = 0.8
    gain = 0.2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from memagent_lib.readers import Ranking, ReaderSession, reader, turns_and_memory
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn

if TYPE_CHECKING:
    from memagent_lib.evaluation import Result
    from memagent_lib.sft import Moment

COMMAND = "recall"
REQUEST_WORDS = 6
"""The most words of a request in a lesson."""
_SEAM = "\nFrom an earlier memory:\n"
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class RequestLine:
    """A command on a reply's last line, followed by words: ``RECALL: the owl``. Its signal is ``recall: the owl``."""

    command: str

    def opened(self, reply: Reply, memory: str) -> Reply:
        """Return the reply without its request, which becomes its signal; return a reply without one unchanged.

        A request alone leaves the memory unchanged.
        """
        call = self._last_line.search(reply.text)
        words = call["words"].strip() if call else ""
        if reply.signal or not words:
            return reply
        return replace(reply, text=reply.text[: call.start()].strip() or memory, signal=f"{self.command}: {words}")

    def written(self, memory: str, signal: str) -> str:
        """Return the reply that opens to ``memory`` and ``signal``."""
        if not signal:
            return memory
        return f"{memory}\n{self.command.upper()}: {self.words(signal)}".strip()

    def malformed(self, text: str) -> bool:
        """Return whether a line of an opened text still begins with the command, in capitals and with its colon."""
        return self._any_line.search(text) is not None

    def words(self, signal: str) -> str:
        """Return the words of a signal; "" for a signal of another command."""
        name, _, words = signal.partition(": ")
        return words if name == self.command else ""

    @cached_property
    def _last_line(self) -> re.Pattern[str]:
        # Behind other words of its line only in capitals: "The witness did not recall: ..." is a memory.
        begins = rf"(?:(?:^|\n)[ \t]*[*_`]*(?i:{self.command})|(?<!\w)[*_`]{{0,3}}{self.command.upper()})"
        return re.compile(rf"{begins}[*_`]*:[ \t]*[*_`]*(?P<words>[^\n]*?)[*_`\s]*\Z")

    @cached_property
    def _any_line(self) -> re.Pattern[str]:
        return re.compile(rf"^[ \t]*[*_`]*{self.command.upper()}[*_`]*:", re.MULTILINE)


_REQUEST = RequestLine(COMMAND)


def teach(moment: Moment) -> str:
    """Request a statement that was in an earlier memory: lost evidence, or blindly with the share ``request``."""
    lost = [text for known in moment.past for text in known if text not in moment.memory]
    if moment.aware:
        chosen = next((text for text in lost if text in moment.evidence), "")
    elif moment.rng.random() < moment.share("request", 0.25) and lost:
        chosen = moment.rng.choice(list(dict.fromkeys(lost)))
    else:
        chosen = ""
    return f"{COMMAND}: {' '.join(chosen.split()[:REQUEST_WORDS])}" if chosen else ""


RECALL = Kind(
    "recall",
    reads=True,
    commands={COMMAND: "looks back for"},
    opened=_REQUEST.opened,
    written=_REQUEST.written,
    malformed=_REQUEST.malformed,
    taught=teach,
    words="If something that an earlier memory held is missing now, end the reply with a line that begins with "
    "RECALL: and names it in a few words; you will then see that earlier memory beside the next piece.",
)


@reader({RECALL: 2, Kind.ANSWER: 2})
def recall(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
    """Read like ``overwrite``, but let the model request a past memory for its next prompt.

    If a reply ends with a line "RECALL: words", the next prompt also displays the past memory that best matches the
    words. The memory just written is never recalled, because the next prompt displays it anyway. A recalled memory is
    displayed only once, so the model must copy what it needs. In the trace, the request is the reply's ``signal``.
    """
    turns, memory = turns_and_memory(previous)
    recalled = None
    for chunk in chunks:
        turn = yield _prompt(RECALL, question, memory, recalled, chunk)
        # Before this turn is added: the memory it writes is in the next prompt anyway.
        past = [turn.reply.text for turn in turns]
        turns.append(turn)
        memory = turn.reply.text
        words = _REQUEST.words(turn.reply.signal)
        recalled = best_past(words, past, memory) if words else None
    answer = yield _prompt(Kind.ANSWER, question, memory, recalled)
    return Trace(question, (*turns, answer))


def best_past(words: str, past: Sequence[str], now: str) -> str | None:
    """Return the past memory, other than ``now``, that matches ``words`` best; ``None`` if none shares a word."""
    # Without repetitions, because a memory often stays the same for many turns.
    others = [memory for memory in dict.fromkeys(past) if memory and memory != now]
    best = Ranking(others).ranked(words)[:1]
    return others[best[0]] if best else None


def _prompt(kind: Kind, question: str, memory: str, recalled: str | None, chunk: Chunk | None = None) -> Prompt:
    if recalled is None:
        return Prompt(kind, question, memory, chunk)
    return Prompt(kind, question, f"{memory}{_SEAM}{recalled}", chunk, memories=2, replaced=memory)


# The reward: the paper's multi-level rewards.


def gain(result: Result) -> list[float | None]:
    """Return how much closer each turn brought memory and next prompt to the answers; ``None`` for an answer.

    Turn ``j`` has ``g(m_j) - g(m_j-1) + max(0, g(p_j + c_j) - g(p_j))``, where ``g`` is :func:`share_of_words`, ``m`` a
    memory, ``p`` a turn's prompt and reply, and ``c`` the memory that the next prompt displays because the reply
    requested it.
    """
    turns = (*result.trace.turns, None)
    return [_gain(turn, following, result.example.answers) for turn, following in pairwise(turns)]


def _gain(turn: Turn, following: Turn | None, answers: Sequence[str]) -> float | None:
    prompt = turn.prompt
    if not prompt.kind.reads:
        return None
    seen = " ".join((prompt.question, prompt.memory, prompt.chunk.text, turn.reply.text))
    # A request that matched no memory leaves the next prompt with one.
    is_recalled = turn.reply.command == COMMAND and following.prompt.memories > 1
    brought = f"{seen} {following.prompt.memory}" if is_recalled else seen
    gained = share_of_words(turn.reply.text, answers) - share_of_words(prompt.old_memory, answers)
    return gained + max(0.0, share_of_words(brought, answers) - share_of_words(seen, answers))


def share_of_words(text: str, answers: Sequence[str]) -> float:
    """Return the mean over ``answers`` of the share of their words that ``text`` contains, ignoring case."""
    there = set(_WORD.findall(text.casefold()))
    words = [found for answer in answers if (found := _WORD.findall(answer.casefold()))]
    shares = [sum(word in there for word in found) / len(found) for found in words]
    return sum(shares) / len(shares) if shares else 0.0
