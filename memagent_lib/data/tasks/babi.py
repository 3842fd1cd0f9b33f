"""Small worlds of people who walk about and carry things, told in facts that are hidden in prose (tasks qa1 to qa5).

The five questions are those of bAbI (Weston et al. 2015) that BABILong hides in books; people, places and sentences are
ours, and there are more places, so that guessing pays less. What is asked, and how many facts it takes, is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from memagent_lib.data.drafting import ExampleKey, Fact, Plan
from memagent_lib.data.tasks.presets import Preset, require_at_least
from memagent_lib.data.tasks.words import distinct, prose, terms

PEOPLE = ("Agnes", "Bruno", "Clara", "Dimitri", "Esther", "Farid", "Greta", "Hamid")
PLACES = terms(
    "attic barn cellar courtyard dairy forge gallery greenhouse "
    "laundry library orchard pantry parlour stable studio workshop"
)
OBJECTS = ("compass", "flute", "goblet", "hammer", "ledger", "mirror", "notebook", "teapot")
_MOVES = (
    "{who} went to the {place}.",
    "{who} walked over to the {place}.",
    "{who} is off to the {place}.",
    "{who} hurried to the {place}.",
)
_TAKES = ("{who} took the {thing}.", "{who} picked up the {thing}.", "{who} grabbed the {thing}.")
_DROPS = ("{who} put down the {thing}.", "{who} left the {thing} there.", "{who} set the {thing} aside.")
_GIVES = (
    "{who} gave the {thing} to {other}.",
    "{who} handed the {thing} to {other}.",
    "{who} passed the {thing} to {other}.",
)
_SIDES = {"north": "south", "south": "north", "east": "west", "west": "east"}
Told = tuple[list[str], list[int], str, str, float]
"""Facts in order, the places of those that are needed, question, answer, and the chance of a good guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """bAbI-style task ``number`` (1 to 5) with about ``events`` facts.

    1: where is a person; 2: where is a thing; 3: where was a thing before; 4: what lies next to what; 5: who gave what
    to whom.
    """

    number: int = 1
    events: int = 14

    def __post_init__(self) -> None:
        if self.number not in _STORIES:
            raise ValueError(f"number must be one of 1 to 5, got {self.number}")
        require_at_least(8, events=self.events)

    def plan(self, key: ExampleKey) -> Plan:
        rng = key.rng()
        told, needed, question, answer, chance = _STORIES[self.number](rng, self.events)
        depths = sorted(rng.random() for _ in told)
        facts = [
            (Fact.needed if place in needed else Fact)(sentence, depth)
            for place, (sentence, depth) in enumerate(zip(told, depths, strict=True))
        ]
        return Plan(
            question=question,
            answers=(answer,),
            facts=tuple(facts),
            filler=prose(rng.getrandbits(64)),
            rule="one_of:" + "|".join(label for label in _labels(self.number) if label not in question),
            separator=" ",
            metadata={"supports": len(needed), "chance": round(chance, 4)},
        )


def _labels(number: int) -> tuple[str, ...]:
    """What an answer can be: a reply that names two of these, the question's own aside, has not answered."""
    return (*PEOPLE, *OBJECTS) if number == 5 else PLACES


def _say(rng: random.Random, forms: tuple[str, ...], **parts: str) -> str:
    return rng.choice(forms).format(**parts)


def _where_is_who(rng: random.Random, events: int) -> Told:
    people, facts, last = rng.sample(PEOPLE, 4), [], {}
    for _ in range(events):
        who, place = rng.choice(people), rng.choice(PLACES)
        last[who] = (len(facts), place)
        facts.append(_say(rng, _MOVES, who=who, place=place))
    who = rng.choice(sorted(last))
    at, place = last[who]
    return facts, [at], f"Where is {who} now?", place, 1 / len(PLACES)


class _Carried:
    """People who walk about; ``track`` follows the thing that will be asked about: the fact and place of each stop it
    makes.
    """

    def __init__(self, rng: random.Random):
        self.rng, self.facts = rng, list[str]()
        self.people, (self.thing, *self.others) = rng.sample(PEOPLE, 3), rng.sample(OBJECTS, 3)
        self.holder: str | None = None
        self.taken = -1
        self.spot: dict[str, tuple[int, str]] = {}
        self.track: list[tuple[int, str]] = []

    def move(self, who: str) -> None:
        here = self.spot.get(who, (0, ""))[1]
        place = self.rng.choice([p for p in PLACES if p != here])
        self.spot[who] = (len(self.facts), place)
        if who == self.holder:
            self.track.append((len(self.facts), place))
        self.facts.append(_say(self.rng, _MOVES, who=who, place=place))

    def take(self, who: str) -> None:
        self.holder, self.taken = who, len(self.facts)
        if not self.track:
            self.track.append(self.spot[who])
        self.facts.append(_say(self.rng, _TAKES, who=who, thing=self.thing))

    def drop(self) -> None:
        self.facts.append(_say(self.rng, _DROPS, who=self.holder or "", thing=self.thing))
        self.holder = None

    def chatter(self) -> None:
        """Somebody who does not hold the thing walks, or picks up something else."""
        who = self.rng.choice([p for p in self.people if p != self.holder])
        if self.others and who in self.spot and self.rng.random() < 0.15:
            self.facts.append(_say(self.rng, _TAKES, who=who, thing=self.others.pop()))
        else:
            self.move(who)


