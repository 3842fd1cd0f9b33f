"""Models that are not folders yet: GGUF files, and models that a package index carries, each made into a folder once.

:func:`find_model` is the one way from the name that a user gives to what loads: a folder, or a hub name. Knows files;
loads no weights itself except to convert them, and knows no engine.
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
