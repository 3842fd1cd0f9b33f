"""Models that are not folders yet: GGUF files, and models that a package index carries, each made into a folder once.

:func:`find_model` turns any name that a user gives into one that can be loaded: a folder, or a hub name. This package
depends on no engine, and loads weights only to convert them.
"""

from memagent_lib.models.finding import find_model, source_hash
from memagent_lib.models.model_cache import ModelError
from memagent_lib.models.published import PUBLISHED, PublishedModel, fetch_model, models_table

__all__ = [
    "PUBLISHED",
    "ModelError",
    "PublishedModel",
    "fetch_model",
    "find_model",
    "models_table",
    "source_hash",
]