def _carried(rng: random.Random, events: int, stops: int) -> _Carried:
    """One person takes the thing somewhere and carries it to ``stops`` more places, amid the walks of others."""
    story = _Carried(rng)
    who = rng.choice(story.people)
    steps: list[Callable[[], None]] = [
        lambda: story.move(who),
        lambda: story.take(who),
        *[lambda: story.move(who)] * stops,
    ]
    if rng.random() < 0.5:
        steps.append(story.drop)
    after = rng.randrange(3)  # walks once the thing has found its place, the carrier's own among them
    slots = sorted(rng.randrange(max(1, events - len(steps) - after)) for _ in steps)
    for slot, step in zip(slots, steps, strict=True):
        while len(story.facts) < slot:
            story.chatter()
        step()
    for _ in range(after):
        (story.chatter if story.holder else lambda: story.move(rng.choice(story.people)))()
    return story


def _where_is_what(rng: random.Random, events: int) -> Told:
    story = _carried(rng, events, stops=1 + rng.randrange(2))
    at, place = story.track[-1]
    return story.facts, sorted({at, story.taken}), f"Where is the {story.thing}?", place, 1 / len(PLACES)


def _where_was_what(rng: random.Random, events: int) -> Told:
    story = _carried(rng, events, stops=2 + rng.randrange(2))
    places = [place for _, place in story.track]
    if places.count(places[-1]) > 1:  # "before the attic" must mean one moment
        return _where_was_what(rng, events)
    (before, answer), (at, place) = story.track[-2:]
    question = f"Where was the {story.thing} before it was in the {place}?"
    return story.facts, sorted({before, at, story.taken}), question, answer, 1 / (len(PLACES) - 1)


def _what_lies_where(rng: random.Random, events: int) -> Told:
    spots = rng.sample(PLACES, min(len(PLACES), events + 1) // 2 * 2)
    facts, pairs = [], []
    for a, b in zip(spots[::2], spots[1::2], strict=True):
        side = rng.choice(sorted(_SIDES))
        pairs.append((a, side, b))
        facts.append(f"The {a} lies {side} of the {b}.")
    at = rng.randrange(len(pairs))
    a, side, b = pairs[at]
    if rng.random() < 0.5:
        return facts, [at], f"What lies {side} of the {b}?", a, 1 / (len(PLACES) - 1)
    return facts, [at], f"What is the {a} {side} of?", b, 1 / (len(PLACES) - 1)


def _who_gave_what(rng: random.Random, events: int) -> Told:
    facts, gifts = [], []
    pairs = distinct(lambda draw: " ".join(draw.sample(PEOPLE, 2)), len(OBJECTS), rng)
    for thing, pair in zip(rng.sample(OBJECTS, len(OBJECTS)), pairs, strict=True):
        who, other = pair.split()
        if len(facts) + 2 > max(events, 8):
            break
        facts.append(_say(rng, _TAKES, who=who, thing=thing))
        gifts.append((len(facts), who, thing, other))
        facts.append(_say(rng, _GIVES, who=who, thing=thing, other=other))
    at, who, thing, other = rng.choice(gifts)
    asked = rng.randrange(3)
    if asked == 0:
        return facts, [at], f"Who gave the {thing} to {other}?", who, 1 / (len(PEOPLE) - 1)
    if asked == 1:
        return facts, [at], f"To whom did {who} give the {thing}?", other, 1 / (len(PEOPLE) - 1)
    return facts, [at], f"What did {who} give to {other}?", thing, 1 / len(OBJECTS)


_STORIES = {1: _where_is_who, 2: _where_is_what, 3: _where_was_what, 4: _what_lies_where, 5: _who_gave_what}


def _preset(number: int, asks: str, chance: float) -> Preset:
    return Preset(task=Story(number=number), asks=asks, family="BABILong-style", chance=chance)


PRESETS = {
    "qa1": _preset(1, "where a person is", 1 / 16),
    "qa2": _preset(2, "where a thing is", 1 / 16),
    "qa3": _preset(3, "where a thing was before", 1 / 15),
    "qa4": _preset(4, "what lies next to what", 1 / 15),
    "qa5": _preset(5, "who gave what to whom", 1 / 7),
}
