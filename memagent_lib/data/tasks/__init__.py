"""Tasks that are generated: a catalogue of families, one module each. Every example is a pure function of task, seed
and place.

A family is a module with its tasks (frozen dataclasses that plan an example) and its ``PRESETS``, which ``TASKS`` in
``catalog.py`` lists. Knows no model; a tokenizer only counts.
"""

from memagent_lib.data.tasks.catalog import TASKS, configured, make, preset
from memagent_lib.data.tasks.pocket_words import ADJECTIVES, CODES, FILLER, NAMES, NOUNS
from memagent_lib.data.tasks.pocket_world import Ask, Crowd, PocketFact, Riddle, pocket_question, riddle
from memagent_lib.data.tasks.presets import Preset, Task
from memagent_lib.data.tasks.worlds import World, world

__all__ = [
    "ADJECTIVES",
    "CODES",
    "FILLER",
    "NAMES",
    "NOUNS",
    "TASKS",
    "Ask",
    "Crowd",
    "PocketFact",
    "Preset",
    "Riddle",
    "Task",
    "World",
    "configured",
    "make",
    "pocket_question",
    "preset",
    "riddle",
    "world",
]
