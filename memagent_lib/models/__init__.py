"""Models that are not whole folders yet: GGUF files, adapters, hub names, and models that a package index carries.

Each is made once into a folder. :func:`find_model` turns any name that a user gives into one that can be loaded: a
folder, or a hub name. This package depends on no engine, and loads weights only to convert them.
"""

from memagent_lib.models.adapters import (
    WEIGHTS_FILE,
    merged_weights,
    record_base,
    require_adapter_of,
    save_adapter,
    shapes_of,
)
from memagent_lib.models.cache import TOKENIZER_FILES, WEIGHT_FILES, ModelError, cache_folder, file_hash
from memagent_lib.models.finding import (
    HUB_NAME,
    PUBLISHED,
    fetch_model,
    find_model,
    hub_file,
    load_tokenizer,
    name_of,
    source_hash,
)

__all__ = [
    "HUB_NAME",
    "PUBLISHED",
    "TOKENIZER_FILES",
    "WEIGHTS_FILE",
    "WEIGHT_FILES",
    "ModelError",
    "cache_folder",
    "fetch_model",
    "file_hash",
    "find_model",
    "hub_file",
    "load_tokenizer",
    "merged_weights",
    "name_of",
    "record_base",
    "require_adapter_of",
    "save_adapter",
    "shapes_of",
    "source_hash",
]
