"""Find the folder or hub name to load for the name that a user gives for a model."""

from __future__ import annotations

from pathlib import Path

from memagent_lib import paths
from memagent_lib.errors import MissingFile
from memagent_lib.models.adapters import is_adapter, merged_adapter, merged_hash
from memagent_lib.models.gguf_files import converted
from memagent_lib.models.hub_files import why_unreachable
from memagent_lib.models.model_cache import file_hash, source_of
from memagent_lib.models.published import PUBLISHED
from memagent_lib.tokenizer import Tokenizer


def find_model(model: str) -> str:
    """Return what to load for a model: the absolute path of a folder, or a hub name unchanged.

    A GGUF file is converted once, an adapter is merged once into its base model (:mod:`memagent_lib.models.adapters`),
    and the folder of the result is returned. A name in :data:`PUBLISHED` stands for that model's
    folder, unless there is a folder of this name. Raises :class:`MissingFile` for a GGUF file that does not exist and
    for a published model that has not been fetched, and :class:`ModelError` for a GGUF file that cannot be converted
    and an adapter that does not belong to its base.
    """
    path = paths.model_path(model)
    if is_adapter(Path(path)):
        return str(merged_adapter(Path(path), find_model))
    if Path(path).is_dir():
        return path
    if model in PUBLISHED:
        return str(PUBLISHED[model].require_folder())
    file = gguf_file(model)
    return str(converted(file)) if file else path


def load_tokenizer(model: str) -> Tokenizer:
    """Load the tokenizer of what :func:`find_model` finds for ``model``.

    Raises what both raise; an :class:`OSError` tells a hub that could not be asked from one that has no such model.
    """
    try:
        return Tokenizer.load(find_model(model))
    except OSError as failure:
        unreachable = why_unreachable(failure)
        if not unreachable:
            raise
        raise OSError(f"no tokenizer for {model!r} on this machine, and {unreachable}") from failure


def name_of(folder: Path) -> str:
    """Return the name of the model that :func:`find_model` made ``folder`` from.

    It is the name of a published model, or the folder of the adapter that was merged, if it is still there. Any other
    folder is its own name. Records that leave this machine need it, because the cache stays here.
    """
    adapter = source_of(folder).get("adapter", "")
    if adapter and is_adapter(Path(adapter)):
        return adapter
    return next((name for name, model in PUBLISHED.items() if model.folder == folder), str(folder))


def gguf_file(model: str) -> Path | None:
    """Return the path of the GGUF file that ``model`` names, or ``None`` if it names none.

    Raises :class:`MissingFile` if the file does not exist.
    """
    if not model.lower().endswith(".gguf"):
        return None
    file = paths.absolute(model)
    if not file.is_file():
        raise MissingFile(f"no GGUF file {model!r}; give the path of one")
    return file.resolve()


def source_hash(model: str | Path) -> str | None:
    """Return 16 hex digits that identify the GGUF file, or the adapter and base, that a model was made from.

    ``None`` for other models.
    """
    path = paths.absolute(model)
    if not path.exists() and str(model) in PUBLISHED:
        path = PUBLISHED[str(model)].folder
    if path.is_file() and path.suffix.lower() == ".gguf":
        return file_hash(path.resolve())[:16]
    if is_adapter(path):
        return merged_hash(path, find_model)[1][:16]
    source = source_of(path)
    return source["sha256"][:16] if source else None
