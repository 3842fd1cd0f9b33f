"""Tasks that generate their examples: an example is a pure function of task, seed, index, length and tokenizer.

A family is a module with tasks (frozen dataclasses that plan an example) and a table ``PRESETS``, and one entry in
``FAMILIES`` (``catalog.py``). No task uses a model. Tokenizers are used only to measure and cut documents.
"""

from memagent_lib.data.tasks.catalog import TASKS, configured, make, make_splits, preset, split_file
from memagent_lib.data.tasks.words import noise, prose, prose_stock, terms

__all__ = [
    "TASKS",
    "configured",
    "make",
    "make_splits",
    "noise",
    "preset",
    "prose",
    "prose_stock",
    "split_file",
    "terms",
]
