"""Small stories of people who walk about and carry things, hidden in prose (tasks qa1 to qa5).

The five kinds of question are those of bAbI (Weston et al. 2015) that BABILong hides in books; their answers follow
from the same kinds of event. People, rooms and sentences are our own. There are more rooms than in bAbI, which lowers
the score of a guess.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Interval

from memagent_lib.data.layout import DocumentPlan, ExampleKey
from memagent_lib.data.tasks.presets import Preset
from memagent_lib.data.tasks.words import story, terms

PEOPLE = ("Agnes", "Bruno", "Clara", "Dimitri", "Esther", "Farid", "Greta", "Hamid")
ROOMS = terms(
    "attic barn cellar courtyard dairy forge gallery greenhouse "
    "laundry library orchard pantry parlour stable studio workshop"
)
OBJECTS = ("compass", "flute", "goblet", "hammer", "ledger", "mirror", "notebook", "teapot")
_MOVES = (
    "{who} went to the {room}.",
    "{who} walked over to the {room}.",
    "{who} is off to the {room}.",
    "{who} hurried to the {room}.",
)
_TAKES = ("{who} took the {thing}.", "{who} picked up the {thing}.", "{who} grabbed the {thing}.")
_DROPS = ("{who} put down the {thing}.", "{who} left the {thing} there.", "{who} set the {thing} aside.")
_GIVES = (
    "{who} gave the {thing} to {other}.",
    "{who} handed the {thing} to {other}.",
    "{who} passed the {thing} to {other}.",
)
_MOST_CARRIED = 80  # in longer stories hardly any thing enters its last room for the first time
_SIDES = {"north": "south", "south": "north", "east": "west", "west": "east"}


class Plot(NamedTuple):
    """A story: its ``events`` in order, a question about them, and the answer.

    ``needed`` has the indices of the events that the answer requires; ``chance`` is the score of the best guess.
    """

    events: list[str]
    needed: set[int]
    question: str
    answer: str
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Task ``number`` in the style of bAbI, with about ``events`` events.

    Tasks 2 and 3 have twice as many, and accept at most 80. Task 4 has half as many, and at most 8, because an event
    names two rooms. Task 5 has at most 16.
    """

    number: Annotated[int, Interval(ge=1, le=5)] = 1
    events: Annotated[int, Ge(8)] = 14

    def __post_init__(self) -> None:
        if self.number in (2, 3) and self.events > _MOST_CARRIED:
            raise ValueError(f"events must be at most {_MOST_CARRIED} for tasks 2 and 3, got {self.events}")

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        plot = _PLOTS[self.number](rng, self.events)
        labels = (*PEOPLE, *OBJECTS) if self.number == 5 else ROOMS
        return story(
            plot.events,
            plot.needed,
            rng,
            question=plot.question,
            answers=(plot.answer,),
            # A reply that names two labels, apart from the question's own, is no answer.
            rule="one_of:" + "|".join(label for label in labels if label not in plot.question),
            metadata={"supports": len(plot.needed), "chance": round(plot.chance, 4)},
        )


def _sentence(rng: random.Random, forms: tuple[str, ...], **words: str) -> str:
    return rng.choice(forms).format(**words)


def _where_is_who(rng: random.Random, events: int) -> Plot:
    """Plan qa1. At the end no two people are in the same room, so no room is a better guess than the others."""
    last: dict[str, tuple[int, str]] = {}
    # The whole story is drawn again, because correcting single moves would favour some rooms.
    while len({room for _, room in last.values()}) < 4:
        people = rng.sample(PEOPLE, 4)
        moves: list[str] = []
        last = {}
        for i in range(events):
            who = rng.choice(people)
            room = rng.choice(ROOMS)
            last[who] = (i, room)
            moves.append(_sentence(rng, _MOVES, who=who, room=room))
    who = rng.choice(sorted(last))
    index, room = last[who]
    return Plot(moves, {index}, f"Where is {who} now?", room, 1 / len(ROOMS))


class _Walk:
    """Four people who walk about and carry things. ``tracks`` maps each thing to its rooms in order.

    Each room comes with the event that brought the thing there. A thing's first room is the one in which it is first
    picked up, and its event is the carrier's move to that room.
    """

    def __init__(self, rng: random.Random, events: int):
        self.rng = rng
        self.events: list[str] = []
        self.people = rng.sample(PEOPLE, 4)
        self.things = rng.sample(OBJECTS, 4)
        self.room_of: dict[str, str] = {}
        self.arrival: dict[str, int] = {}
        self.carrier: dict[str, str] = {}
        self.taken_at: dict[str, int] = {}
        self.tracks: dict[str, list[tuple[int, str]]] = {thing: [] for thing in self.things}
        while len(self.events) < events:
            self._step(rng.choice(self.people))

    def _step(self, who: str) -> None:
        # Things are taken often and put down rarely, so that they pass through several rooms.
        carried = [thing for thing in self.things if self.carrier.get(thing) == who]
        near = [thing for thing in self.things if self._can_take(thing, who)]
        if near and self.rng.random() < 0.5:
            self._take(who, self.rng.choice(near))
        elif carried and self.rng.random() < 0.15:
            thing = self.rng.choice(carried)
            del self.carrier[thing]
            self.events.append(_sentence(self.rng, _DROPS, who=who, thing=thing))
        else:
            self._move(who, carried)

    def _can_take(self, thing: str, who: str) -> bool:
        """Return whether nobody carries ``thing``, and it is in the room of ``who`` or its room is not yet fixed."""
        room = self.room_of.get(who)
        track = self.tracks[thing]
        return room is not None and thing not in self.carrier and (not track or track[-1][1] == room)

    def _take(self, who: str, thing: str) -> None:
        self.carrier[thing] = who
        self.taken_at[thing] = len(self.events)
        if not self.tracks[thing]:
            self.tracks[thing].append((self.arrival[who], self.room_of[who]))
        self.events.append(_sentence(self.rng, _TAKES, who=who, thing=thing))

    def _move(self, who: str, carried: list[str]) -> None:
        room = self.rng.choice([room for room in ROOMS if room != self.room_of.get(who)])
        self.room_of[who] = room
        self.arrival[who] = len(self.events)
        for thing in carried:
            self.tracks[thing].append((len(self.events), room))
        self.events.append(_sentence(self.rng, _MOVES, who=who, room=room))


