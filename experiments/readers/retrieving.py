"""In-document search (after InfMem, arXiv 2602.02704): the model may request a passage from anywhere in the document.

InfMem separates planning from writing and takes two prompts for each chunk. Here a reply is the memory, and may end
with a search or begin with DONE, so that only a search costs a prompt of its own. The authors' early-stop reward is, in
a recipe, ``[rewards]`` with ``stop = 0.6``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from experiments.readers.gated import DONE, ends_with_gate, open_done, write_gate
from experiments.readers.recall import REQUEST_WORDS, RequestLine
from memagent_lib.diagnostics import Fate
from memagent_lib.readers import Ranking, ReaderSession, passages_of, reader
from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Reply, Trace

if TYPE_CHECKING:
    from memagent_lib.evaluation import Result
    from memagent_lib.sft import Moment

COMMAND = "search"
STOP_DECAY = 0.6
_REQUEST = RequestLine(COMMAND)


def open_search(reply: Reply, memory: str) -> Reply:
    """Return the reply with the resulting memory as its text, and DONE or the search as its signal.

    A reply that begins with DONE ends the reading, so a search in it is malformed.
    """
    return _REQUEST.opened(open_done(reply, memory), memory)


def write_search(memory: str, signal: str) -> str:
    """Return the reply that opens to ``memory`` and ``signal``."""
    return write_gate(memory, signal) if signal == DONE else _REQUEST.written(memory, signal)


def has_command(text: str) -> bool:
    """Return whether an opened text still contains a search, or a gate's word on its last line."""
    return _REQUEST.malformed(text) or ends_with_gate(text)


def teach(moment: Moment) -> str:
    """End the reading or search for words of the question, blindly with the shares ``done`` and ``request``."""
    searches = COMMAND in moment.prompt.kind.commands
    if moment.aware:
        if moment.complete:
            return DONE
        return f"{COMMAND}: {_some_words(moment.prompt.question, moment.rng)}" if searches else ""
    chance = moment.rng.random()
    done = moment.share(DONE, 0.1)
    if chance < done:
        return DONE
    if not searches or chance - done >= moment.share("request", 0.25):
        return ""
    return f"{COMMAND}: {_some_words(moment.rng.choice([moment.prompt.question, *moment.memory]), moment.rng)}"


def _some_words(text: str, rng: random.Random) -> str:
    """Draw the last words of a text; the words that a question begins with ("What is the") find nothing."""
    words = text.strip("?!. ").split()
    count = min(len(words), REQUEST_WORDS)
    start = max(0, len(words) - count - rng.randint(0, 1))
    return " ".join(words[start : start + count])


SEARCH = Kind(
    "search",
    reads=True,
    commands={DONE: "stopped reading here", COMMAND: "searches the document for"},
    opened=open_search,
    written=write_search,
    malformed=has_command,
    taught=teach,
    words="If something that the question needs is missing from memory and text, end the reply with a line that begins "
    "with SEARCH: and names it in a few words; you will then see the passage of the document that matches them best. "
    "If the memory already holds all that the question needs, begin the reply with the single word DONE, then a line "
    "break, then the memory.",
)
FOUND = Kind(
    "found",
    reads=True,
    commands={DONE: "stopped reading here"},
    opened=open_done,
    written=write_gate,
    malformed=has_command,
    taught=teach,
    words="The text is a passage that your search found. If the memory then holds all that the question needs, begin "
    "the reply with the single word DONE, then a line break, then the memory.",
)


@reader({SEARCH: 1, FOUND: 1, Kind.ANSWER: 1})
def retrieving(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
    """Read like ``overwrite``, but let the model search the whole document, read or unread, or end the reading (DONE).

    If the reply to a chunk ends with a line "SEARCH: words", the next prompt displays the passage that best matches the
    words (BM25), and then the reading continues with the next chunk. A passage is at most a quarter of a chunk. Those
    of the chunk just read and those that a search has displayed before are never found. A reply to a passage cannot
    search again, so a document of ``n`` chunks takes at most ``2 n + 1`` turns. In the trace, the search is the reply's
    ``signal``. All chunks are needed at once, so the whole document is loaded.
    """
    parts = list(chunks)
    passages = [passage for part in parts for passage in passages_of(part)]
    ranking = Ranking([passage.text for passage in passages])
    displayed: set[int] = set()
    turns = []
    memory = NO_MEMORY
    for part in parts:
        turn = yield Prompt(SEARCH, question, memory, part)
        turns.append(turn)
        memory = turn.reply.text
        found = _best(ranking, _REQUEST.words(turn.reply.signal), passages, part, displayed)
        if found is not None:
            displayed.add(found)
            turn = yield Prompt(FOUND, question, memory, passages[found])
            turns.append(turn)
            memory = turn.reply.text
        if turn.reply.signal == DONE:
            break
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer))


def _best(ranking: Ranking, words: str, passages: list[Chunk], last: Chunk, displayed: set[int]) -> int | None:
    """Return the best passage for ``words`` that is neither of the chunk ``last`` nor ``displayed`` before, or None."""
    best = ranking.ranked(words)
    return next((i for i in best if i not in displayed and passages[i].index != last.index), None)


def stop(result: Result) -> float:
    """Return ``STOP_DECAY ** d``, where ``d`` counts the turns after the first memory with all of the evidence.

    Without known evidence, a memory with an answer counts. Returns 0 if there is no such memory.
    """
    reads = [number for number, turn in enumerate(result.trace.turns) if turn.prompt.kind.reads]
    fates = [history.fates for history in result.diagnosis.histories]
    complete = [bool(fates) and all(fate[number] is Fate.IN_MEMORY for fate in fates) for number in reads]
    if True not in complete:
        return 0.0
    return STOP_DECAY ** (len(complete) - 1 - complete.index(True))
