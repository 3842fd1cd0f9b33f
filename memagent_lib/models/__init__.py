"""Models that are not whole folders yet: GGUF files, adapters, hub names, and models that a package index carries.

Each is made once into a folder. :func:`find_model` turns any name that a user gives into one that can be loaded: a
folder, or a hub name. This package depends on no engine, and loads weights only to convert them.
"""

from memagent_lib.models.adapters import is_adapter, record_base, require_adapter_of, shapes_of
from memagent_lib.models.finding import find_model, load_tokenizer, name_of, source_hash
from memagent_lib.models.hub_files import HUB_NAME, cached_folder, hub_file
from memagent_lib.models.lora import WEIGHTS_FILE, merged_weights, save_adapter
from memagent_lib.models.model_cache import TOKENIZER_FILES, WEIGHT_FILES, ModelError, source_of, weight_files
from memagent_lib.models.published import PUBLISHED, PublishedModel, fetch_model, models_table

__all__ = [
    "HUB_NAME",
    "PUBLISHED",
    "TOKENIZER_FILES",
    "WEIGHTS_FILE",
    "WEIGHT_FILES",
    "ModelError",
    "PublishedModel",
    "cached_folder",
    "fetch_model",
    "find_model",
    "hub_file",
    "is_adapter",
    "load_tokenizer",
    "merged_weights",
    "models_table",
    "name_of",
    "record_base",
    "require_adapter_of",
    "save_adapter",
    "shapes_of",
    "source_hash",
    "source_of",
    "weight_files",
]
