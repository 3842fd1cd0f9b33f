"""Recall (after ReMemR1, arXiv 2509.23040): the model may request a past memory by words that occur in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memagent_lib.readers.declaration import ReaderSession, reader, turns_and_memory
from memagent_lib.readers.ranking import Ranking
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace

RECALL_COMMAND = "recall"
_SEAM = "\nFrom an earlier memory:\n"


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


_REQUEST = RequestLine(RECALL_COMMAND)


RECALL = Kind(
    "recall",
    reads=True,
    commands=frozenset((RECALL_COMMAND,)),
    opened=_REQUEST.opened,
    written=_REQUEST.written,
    malformed=_REQUEST.malformed,
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
        turn = replace(turn, reply=_REQUEST.opened(turn.reply, memory))
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
