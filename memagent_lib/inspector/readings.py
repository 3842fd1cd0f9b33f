"""What the inspector shows, as plain JSON types: a list of readings, the story of one, the detail of one turn.

A long reading is sent in two parts: a story with a few numbers per turn, whole, and the texts of a turn when somebody
looks. Turns and chunks are counted from 0 here, and from 1 by whoever shows them. Knows results and their diagnosis;
knows no widget and no HTML.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from memagent_lib.diagnostics import Fate, Provenance, evidence_in
from memagent_lib.evaluation import Result
from memagent_lib.inspector.word_changes import word_changes
from memagent_lib.plots import line_name
from memagent_lib.readers import can_continue
from memagent_lib.trace import Kind, Trace, Turn

LETTERS = {Fate.AHEAD: "a", Fate.IN_MEMORY: "h", Fate.MISSED: "m", Fate.LOST: "l", None: "n"}
SIGNALS = {"keep": "kept its memory as it was", "done": "stopped reading here"}
CUT = "memory cut at its limit"
PHRASES, NOTABLE = 200, 8
_ANSWER_CHARS = 200


class Readings:
    """Results of one or more policies by name, failures first; each is found by policy, reader, example and length."""

    def __init__(self, results: Mapping[str, Iterable[Result]]):
        self.results: dict[str, Result] = {}
        self.policies: dict[str, str] = {}  # by key, as results are; a policy's name may hold any sign
        self._of_document: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for policy, found in results.items():
            for result in sorted((r for r in found if r.trace is not None), key=_value):
                self.add(policy, result)

    def add(self, policy: str, result: Result) -> str:
        """Take one more reading in; returns its key."""
        example = result.example
        key = f"{policy}/{result.reader}/{example.metadata.get('chunks', '')}/{result.document}/{example.id}"
        if key not in self.results:
            self._of_document[example.id, result.document].append(key)
        self.results[key], self.policies[key] = result, policy
        return key

    def catalog(self) -> list[dict[str, Any]]:
        """One entry per reading: what a list of them needs, and what it can be filtered by."""
        return [self.entry(key) for key in self.results]

    def entry(self, key: str) -> dict[str, Any]:
        result, policy = self._result(key), self.policies[key]
        e, value = result.example, _value(result)
        return {
            "key": key,
            "policy": policy,
            "reader": result.reader,
            "name": line_name(policy, result.reader),
            "example": e.id,
            "chunks": e.metadata.get("chunks"),
            "document": result.document,
            "question": e.question,
            "answers": list(e.answers),
            "answer": result.trace.answer[:_ANSWER_CHARS],
            "score": value,
            "right": result.correct,
            "turns": len(result.trace.turns),
            "fates": _tags(result),
        }

    def story(self, key: str) -> dict[str, Any]:
        """Every turn in a few numbers: the fate of the facts as a letter, tokens of the reply, the place of its chunk.

        Also the turns with evidence in their chunk, with those the turns after which the fate is another one, the turn
        to look at first, and the turns whose reply was cut.
        """
        result = self._result(key)
        turns, fates = result.trace.turns, result.diagnosis.fates
        evidence = [i for i, turn in enumerate(turns) if evidence_in(turn, result.example.evidence)]
        return {
            "fates": "".join(LETTERS[fate] for fate in fates),
            "tokens": [turn.reply.reply_tokens or len(turn.reply.text) for turn in turns],
            "starts": [turn.prompt.chunk.start if turn.prompt.chunk else -1 for turn in turns],
            "evidence": evidence,
            "changes": sorted({*evidence, *result.diagnosis.changes}),
            "first": next((fates.index(fate) for fate in (Fate.LOST, Fate.MISSED, Fate.IN_MEMORY) if fate in fates), 0),
            "cut": [i for i, turn in enumerate(turns) if turn.reply.cut],
        }

    def detail(self, key: str, turn: int) -> dict[str, Any]:
        """One turn with its texts: chunk and evidence, what the reply changed, what came in, tokens."""
        result = self._result(key)
        this = result.trace.turns[turn]
        prompt, reply = this.prompt, this.reply
        fate, before = result.diagnosis.fates[turn], _before(this)
        return {
            "turn": turn,
            "kind": str(prompt.kind),
            "fate": str(fate) if fate else "",
            "letter": LETTERS[fate],
            "chunk": asdict(prompt.chunk) if prompt.chunk and prompt.kind != Kind.MERGE else None,
            "evidence": [list(span) for span in evidence_in(this, result.example.evidence)],
            "brought": _brought(this),
            "changes": [[reply.text, "same"]] if before is None else list(map(list, word_changes(before, reply.text))),
            "after": reply.text,
            "thinking": reply.thinking,
            "signal": SIGNALS.get(reply.signal, reply.signal.replace("recall: ", "looks back for: ")),
            "cut": reply.cut,
            "edited": reply.finish_reason == "edited",
            "tokens": [reply.prompt_tokens, reply.cached_tokens, reply.reply_tokens],
            "editable": prompt.kind.reads and can_continue(result.trace.reader),
        }

    def phrases(self, key: str) -> dict[str, Any]:
        """Where the memories' words came from: the first :data:`PHRASES` phrases, and how many there are."""
        found = Provenance.of(self._result(key).trace).phrases
        names = ("text", "start", "end", "brought", "dropped")
        return {"phrases": [{n: getattr(p, n) for n in names} for p in found[:PHRASES]], "all": len(found)}

    def search(self, text: str) -> list[str]:
        """The keys of the readings that have the words in their question, answers or a memory, whatever their case."""
        wanted = text.casefold()
        return [key for key, result in self.results.items() if any(wanted in said.casefold() for said in _said(result))]

    def notable(self, key: str) -> list[int]:
        """The turns to show when not all can be: evidence, changes of fate, cuts, the last read, the answer."""
        story = self.story(key)
        last = range(len(story["fates"]))[-2:]
        return sorted(islice(dict.fromkeys((*last, *story["changes"], 0, *story["cut"])), NOTABLE))

    def opening(
        self,
        policy: str = "",
        reader: str = "",
        chunks: int = 0,
        example: str = "",
        beside: str | None = None,
        turn: int | None = None,
    ) -> dict[str, Any]:
        """Where to begin: the first failure that lost a fact and that another policy got right, at the turn of the
        loss.

        What is given narrows the choice; an unknown name is an error that lists the known ones. ``beside`` is the other
        reading's policy (with its reader, unless that is ``overwrite``), ``""`` for none; ``turn`` counts from 1.
        """
        entries = self.catalog()
        for what, wanted in (("policy", policy), ("reader", reader), ("chunks", chunks), ("example", example)):
            entries = _narrowed(entries, what, wanted)
        others = {entry["key"]: self.beside(entry, beside) for entry in entries}

        def worth(entry: dict[str, Any]) -> tuple[bool, ...]:
            other = others[entry["key"]]
            return (
                entry["right"],
                str(Fate.LOST) not in entry["fates"],
                not (other and other["right"]),
                bool(other and str(Fate.LOST) in other["fates"]),
                not entry["fates"],
            )

        chosen = min(entries, key=worth)
        other, at = others[chosen["key"]], self.story(chosen["key"])["first"] if turn is None else turn - 1
        if beside and other is None:
            names = ", ".join(dict.fromkeys(entry["name"] for entry in self.catalog()))
            raise ValueError(f"beside: no reading of the same example by {beside!r}; there are those of {names}")
        shown = {"key": chosen["key"], "beside": other["name"] if other else "", "turn": at}
        filters = {"reader": reader, "length": "", "fate": "", "score": "", "search": ""}
        return {"policy": chosen["policy"], **shown, **filters}

    def embedded(self, keys: Sequence[str], room: float) -> dict[str, Any]:
        """Stories and texts of some readings within ``room`` bytes; of a long one the turns that matter."""
        stories, details, phrases = {}, {}, {}
        for key in keys:
            stories[key] = self.story(key)
            turns = range(len(self._result(key).trace.turns))
            for chosen in (turns, self.notable(key)):
                if (size := sum(_size(self._result(key).trace.turns[i]) for i in chosen)) <= room:
                    room -= size
                    details[key] = {i: self.detail(key, i) for i in chosen}
                    break
            if len(details.get(key, ())) == len(turns):
                phrases[key] = self.phrases(key)
        return {"stories": stories, "details": details, "phrases": phrases}

    def beside(self, entry: Mapping[str, Any], name: str | None) -> dict[str, Any] | None:
        """The reading of the same document called ``name``; with ``None``, another policy's by this reader."""
        for key in self._of_document[entry["example"], entry["document"]]:
            policy, reader = self.policies[key], self.results[key].reader
            other = reader == entry["reader"] and policy != entry["policy"]
            if key != entry["key"] and (other if name is None else line_name(policy, reader) == name):
                return self.entry(key)
        return None

    def _result(self, key: str) -> Result:
        if key not in self.results:
            example = next(iter(self.results), "none")
            raise KeyError(f"no reading {key!r}; there are {len(self.results)}, such as {example!r}")
        return self.results[key]


