"""The inspector's content as plain JSON types: the list of readings, the story of one, the detail of one turn.

A long reading is sent in two parts: first its story (a few numbers for every turn), then a turn's texts when somebody
opens that turn. Turns and chunks are numbered from 0 here and from 1 on the page. This module depends on results and
their diagnosis, not on the widget or HTML.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from memagent_lib.diagnostics import Fate, Provenance, evidence_in
from memagent_lib.documents import plain
from memagent_lib.errors import nearest
from memagent_lib.evaluation import COLUMNS, Result, line_name
from memagent_lib.journal import digest
from memagent_lib.readers import can_continue, signal_in_words
from memagent_lib.trace import Kind, Reply, Trace, Turn


class FateOnPage(NamedTuple):
    """The forms of a fate on the page: one letter in a story, a CSS class, and words."""

    fate: Fate | None
    letter: str
    css: str

    @property
    def words(self) -> str:
        return str(self.fate) if self.fate else "no memory"


# The same letters and classes stand in inspector.js, the classes in inspector.css.
FATES = (
    FateOnPage(Fate.AHEAD, "a", "ahead"),
    FateOnPage(Fate.IN_MEMORY, "h", "present"),
    FateOnPage(Fate.MISSED, "m", "missed"),
    FateOnPage(Fate.LOST, "l", "lost"),
    FateOnPage(None, "n", "none"),
)
MOST_PHRASES = 200
MOST_NOTABLE = 8
_LETTER_OF = {fate.fate: fate.letter for fate in FATES}
_ANSWER_CHARS = 200


class Readings:
    """The results of one or more policies by key, those of each policy with the lowest scores first.

    A reading's key consists of its policy, reader, length, document, task, question, and example or rollout. Results
    without a trace are left out.
    """

    def __init__(self, results: Mapping[str, Iterable[Result]]):
        self.results: dict[str, Result] = {}
        self.policies: dict[str, str] = {}  # apart from the key, because a policy's name may contain a slash
        # For beside(): to scan all readings for each of them would take quadratic time.
        self._of_question: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
        for policy, of_policy in results.items():
            for result in sorted((r for r in of_policy if r.trace is not None), key=_value):
                self.add(policy, result)

    def add(self, policy: str, result: Result) -> str:
        """Add a result and return its key."""
        example = result.example
        length = example.metadata.get("chunks", "")
        question = digest(example.question)[:6]
        name = example.metadata.get("rollout") or example.id  # the rollouts of a prompt share its example
        key = f"{policy}/{result.reader}/{length}/{result.document}/{example.task}/{question}/{name}"
        if key not in self.results:
            self._of_question[example.id, result.document, example.question].append(key)
        self.results[key] = result
        self.policies[key] = policy
        return key

    def catalog(self) -> list[dict[str, Any]]:
        """Return the :meth:`entry` of every reading."""
        return [self.entry(key) for key in self.results]

    def entry(self, key: str) -> dict[str, Any]:
        """Return what the list of readings displays about one reading, and the tags to filter it by."""
        result = self.results[key]
        policy = self.policies[key]
        example = result.example
        return {
            "key": key,
            "policy": policy,
            "reader": result.reader,
            "line": line_name(policy, result.reader),
            "name": self.name(key),
            "example": example.id,
            "chunks": example.metadata.get("chunks"),
            "document": result.document,  # a hash: examples of two files may share an id
            "question": example.question,
            "answers": list(example.answers),
            # The list has every reading; full answers would make it megabytes.
            "answer": _shortened(plain(result.trace.answer)),
            "found": result.score and _shortened(str(result.score.answer or "")),
            "score": _value(result),
            "right": result.correct,
            "task": example.task,
            "fate": str(result.diagnosis.fate or ""),
            "turns": result.turns,
            "tokens": result.tokens,
            "seconds": round(result.seconds, 2),
            "sharing": str(result.sharing or ""),
            "credit": example.metadata.get("credit", ""),
            "rows": example.metadata.get("rows") if "rollout" in example.metadata else None,
            "fates": _tags(result),
            "outcomes": COLUMNS["outcomes"].value(result) or "",
        }

    def name(self, key: str) -> str:
        """Return a name that no other reading of the same question has: its line, and its number as a rollout."""
        result = self.results[key]
        line = line_name(self.policies[key], result.reader)
        rollout = result.example.metadata.get("rollout", "").rpartition("_")[2]
        return f"{line}, rollout {rollout}" if rollout else line

    def story(self, key: str) -> dict[str, Any]:
        """Return the story of a reading: a few numbers for every turn.

        Three entries have one value per turn. ``fates`` is a string of letters for the evidence's fate, ``tokens`` has
        the length of each reply, and ``starts`` the position of each chunk in the document (-1 without a chunk). Four
        entries are lists of turns. ``evidence`` has those whose chunk contains evidence, ``changes`` also those at
        which the fate changes, ``cut`` those with a truncated reply, and ``bad`` those whose reply was not a memory.
        ``first`` is the turn to open first. ``credit`` has what each turn of a rollout was trained with.
        """
        result = self.results[key]
        turns = result.trace.turns
        credit = result.example.metadata.get("credit")
        fates = result.diagnosis.fates
        evidence = [i for i, turn in enumerate(turns) if evidence_in(turn, result.example.evidence)]
        firsts = [fates.index(fate) for fate in (Fate.LOST, Fate.MISSED, Fate.IN_MEMORY) if fate in fates]
        return {
            "fates": "".join(_LETTER_OF[fate] for fate in fates),
            # A scripted or imported reply has no count of tokens; its characters give the bar a height.
            "tokens": [turn.reply.reply_tokens or len(turn.reply.text) for turn in turns],
            "starts": [turn.prompt.chunk.start if turn.prompt.chunk else -1 for turn in turns],
            "evidence": evidence,
            "changes": sorted({*evidence, *result.diagnosis.changes}),
            "first": firsts[0] if firsts else 0,
            "cut": [i for i, turn in enumerate(turns) if turn.reply.cut],
            "bad": [i for i, turn in enumerate(turns) if turn.bad_memory],
            "credit": credit.by_turn(turns) if credit else [],
        }

    def detail(self, key: str, turn: int) -> dict[str, Any]:
        """Return one turn with its texts: the chunk and its evidence, the changes to the memory, the token counts.

        ``brought`` lists the spans of the chunk whose words the reply copied.
        """
        result = self.results[key]
        this = result.trace.turns[turn]
        prompt = this.prompt
        reply = this.reply
        fate = result.diagnosis.fates[turn]
        before = _memory_before(result.trace.turns, turn)
        is_same = before in (None, reply.text)  # as most memories are; comparing takes milliseconds
        changes = [[reply.text, "same"]] * bool(reply.text) if is_same else word_changes(before, reply.text)
        return {
            "turn": turn,
            "kind": str(prompt.kind),
            "fate": str(fate) if fate else "",
            "letter": _LETTER_OF[fate],
            # The "chunk" of a merge is the other memory, not a part of the document.
            "chunk": asdict(prompt.chunk) if prompt.chunk and prompt.kind != Kind.MERGE else None,
            "evidence": [list(span) for span in evidence_in(this, result.example.evidence)],
            "brought": [] if before == reply.text else _brought(this),
            "changes": changes,
            "after": reply.text,
            "thinking": reply.thinking,
            "signal": _signal(result.trace.reader, reply),
            "cut": reply.cut,
            "bad": str(this.bad_memory or ""),
            "turned_away": [each.text for each in this.bad_memory.replies] if this.bad_memory else [],
            "edited": reply.finish_reason == "edited",
            "tokens": [reply.prompt_tokens, reply.cached_tokens, reply.reply_tokens],
            # A reading that several questions share was read before this question was known, and one of a long
            # document may be saved without its text.
            "editable": bool(prompt.chunk and prompt.chunk.text)
            and prompt.kind.reads
            and not result.sharing
            and can_continue(result.trace.reader),
        }

    def phrases(self, key: str) -> dict[str, Any]:
        """Return at most 200 phrases of a reading's memories with their sources, and the total number of phrases."""
        phrases = Provenance.of(self.results[key].trace).phrases
        names = ("text", "start", "end", "brought", "dropped")
        rows = [{name: getattr(phrase, name) for name in names} for phrase in phrases[:MOST_PHRASES]]
        return {"phrases": rows, "all": len(phrases)}

    def search(self, text: str) -> list[str]:
        """Return the keys of the readings with ``text`` in question, id, accepted answers or a reply, ignoring case."""
        wanted = text.casefold()
        found = []
        for key, result in self.results.items():
            example = result.example
            texts = [example.question, example.id, *example.answers, *(turn.reply.text for turn in result.trace.turns)]
            if any(wanted in text.casefold() for text in texts):
                found.append(key)
        return found

    def notable(self, key: str) -> list[int]:
        """Return at most 8 turns, those to display if not all fit.

        In order of importance these are the last two turns, turns with evidence or a change of fate, the first turn,
        and truncated replies.
        """
        story = self.story(key)
        last = range(len(story["fates"]))[-2:]
        # In order of importance, because only the first few stay.
        turns = dict.fromkeys((*last, *story["changes"], 0, *story["cut"]))
        return sorted(islice(turns, MOST_NOTABLE))

    def opening(
        self,
        policy: str = "",
        reader: str = "",
        chunks: int = 0,
        example: str = "",
        beside: str | None = None,
        turn: int | None = None,
    ) -> dict[str, Any]:
        """Return the inspector's initial state: a failure where another policy was right, if any that lost evidence.

        Only captured evidence counts as lost here. Otherwise it is the reading that comes closest to that. It opens at
        the turn that lost the evidence, or at the ``first`` turn of its :meth:`story`. Arguments narrow the choice; an
        unknown value raises ``ValueError`` with the known ones. ``beside`` is the other reading's policy (with its
        reader, unless that is ``overwrite``), or ``""`` for none; ``turn`` is numbered from 1.
        """
        entries = self.catalog()
        if not entries:
            raise ValueError("no readings with a trace to look into; 03_evaluate saves some of every evaluation")
        for field, wanted in (("policy", policy), ("reader", reader), ("chunks", chunks), ("example", example)):
            entries = _narrowed(entries, field, wanted)
        others = {entry["key"]: self.beside(entry, beside) for entry in entries}

        def worth(entry: dict[str, Any]) -> tuple[bool, ...]:  # the smallest is best: False sorts before True
            other = others[entry["key"]]
            histories = self.results[entry["key"]].diagnosis.histories
            return (
                entry["right"],
                not (other and other["right"]),
                not any(history.retained is False and Fate.LOST in history.fates for history in histories),
                bool(other and str(Fate.LOST) in other["fates"]),
                not entry["fates"],
            )

        chosen = min(entries, key=worth)
        other = others[chosen["key"]]
        if beside and other is None:
            names = dict.fromkeys(entry["name"] for entry in self.catalog())
            known = f"choose from {', '.join(names)}{nearest(beside, names)}"
            raise ValueError(f"beside: no reading of the same example by {beside!r}; {known}")
        return {
            "policy": chosen["policy"],
            "key": chosen["key"],
            "beside": other["name"] if other else "",
            "turn": self.story(chosen["key"])["first"] if turn is None else turn - 1,
            "reader": reader,
            "length": str(chunks or ""),
        }

    def displayed(self, state: Mapping[str, Any]) -> list[str]:
        """Return the keys of the readings that a state of the inspector displays: one, or two side by side."""
        other = self.beside(self.entry(state["key"]), state["beside"])
        return [state["key"], other["key"]] if other else [state["key"]]

    def embedded(self, keys: Sequence[str], room: float) -> dict[str, Any]:
        """Return the stories of readings, and the texts of as many turns as fit into ``room`` bytes.

        If not all turns of a reading fit, only the notable ones are included, or none if these do not fit either.
        """
        stories: dict[str, Any] = {}
        details: dict[str, Any] = {}
        phrases: dict[str, Any] = {}
        for key in keys:
            stories[key] = self.story(key)
            turns = self.results[key].trace.turns
            # All turns if they fit, else the notable ones, else none.
            for chosen in (range(len(turns)), self.notable(key)):
                size = sum(_size(turns[i]) for i in chosen)
                if size <= room:
                    room -= size
                    details[key] = {i: self.detail(key, i) for i in chosen}
                    break
            # Phrases span the whole reading, so some turns alone could not display them.
            if len(details.get(key, ())) == len(turns):
                phrases[key] = self.phrases(key)
        return {"stories": stories, "details": details, "phrases": phrases}

    def pack(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return all stories and texts of one question's readings, with the text of each chunk only once.

        In ``details``, the text of a chunk is its index in ``texts``.
        """
        pack = self.embedded(keys, inf)
        numbers: dict[str, int] = {}
        for turns in pack["details"].values():
            for detail in filter(itemgetter("chunk"), turns.values()):
                at = numbers.setdefault(detail["chunk"]["text"], len(numbers))
                detail["chunk"] = detail["chunk"] | {"text": at}
        return {"texts": list(numbers), **pack}

    def size(self, key: str) -> int:
        """Estimate how many bytes the texts of a reading take before compression."""
        return sum(map(_size, self.results[key].trace.turns))

    def beside(self, entry: Mapping[str, Any], name: str | None) -> dict[str, Any] | None:
        """Return the reading ``name`` for the same question.

        By default, it is the same reader's with the most different score: a rollout of the same group, if there is one.
        """
        keys = self._of_question[entry["example"], entry["document"], entry["question"]]
        others = [key for key in keys if key != entry["key"]]

        def contrast(key: str) -> tuple[bool, float]:
            return self.policies[key] == entry["policy"], abs(_value(self.results[key]) - entry["score"])

        if name is None:
            others = [key for key in others if self.results[key].reader == entry["reader"]]
            return self.entry(max(others, key=contrast)) if others else None
        return next((self.entry(key) for key in others if self.name(key) == name), None)


def _narrowed(entries: list[dict[str, Any]], field: str, wanted: str | int) -> list[dict[str, Any]]:
    if not wanted:
        return entries
    matching = [entry for entry in entries if entry[field] == wanted]
    if not matching:
        known = dict.fromkeys(str(entry[field]) for entry in entries)
        listed = ", ".join(islice(known, 20))
        raise ValueError(f"{field}: no readings of {wanted!r}; choose from {listed}{nearest(wanted, known)}")
    return matching


def _tags(result: Result) -> list[str]:
    """Return what happened to the evidence, as tags to filter by.

    Evidence is tagged as lost at any time, as read but never in memory, or as in memory at the end. A truncated memory
    and a reply that was not a memory have their own tags.
    """
    fates = result.diagnosis.fates
    # Several tags may apply: evidence can be lost and found again.
    tags = {
        str(Fate.LOST): Fate.LOST in fates,
        str(Fate.MISSED): Fate.MISSED in fates and Fate.IN_MEMORY not in fates,
        str(Fate.IN_MEMORY): bool(fates) and fates[-1] is Fate.IN_MEMORY,
        "memory cut at its limit": result.trace.cut_memories,
        "a reply was not a memory": result.trace.bad_memories,
    }
    return [tag for tag, applies in tags.items() if applies]


def _shortened(answer: str) -> str:
    return answer if len(answer) <= _ANSWER_CHARS else answer[: _ANSWER_CHARS - 1] + "…"


def _signal(reader: str, reply: Reply) -> str:
    signal = signal_in_words(reader, reply.signal)
    refused = f"the server refused {reply.sampling_left_out}" if reply.sampling_left_out else ""
    return "; ".join(filter(None, (signal, refused)))


def _memory_before(turns: Sequence[Turn], at: int) -> str | None:
    """Return the memory that a turn's reply replaced, both memories of a merge, or ``None`` if it replaced none."""
    prompt = turns[at].prompt
    if prompt.kind == Kind.MERGE and prompt.chunk:
        return f"{prompt.memory}\n{prompt.chunk.text}"
    if not prompt.kind.reads:
        return None
    # A recalled memory stands behind the one that is replaced. It was no part of it, so its words are not gone. Saved
    # traces have the two as one text, which begins with the memory that the turn before wrote.
    if prompt.replaced is None and prompt.memories > 1 and at:
        written = turns[at - 1].reply.text
        if prompt.memory.startswith(written):
            return written
    return prompt.old_memory


def _brought(turn: Turn) -> list[list[int]]:
    """Return the spans of a turn's chunk whose words the reply copied."""
    chunk = turn.prompt.chunk
    if not turn.prompt.kind.reads or chunk is None:
        return []
    # A trace of this turn alone: what was in memory before does not matter here.
    new_phrases = Provenance.of(Trace(turn.prompt.question, (turn,))).phrases
    return [[phrase.start - chunk.start, phrase.end - chunk.start] for phrase in new_phrases]


def _size(turn: Turn) -> int:
    """Estimate how many bytes the texts of a turn take. The page contains a reply about three times."""
    chunk = turn.prompt.chunk
    return 300 + (len(chunk.text) if chunk else 0) + 3 * len(turn.reply.text)


def _value(result: Result) -> float:
    return result.score.value if result.score else 0.0


def word_changes(before: str, after: str) -> list[list[str]]:
    """Return all words of both texts with their change, in order: ``same``, only in the first (``gone``), or ``new``.

    Words that both texts share appear once. White space between changes counts as changed, because alternating old and
    new words would be unreadable.
    """
    # White space counts as a word, so that the changes together are the whole text.
    old, new = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (before, after))
    # autojunk would ignore frequent words, and a memory is made of them.
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes: list[list[str]] = []
    gone = added = ""
    for at, (what, old_start, old_end, new_start, new_end) in enumerate(opcodes):
        text = "".join(old[old_start:old_end])
        if what != "equal" or (0 < at < len(opcodes) - 1 and not text.strip()):
            gone += text
            added += "".join(new[new_start:new_end])
        else:
            changes += [[gone, "gone"], [added, "new"], [text, "same"]]
            gone = added = ""
    changes += [[gone, "gone"], [added, "new"]]
    return [change for change in changes if change[0]]
