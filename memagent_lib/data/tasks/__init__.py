"""Tasks that generate their examples: an example is a pure function of task, seed, index, length and tokenizer.

A family is a module with tasks (frozen dataclasses that plan an example) and a table ``PRESETS``: here, with an entry
in ``FAMILIES`` (``catalog.py``), or a file of ``experiments/tasks``. No task uses a model. Tokenizers are used only to
measure and cut documents.
"""

from memagent_lib.data.tasks.catalog import configured, make, make_splits, preset, presets, split_file
from memagent_lib.data.tasks.words import files_of, noise, prose, prose_stock, terms

__all__ = [
    "configured",
    "files_of",
    "make",
    "make_splits",
    "noise",
    "preset",
    "presets",
    "prose",
    "prose_stock",
    "split_file",
    "terms",
]
