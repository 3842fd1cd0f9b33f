"""Small worlds of people who walk about and carry things, told in facts that are hidden in prose (tasks qa1 to qa5).

The five questions are those of bAbI (Weston et al. 2015) that BABILong hides in books; people, places and sentences are
ours, and there are more places, so that guessing pays less. What is asked, and how many facts it takes, is the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Interval

from memagent_lib.data.drafting import DraftPlan, ExampleKey
from memagent_lib.data.tasks.presets import Preset
from memagent_lib.data.tasks.words import story, terms

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


class Told(NamedTuple):
    """Facts in order, the places of those that are needed, question, answer, and what a good guess scores."""

    facts: list[str]
    needed: set[int]
    question: str
    answer: str
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """bAbI-style task ``number`` with about ``events`` facts, where things are carried twice as many."""

    number: Annotated[int, Interval(ge=1, le=5)] = 1
    events: Annotated[int, Ge(8)] = 14

    def plan(self, key: ExampleKey) -> DraftPlan:
        rng = key.rng()
        told = _STORIES[self.number](rng, self.events)
        labels = (*PEOPLE, *OBJECTS) if self.number == 5 else PLACES
        return story(
            told.facts,
            told.needed,
            rng,
            question=told.question,
            answers=(told.answer,),
            # A reply that names two places or names, the question's own aside, has not answered.
            rule="one_of:" + "|".join(label for label in labels if label not in told.question),
            metadata={"supports": len(told.needed), "chance": round(told.chance, 4)},
        )


def _say(rng: random.Random, forms: tuple[str, ...], **parts: str) -> str:
    return rng.choice(forms).format(**parts)


def _where_is_who(rng: random.Random, events: int) -> Told:
    """In the end nobody is where another is, so that no place stands out."""
    last: dict[str, tuple[int, str]] = {}
    while len({place for _, place in last.values()}) < 4:
        people, facts, last = rng.sample(PEOPLE, 4), [], {}
        for _ in range(events):
            who, place = rng.choice(people), rng.choice(PLACES)
            last[who] = (len(facts), place)
            facts.append(_say(rng, _MOVES, who=who, place=place))
    who = rng.choice(sorted(last))
    at, place = last[who]
    return Told(facts, {at}, f"Where is {who} now?", place, 1 / len(PLACES))


class _Walkers:
    """People who walk about and carry things; ``tracks`` has the facts and places of where each thing has been."""

    def __init__(self, rng: random.Random, events: int):
        self.rng, self.facts = rng, list[str]()
        self.people, self.things = rng.sample(PEOPLE, 4), rng.sample(OBJECTS, 4)
        self.spot: dict[str, str] = {}
        self.moved: dict[str, int] = {}
        self.holder: dict[str, str] = {}
        self.taken: dict[str, int] = {}
        self.tracks: dict[str, list[tuple[int, str]]] = {thing: [] for thing in self.things}
        while len(self.facts) < events:
            self._step(rng.choice(self.people))

    def _step(self, who: str) -> None:
        held = [thing for thing in self.things if self.holder.get(thing) == who]
        near = [thing for thing in self.things if self._lies_near(thing, who)]
        if near and self.rng.random() < 0.5:
            self._take(who, self.rng.choice(near))
        elif held and self.rng.random() < 0.15:
            thing = self.rng.choice(held)
            del self.holder[thing]
            self.facts.append(_say(self.rng, _DROPS, who=who, thing=thing))
        else:
            self._move(who, held)

    def _lies_near(self, thing: str, who: str) -> bool:
        """Whether someone can pick a thing up: nobody has it, and it is here or has not been told of."""
        here, track = self.spot.get(who), self.tracks[thing]
        return here is not None and thing not in self.holder and (not track or track[-1][1] == here)

    def _take(self, who: str, thing: str) -> None:
        self.holder[thing], self.taken[thing] = who, len(self.facts)
        if not self.tracks[thing]:
            self.tracks[thing].append((self.moved[who], self.spot[who]))
        self.facts.append(_say(self.rng, _TAKES, who=who, thing=thing))

    def _move(self, who: str, held: list[str]) -> None:
        place = self.rng.choice([place for place in PLACES if place != self.spot.get(who)])
        self.spot[who], self.moved[who] = place, len(self.facts)
        for thing in held:
            self.tracks[thing].append((len(self.facts), place))
        self.facts.append(_say(self.rng, _MOVES, who=who, place=place))


def _carried(rng: random.Random, events: int, stops: int) -> tuple[_Walkers, str]:
    """A story in which three things or more went to ``stops`` places and ended in different ones, and one of them."""
    while True:
        story = _Walkers(rng, events)
        tracks = {thing: track for thing, track in story.tracks.items() if len(track) >= stops}
        ends = {thing: tuple(place for _, place in track[-2:]) for thing, track in tracks.items()}
        once = [thing for thing in tracks if [place for _, place in tracks[thing]].count(ends[thing][-1]) == 1]
        if len(once) >= 3 and all(len({ends[thing][i] for thing in once}) == len(once) for i in (0, 1)):
            return story, rng.choice(once)


def _where_is_what(rng: random.Random, events: int) -> Told:
    story, thing = _carried(rng, 2 * events, stops=2)
    at, place = story.tracks[thing][-1]
    needed = {at, story.taken[thing]}
    return Told(story.facts, needed, f"Where is the {thing}?", place, 1 / len(PLACES))


def _where_was_what(rng: random.Random, events: int) -> Told:
    story, thing = _carried(rng, 2 * events, stops=3)
    (before, answer), (at, place) = story.tracks[thing][-2:]
    question = f"Where was the {thing} before it was in the {place}?"
    return Told(story.facts, {before, at, story.taken[thing]}, question, answer, 1 / (len(PLACES) - 1))


def _what_lies_where(rng: random.Random, events: int) -> Told:
    spots = rng.sample(PLACES, min(len(PLACES), events + 1) // 2 * 2)
    sides = rng.sample(sorted(_SIDES), 2)  # of each side there are several pairs, so that the side alone says little
    pairs = [(a, sides[i % 2], b) for i, (a, b) in enumerate(zip(spots[::2], spots[1::2], strict=True))]
    rng.shuffle(pairs)
    facts = [f"The {a} lies {side} of the {b}." for a, side, b in pairs]
    at = rng.randrange(len(pairs))
    a, side, b = pairs[at]
    if rng.random() < 0.5:
        return Told(facts, {at}, f"What lies {side} of the {b}?", a, 1 / (len(PLACES) - 1))
    return Told(facts, {at}, f"What is the {a} {side} of?", b, 1 / (len(PLACES) - 1))


def _who_gave_what(rng: random.Random, events: int) -> Told:
    """Everybody gives once and gets once, so that no name stands out."""
    circle, ahead = rng.sample(PEOPLE, len(PEOPLE)), rng.randrange(1, len(PEOPLE))
    facts, gifts = [], []
    for i, thing in enumerate(rng.sample(OBJECTS, min(len(OBJECTS), events // 2))):
        who, other = circle[i], circle[(i + ahead) % len(circle)]
        facts.append(_say(rng, _TAKES, who=who, thing=thing))
        gifts.append((len(facts), who, thing, other))
        facts.append(_say(rng, _GIVES, who=who, thing=thing, other=other))
    at, who, thing, other = rng.choice(gifts)
    question, answer = rng.choice(
        [
            (f"Who gave the {thing} to {other}?", who),
            (f"To whom did {who} give the {thing}?", other),
            (f"What did {who} give to {other}?", thing),
        ]
    )
    return Told(facts, {at}, question, answer, 1 / (len(PEOPLE) - 1))


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
