"""What is packed for a machine without a package index is what is unpacked there, or nothing is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from experiments.gpu.packages import HAVE, pack, unpack, wanted


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    (folder / "carried_two").mkdir(parents=True)
    (folder / "carried_one.py").write_text("SAID = 'one'\n" + "".join(f"# {n * n}\n" for n in range(9000)))
    (folder / "carried_two" / "__init__.py").write_text("SAID = 'two'\n")
    return folder


def test_pieces_are_no_larger_than_asked_and_join_to_the_same_files(site, tmp_path):
    pieces = pack(site, tmp_path / "pieces", piece_bytes=1000)
    assert len(pieces) > 5
    assert max(piece.stat().st_size for piece in pieces) == 1000
    unpack(tmp_path / "pieces", tmp_path / "again")
    code = "import carried_one, carried_two; print(carried_one.SAID, carried_two.SAID)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "again", capture_output=True, text=True)
    assert ran.stdout.split() == ["one", "two"], ran.stderr


def test_a_piece_that_is_missing_and_one_that_is_damaged_are_named(site, tmp_path):
    pieces = pack(site, tmp_path / "pieces", piece_bytes=1000)
    pieces[1].unlink()
    pieces[3].write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match=r"2 of \d+ pieces are missing or damaged: piece_001, piece_003"):
        unpack(tmp_path / "pieces", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_what_the_machine_has_and_what_nothing_imports_is_not_carried():
    asked = ("torch==2.11.0", "nvidia-cublas==13", "torchdata==0.11", "vllm==0.24.0", "jupyterlab==4.6.6")
    assert [name for name in asked if wanted(name, HAVE)] == ["torchdata==0.11", "vllm==0.24.0"]
