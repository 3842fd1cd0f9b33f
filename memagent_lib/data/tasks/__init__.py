"""Tasks that are generated: every example is a pure function of task, seed and place.

A family is a module with its tasks (frozen dataclasses that plan an example) and its ``PRESETS``, which ``TASKS`` in
``catalog.py`` lists. Knows no model; a tokenizer only counts.
"""

from memagent_lib.data.tasks.catalog import TASKS, configured, make, preset
from memagent_lib.data.tasks.needles import ADJECTIVES, FILLER, NOUNS
from memagent_lib.data.tasks.presets import NotNegative, Preset, Share
from memagent_lib.data.tasks.words import terms
from memagent_lib.data.tasks.worlds import world

__all__ = [
    "ADJECTIVES",
    "FILLER",
    "NOUNS",
    "TASKS",
    "NotNegative",
    "Preset",
    "Share",
    "configured",
    "make",
    "preset",
    "terms",
    "world",
]
