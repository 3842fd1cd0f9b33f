"""What is packed for a machine without a package index is what is unpacked there, or nothing is."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from experiments.gpu.wheels import HAVE, MANIFEST, _is_there, install, pack, unpack


def wheel(folder, name: str, text: str):
    """A wheel of one module."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "carried_one", "SAID = 'one'\n" + "# filler\n" * 900)
    wheel(folder, "carried_two", "SAID = 'two'\n")
    return folder


def test_pieces_are_no_larger_than_asked_and_join_to_the_same_wheels(wheels, tmp_path):
    pieces = pack(wheels, tmp_path / "pieces", piece_bytes=1000)
    assert len(pieces) > 5
    assert max(piece.stat().st_size for piece in pieces) == 1000
    again = unpack(tmp_path / "pieces", tmp_path / "again")
    assert {p.name: p.read_bytes() for p in again} == {p.name: p.read_bytes() for p in wheels.glob("*.whl")}


def test_a_piece_that_is_missing_and_one_that_is_damaged_are_named(wheels, tmp_path):
    pieces = pack(wheels, tmp_path / "pieces", piece_bytes=1000)
    pieces[1].unlink()
    pieces[3].write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match=r"2 of \d+ pieces are missing or damaged: piece_001, piece_003"):
        unpack(tmp_path / "pieces", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_what_the_machine_has_is_not_carried():
    left = [
        n for n in ("torch==2.11.0", "nvidia-cublas==13", "torchdata==0.11", "vllm==0.24.0") if not _is_there(n, HAVE)
    ]
    assert left == ["torchdata==0.11", "vllm==0.24.0"]


@pytest.mark.slow
def test_the_environment_there_sees_the_wheels_and_this_checkout(wheels, tmp_path):
    pack(wheels, tmp_path / "pieces", piece_bytes=1000)
    assert (tmp_path / "pieces" / MANIFEST).is_file()
    install(tmp_path / "pieces", tmp_path / "env")
    code = "import carried_one, carried_two, memagent_lib; print(carried_one.SAID, carried_two.SAID)"
    ran = subprocess.run([tmp_path / "env/bin/python", "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["one", "two"], ran.stderr + sys.version
