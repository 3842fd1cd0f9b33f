"""What a GPU machine without a package index lacks: installed here for its Python, carried in pieces, unpacked there.

``pack`` lets uv install what ``memagent-lib[gpu]`` pins into a folder, less what the machine has and what neither
training nor reading imports, and cuts the folder into pieces. ``unpack`` runs on the machine, with Python alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

PIECE_BYTES = 52 << 20  # 64 MiB travel with a call, and the repository is among them
MANIFEST = "pieces.json"
HAVE = (  # on the machine, beside PyTorch 2.11 for CUDA 13
    *("torch", "torchvision", "torchaudio", "triton", "nvidia-*", "cuda-*", "numpy", "scipy", "pandas", "pyarrow"),
    *("numba", "llvmlite", "matplotlib", "seaborn", "pillow", "fonttools", "kiwisolver", "contourpy", "networkx"),
    *("sympy", "mpmath", "setuptools", "pytest", "grpcio", "peft", "accelerate", "tensorboard*", "sentencepiece"),
    *("scikit-learn", "opencv-python-headless", "einops", "ninja", "safetensors", "uvloop", "tiktoken", "ml-dtypes"),
)
UNUSED = (  # by training and reading: Jupyter, hosted services, kernels for other models and other GPUs
    *("jupyter*", "papermill", "notebook-shim", "nb*", "widgetsnbextension", "debugpy", "terminado", "argon2*"),
    *("mistune", "bleach", "tinycss2", "babel", "wandb", "skops", "sentry-sdk", "fastapi-cloud-cli", "rignore", "av"),
    *("fastar", "detect-installer", "agent-detector", "flashinfer-*", "tilelang", "quack-kernels", "z3-solver"),
    *("tokenspeed-*", "humming-kernels", "torchcodec", "torch-c-dlpack-ext", "lm-format-enforcer", "py-spy", "jedi"),
)
TRIMMED = (  # files of the rest: for other Pythons, for other GPUs than Hopper's, pages for a browser
    *("vllm/vllm-rs", "vllm/vllm_flash_attn/_vllm_fa2_C.*", "vllm/third_party/fmha_sm100/*", "*/__pycache__/*"),
    *("vllm/third_party/deep_gemm/include/*", "mlflow/server/js/*", "ray/jars/*", "ray/dashboard/client/*"),
)


def collect(site: Path, python: str, have: Sequence[str] = HAVE) -> None:
    """Install into ``site`` for a ``python`` on x86-64 Linux. Takes seconds: nothing is built but pure Python."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    pinned, machine = site.with_suffix(".txt"), ["--python-version", python, "--python-platform"]
    uv = [sys.executable, "-m", "uv", "pip"]
    resolve = [*uv, "compile", "--no-config", "pyproject.toml", "--extra", "gpu", *machine, "x86_64-manylinux_2_28"]
    subprocess.run([*resolve, "--no-annotate", "--no-header", "-q", "-o", str(pinned)], check=True)
    lines = pinned.read_text().splitlines()
    pinned.write_text("\n".join(line for line in lines if wanted(line, have)) + "\n")
    fetch = [*uv, "install", "--no-config", "-q", "--no-deps", *machine, "x86_64-manylinux_2_35"]
    subprocess.run([*fetch, "--target", str(site), "-r", str(pinned)], check=True)
    for path in sorted(site.rglob("*")):
        if path.is_file() and any(fnmatch(str(path.relative_to(site)), name) for name in TRIMMED):
            path.unlink()


def wanted(requirement: str, have: Sequence[str] = HAVE) -> bool:
    name = requirement.partition("==")[0].strip().lower()
    return not any(fnmatch(name, known) for known in (*have, *UNUSED))


def pack(site: Path, pieces: Path, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """A folder, compressed, in pieces of at most ``piece_bytes``, with a list of their checksums."""
    shutil.rmtree(pieces, ignore_errors=True)
    pieces.mkdir(parents=True)
    whole = pieces / "whole.tar.xz"
    with tarfile.open(whole, "w:xz", preset=1) as archive:
        archive.add(site, ".")
    made = []
    with whole.open("rb") as file:
        while block := file.read(piece_bytes):
            made.append(pieces / f"piece_{len(made):03d}")
            made[-1].write_bytes(block)
    whole.unlink()
    (pieces / MANIFEST).write_text(json.dumps({piece.name: _checksum(piece) for piece in made}, indent=1))
    return made


def unpack(pieces: Path, site: Path) -> None:
    """The folder again; ``ValueError`` names the pieces that are missing or are not what was packed."""
    expected = json.loads((pieces / MANIFEST).read_text())
    wrong = [
        name for name, sum_ in expected.items() if not (pieces / name).is_file() or _checksum(pieces / name) != sum_
    ]
    if wrong:
        raise ValueError(
            f"{len(wrong)} of {len(expected)} pieces are missing or damaged: {', '.join(wrong)}; carry again"
        )
    site.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=_Joined(pieces / name for name in sorted(expected)), mode="r|xz") as archive:
        archive.extractall(site, filter="data")


class _Joined:
    """Files read as one, without a copy of it."""

    def __init__(self, files: Iterator[Path]):
        self._blocks = (path.read_bytes() for path in files)
        self._left = b""

    def read(self, size: int) -> bytes:
        while len(self._left) < size and (block := next(self._blocks, b"")):
            self._left += block
        taken, self._left = self._left[:size], self._left[size:]
        return taken


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: list[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="python -m experiments.gpu.packages", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack", help="here: install for the machine, and cut into pieces")
    packing.add_argument("--python", default="3.12", help="the machine's Python")
    packing.add_argument("--have", nargs="*", default=list(HAVE), help="packages that the machine has")
    verbs.add_parser("unpack", help="there: join the pieces")
    for verb in verbs.choices.values():
        verb.add_argument("--folder", type=Path, default=Path("runs/gpu"))
    a = top.parse_args(argv)
    site, pieces = a.folder / "site", a.folder / "pieces"
    if a.verb == "pack":
        collect(site, a.python, a.have)
        made = pack(site, pieces)
        print(f"{len(made)} pieces in {pieces}, {sum(p.stat().st_size for p in made) / 1e6:,.0f} MB")
    else:
        unpack(pieces, site)
        print(f"export PYTHONPATH={site.resolve()}:{Path.cwd()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