def _narrowed(entries: list[dict[str, Any]], what: str, wanted: str | int) -> list[dict[str, Any]]:
    found = [entry for entry in entries if not wanted or entry[what] == wanted]
    if not found:
        known = ", ".join(list(dict.fromkeys(str(entry[what]) for entry in entries))[:20])
        raise ValueError(f"{what}: no readings of {wanted!r}; there are those of {known}")
    return found


def _tags(result: Result) -> list[str]:
    """What happened to the facts, for filters: lost at any time, never noted, in memory at the end, a memory cut."""
    fates = result.diagnosis.fates
    never = Fate.MISSED in fates and Fate.IN_MEMORY not in fates
    at_the_end = bool(fates) and fates[-1] is Fate.IN_MEMORY
    found = {Fate.LOST: Fate.LOST in fates, Fate.MISSED: never, Fate.IN_MEMORY: at_the_end}
    cut = [CUT] if any(turn.reply.cut for turn in result.trace.turns) else []
    return [str(fate) for fate, is_so in found.items() if is_so] + cut


def _before(turn: Turn) -> str | None:
    """The memory that a turn's reply replaced; ``None`` where it replaced none."""
    if turn.prompt.kind == Kind.MERGE and turn.prompt.chunk:
        return f"{turn.prompt.memory}\n{turn.prompt.chunk.text}"
    return turn.prompt.memory if turn.prompt.kind.reads else None


def _brought(turn: Turn) -> list[list[int]]:
    """The stretches of a turn's chunk whose words its reply took over."""
    chunk = turn.prompt.chunk
    if not turn.prompt.kind.reads or chunk is None:
        return []
    fresh = Provenance.of(Trace(turn.prompt.question, (turn,))).phrases
    return [[phrase.start - chunk.start, phrase.end - chunk.start] for phrase in fresh]


def _said(result: Result) -> Iterable[str]:
    yield from (result.example.question, result.example.id, *result.example.answers)
    yield from (turn.reply.text for turn in result.trace.turns)


def _size(turn: Turn) -> int:
    """About how many bytes the texts of a turn take."""
    return 300 + len(turn.prompt.chunk.text if turn.prompt.chunk else "") + 3 * len(turn.reply.text)


def _value(result: Result) -> float:
    return result.score.value if result.score else 0.0
