"""The people, towns and trades of the questions in prose, and how statements and questions about them are worded.

Another word or wording here would change the examples of a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from memagent_lib.data.tasks.words import terms

FIRST = terms(
    "Ada Agnes Albert Alice Arthur Beatrice Bernard Cecil Clara Conrad Cora Daniel Dora Edgar Edith Edmund Elsie Emil "
    "Ernest Esther Eugene Flora Frances Frank George Gerald Gilbert Grace Harold Harriet Hazel Helen Henry Hugo Irene "
    "Ivor Jane Jasper Julia Laura Leonard Lewis Lydia Mabel Magnus Martha Maurice Mildred Miriam Nora Oliver Oscar "
    "Paula Percy Phoebe Ralph Rosa Rupert Stella Theo Vera Victor Walter Winifred"
)
LAST = terms(
    "Abbot Archer Ashby Baldwin Barlow Bennett Blake Bower Brandt Brewer Calder Carver Chandler Cole Cooper Crane "
    "Cutler Dalton Draper Drew Dyer Ellery Farrow Fenwick Fisher Fletcher Foster Garland Gibbs Glover Grant Hale "
    "Harper Hobbs Holt Hooper Hurst Ingram Jarvis Keller Kemp Lambert Langley Lowell Marsh Mercer Morrow Nash Norris "
    "Osborn Parrish Pike Porter Quill Rhodes Sawyer Shaw Slater Talbot Thorne Turner Vance Webster Whitlock"
)
TOWNS = terms(
    "Aldermoor Ashcombe Barrowby Bexford Birchwell Blackmere Brampton Brindle Calderby Carnforth Cheswick Coldharbour "
    "Cranleigh Dunwick Eastholm Elmstead Fairhaven Farnley Foxbridge Glenmoor Greyfield Hartwell Hawksea Highcliff "
    "Kelbrook Kingsmere Langport Larkhill Lindale Marlow Millbrook Netherby Newcombe Oakhurst Oldbury Otterburn "
    "Penfold Ravensea Redcastle Rockford Saltmarsh Seaborne Sherwell Stonegate Thornbury Wexcombe Whitby Wolverley"
)
TRADES = terms(
    "baker barber beekeeper blacksmith bookbinder brewer butcher carpenter clerk cobbler cook dentist driver plasterer "
    "farmer gardener glazier goldsmith grocer hatter joiner lawyer librarian locksmith mason miller miner nurse "
    "ropemaker painter pharmacist pilot plumber potter printer roofer saddler sailor surgeon surveyor tailor tanner "
    "teacher translator typist chemist watchmaker weaver"
)
LINKS = terms("teacher neighbour cousin landlord partner doctor")


class Attribute(NamedTuple):
    """Something that can be stated about a person: its values, and how statements, changes and questions are worded."""

    draw: Callable[[random.Random], str]
    statements: tuple[str, ...]
    changes: tuple[str, ...]
    questions: tuple[str, ...]


RELATIONS = {
    "town": Attribute(
        lambda rng: rng.choice(TOWNS),
        terms(
            "{name} lives in {value}. | The home of {name} is in {value}. | {name} has a house in {value}. | "
            "Letters for {name} are sent to {value}. | In {value} one may meet {name}, who lives there. | "
            "{value} is the town where {name} lives. | {name} rents two rooms in {value}."
        ),
        terms(
            "{name} has moved to {value}. | {name} has left and now lives in {value}. | {value} is where {name} lives "
            "now. | From that day on {name} lived in {value}. | {name} sold the house and settled in {value}. | "
            "Letters for {name} now go to {value}."
        ),
        terms("In which town does {name} live? | Where does {name} live? | What is the home town of {name}?"),
    ),
    "trade": Attribute(
        lambda rng: rng.choice(TRADES),
        terms(
            "{name} works as a {value}. | By trade {name} is a {value}. | {name} earns a living as a {value}. | "
            "The trade of {name} is that of a {value}. | As a {value}, {name} is always busy. | "
            "{name} is a {value} of good repute. | If you need a {value}, send for {name}."
        ),
        terms(
            "{name} has changed trades and is now a {value}. | {name} has become a {value}. | From that day on {name} "
            "worked as a {value}. | {name} gave up the old trade for that of a {value}. | Now {name} works as a "
            "{value}."
        ),
        terms("What is the trade of {name}? | What does {name} work as? | By what trade does {name} live?"),
    ),
    "room": Attribute(
        lambda rng: str(rng.randrange(100, 1000)),
        terms(
            "{name} has room {value}. | The room of {name} is number {value}. | Behind door {value} works {name}. | "
            "{name} can be found in room {value}. | Room {value} belongs to {name}. | The number on the door of {name} "
            "is {value}. | Number {value} is the room of {name}."
        ),
        terms(
            "{name} has moved to room {value}. | Room {value} now belongs to {name}. | The room of {name} is now "
            "number {value}. | From that day on {name} was found in room {value}. | {name} has changed rooms and "
            "taken number {value}."
        ),
        terms("What is the number of the room of {name}? | Which room does {name} have? | In which room is {name}?"),
    ),
}
LINKED = terms(
    "The {link} of {name} is {value}. | {value} is the {link} of {name}. | {name} has a {link} called {value}. | "
    "As everyone knows, {name}'s {link} is {value}. | {value} has been the {link} "
    "of {name} for years."
)
IN_THE_END = terms(
    "{question} Give the latest. | After all changes: {question} | As things stand at the end: {question}"
)