def _carried(rng: random.Random, events: int, stops: int) -> tuple[_Walk, str]:
    """Draw a walk, and a thing in it that was in at least ``stops`` rooms and entered its last room only once.

    At least three things of the walk qualify, and no two of them share their last or their last but one room.
    """
    while True:
        walk = _Walk(rng, events)
        rooms = {thing: [room for _, room in track] for thing, track in walk.tracks.items() if len(track) >= stops}
        once = [thing for thing, visited in rooms.items() if visited.count(visited[-1]) == 1]
        ends = [tuple(rooms[thing][-2:]) for thing in once]
        if len(once) >= 3 and all(len({end[i] for end in ends}) == len(once) for i in (0, 1)):
            return walk, rng.choice(once)


def _where_is_what(rng: random.Random, events: int) -> Plot:
    walk, thing = _carried(rng, 2 * events, stops=2)
    index, room = walk.tracks[thing][-1]
    needed = {index, walk.taken_at[thing]}
    return Plot(walk.events, needed, f"Where is the {thing}?", room, 1 / len(ROOMS))


def _where_was_what(rng: random.Random, events: int) -> Plot:
    walk, thing = _carried(rng, 2 * events, stops=3)
    (before, answer), (index, room) = walk.tracks[thing][-2:]
    needed = {before, index, walk.taken_at[thing]}
    question = f"Where was the {thing} before it was in the {room}?"
    return Plot(walk.events, needed, question, answer, 1 / (len(ROOMS) - 1))


def _what_lies_where(rng: random.Random, events: int) -> Plot:
    rooms = rng.sample(ROOMS, min(len(ROOMS), events + 1) // 2 * 2)  # an even number, for pairs
    sides = rng.sample(sorted(_SIDES), 2)  # each side has several pairs, so that the side alone reveals little
    pairs = [(a, sides[i % 2], b) for i, (a, b) in enumerate(zip(rooms[::2], rooms[1::2], strict=True))]
    rng.shuffle(pairs)
    sentences = [f"The {a} lies {side} of the {b}." for a, side, b in pairs]
    index = rng.randrange(len(pairs))
    a, side, b = pairs[index]
    chance = 1 / (len(ROOMS) - 1)  # the question names one of the rooms
    if rng.random() < 0.5:
        return Plot(sentences, {index}, f"What lies {side} of the {b}?", a, chance)
    return Plot(sentences, {index}, f"What is the {a} {side} of?", b, chance)


def _who_gave_what(rng: random.Random, events: int) -> Plot:
    """Plan qa5. Each giver gives once and each receiver receives once, so no name is a better guess than the others."""
    circle = rng.sample(PEOPLE, len(PEOPLE))
    ahead = rng.randrange(1, len(PEOPLE))
    sentences: list[str] = []
    gifts = []
    for i, thing in enumerate(rng.sample(OBJECTS, min(len(OBJECTS), events // 2))):  # a gift takes two events
        who = circle[i]
        other = circle[(i + ahead) % len(circle)]
        sentences.append(_sentence(rng, _TAKES, who=who, thing=thing))
        gifts.append((len(sentences), who, thing, other))
        sentences.append(_sentence(rng, _GIVES, who=who, thing=thing, other=other))
    index, who, thing, other = rng.choice(gifts)
    question, answer = rng.choice(
        [
            (f"Who gave the {thing} to {other}?", who),
            (f"To whom did {who} give the {thing}?", other),
            (f"What did {who} give to {other}?", thing),
        ]
    )
    return Plot(sentences, {index}, question, answer, 1 / (len(PEOPLE) - 1))


_PLOTS = {1: _where_is_who, 2: _where_is_what, 3: _where_was_what, 4: _what_lies_where, 5: _who_gave_what}


def _preset(number: int, description: str, chance: float) -> Preset:
    return Preset(task=Story(number=number), description=description, family="BABILong-style", chance=chance)


PRESETS = {
    "qa1": _preset(1, "where a person is", 1 / 16),
    "qa2": _preset(2, "where a thing is", 1 / 16),
    "qa3": _preset(3, "where a thing was before", 1 / 15),
    "qa4": _preset(4, "what lies next to what", 1 / 15),
    "qa5": _preset(5, "who gave what to whom", 1 / 7),
}
