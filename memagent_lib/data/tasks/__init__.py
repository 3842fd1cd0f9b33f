"""Tasks that are generated: a catalogue of families, one module each. Every example is a pure function of task, seed
and place.

A family is a module with its tasks (frozen dataclasses that plan an example) and its ``PRESETS``, which the catalogue
lists. Knows no model; a tokenizer only counts.
"""

from memagent_lib.data.tasks.catalog import TASKS, configured, describe, make, preset
from memagent_lib.data.tasks.document_questions import HQA_DOCUMENTS
from memagent_lib.data.tasks.presets import Preset, Task
from memagent_lib.data.tasks.worlds import World, world

__all__ = [
    "HQA_DOCUMENTS",
    "TASKS",
    "Preset",
    "Task",
    "World",
    "configured",
    "describe",
    "make",
    "preset",
    "world",
]
