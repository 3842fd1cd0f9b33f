"""Wheels for a GPU machine that has no package index: fetched here, carried in pieces, installed there.

``pack`` asks the index for what ``memagent-lib[gpu]`` needs and the machine lacks; ``install`` runs on the machine,
with Python's own library and pip alone, and refuses pieces that are missing or damaged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

PIECE_BYTES = 60 << 20
MANIFEST = "pieces.json"
HAVE = ("torch", "transformers", "triton", "nvidia-", "torchvision", "torchaudio", "torchcodec")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def fetch(folder: Path, python: str, have: tuple[str, ...]) -> None:
    """Download the wheels of all that is pinned, less what the machine has (names, or beginnings that end in ``-``)."""
    folder.mkdir(parents=True, exist_ok=True)
    pinned = folder / "requirements.txt"
    resolve = ["uv", "pip", "compile", "pyproject.toml", "--extra", "gpu", "--python-version", python]
    resolve += ["--python-platform", "x86_64-manylinux_2_28", "--no-annotate", "--no-header", "-q", "-o", str(pinned)]
    subprocess.run([sys.executable, "-m", *resolve], check=True)
    wanted = [line for line in pinned.read_text().splitlines() if not _is_there(line, have)]
    pinned.write_text("\n".join(wanted) + "\n")
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    download = ["pip", "download", "--no-deps", "--only-binary=:all:", "--python-version", python, *platforms]
    subprocess.run([sys.executable, "-m", *download, "-d", str(folder), "-r", str(pinned)], check=True)


def _is_there(requirement: str, have: tuple[str, ...]) -> bool:
    name = requirement.partition("==")[0].strip().lower()
    return any(name == own or (own.endswith("-") and name.startswith(own)) for own in have)


def pack(wheels: Path, pieces: Path, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """All wheels of a folder in pieces of at most ``piece_bytes``, with a list of their checksums."""
    if not (found := sorted(wheels.glob("*.whl"))):
        raise ValueError(f"no wheels in {wheels}")
    pieces.mkdir(parents=True, exist_ok=True)
    whole = pieces / "whole.tar"
    with tarfile.open(whole, "w") as archive:
        for wheel in found:
            archive.add(wheel, wheel.name)
    made = []
    with whole.open("rb") as file:
        while block := file.read(piece_bytes):
            made.append(pieces / f"piece_{len(made):03d}")
            made[-1].write_bytes(block)
    whole.unlink()
    (pieces / MANIFEST).write_text(json.dumps({piece.name: _checksum(piece) for piece in made}, indent=1))
    return made


def unpack(pieces: Path, wheels: Path) -> list[Path]:
    """The wheels again; ``ValueError`` names the pieces that are missing or are not what was packed."""
    expected = json.loads((pieces / MANIFEST).read_text())
    wrong = [
        name for name, sum_ in expected.items() if not (pieces / name).is_file() or _checksum(pieces / name) != sum_
    ]
    if wrong:
        raise ValueError(
            f"{len(wrong)} of {len(expected)} pieces are missing or damaged: {', '.join(wrong)}; carry again"
        )
    wheels.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=_Joined(pieces / name for name in sorted(expected)), mode="r|") as archive:
        archive.extractall(wheels, filter="data")
    return sorted(wheels.glob("*.whl"))


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


def install(pieces: Path, environment: Path) -> None:
    """An environment that sees the machine's own packages, with the wheels and this checkout in it."""
    found = unpack(pieces, pieces / "wheels")
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    offline = [python, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*offline, *map(str, found)], check=True)
    checkout = Path(__file__).parents[2]
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (Path(site) / "memagent.pth").write_text(f"{checkout}\n")
    subprocess.run([python, "-m", "memagent_lib.cli", "doctor"], check=False)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: list[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="python -m experiments.gpu.wheels", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack", help="here: download, and cut into pieces")
    packing.add_argument("--python", default="3.12", help="the machine's Python")
    packing.add_argument("--have", nargs="*", default=list(HAVE), help="packages that the machine has")
    verbs.add_parser("install", help="there: join the pieces and install them")
    for verb in verbs.choices.values():
        verb.add_argument("--folder", type=Path, default=Path("runs/gpu"))
    a = top.parse_args(argv)
    if a.verb == "pack":
        fetch(a.folder / "wheels", a.python, tuple(a.have))
        made = pack(a.folder / "wheels", a.folder / "pieces")
        print(f"{len(made)} pieces in {a.folder / 'pieces'}, {sum(p.stat().st_size for p in made) / 1e6:,.0f} MB")
    else:
        install(a.folder / "pieces", a.folder / "env")
    return 0


if __name__ == "__main__":
    sys.exit(main())
