"""A checkpoint is whole or absent, and none goes before a newer one was read back; with real files on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from memagent_lib.rl.run_folder import (
    UNFINISHED,
    CheckpointError,
    RunFolder,
    delete_old,
    remove_unfinished,
    whole_checkpoint,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def write(folder: RunFolder, step: int, numbers: int = 1000, harm=lambda data: data) -> None:
    """What verl does: a folder ``global_step_N`` below the one in its settings."""
    with whole_checkpoint(folder, step) as unfinished:
        actor = unfinished / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        torch.save({"weights": torch.full((numbers,), float(step))}, actor / "model.pt")
        (actor / "model.pt").write_bytes(harm((actor / "model.pt").read_bytes()))
        (actor.parent / "note.json").write_text("{}")


def steps(folder: RunFolder) -> list[int]:
    return [checkpoint.step for checkpoint in folder.whole_checkpoints()]


def test_a_checkpoint_has_its_name_only_once_it_was_read_back(folder: RunFolder) -> None:
    with whole_checkpoint(folder, 1) as unfinished:
        (unfinished / "global_step_1").mkdir()
        torch.save(torch.zeros(9), unfinished / "global_step_1" / "model.pt")
        assert folder.latest_checkpoint() is None
    assert steps(folder) == [1]
    assert [path.name for path in folder.checkpoints.iterdir()] == ["global_step_1"]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda data: data[:-2000], "not a zip file"),
        (lambda data: data[:1500] + b"\xff" * 64 + data[1564:], "differs from its checksum"),
        (lambda data: b"", "not a zip file"),
    ],
)
def test_a_damaged_file_is_found_and_the_last_checkpoint_stays(folder, harm, reason) -> None:
    write(folder, 1)
    with pytest.raises(CheckpointError, match=rf"of step 2 could not .*{reason}"):
        write(folder, 2, harm=harm)
    assert steps(folder) == [1]
    assert torch.load(folder.latest_checkpoint().folder / "actor" / "model.pt")["weights"][0] == 1


def test_the_newest_are_kept(folder: RunFolder) -> None:
    for step in range(1, 6):
        write(folder, step)
        delete_old(folder, keep=2)
    assert steps(folder) == [4, 5]


def test_half_written_and_half_deleted_checkpoints_are_removed(folder: RunFolder) -> None:
    write(folder, 1)
    for name in (UNFINISHED, "deleted_0"):
        (folder.checkpoints / name / "global_step_9").mkdir(parents=True)
    remove_unfinished(folder)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["global_step_1"]
