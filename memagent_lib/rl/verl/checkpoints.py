"""Write checkpoints that are complete or absent: write aside, flush, read back, rename, then delete older ones.

This module deals only with files in a run's folder; verl decides what a checkpoint contains.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from memagent_lib.errors import UserError
from memagent_lib.rl.run_folder import RunFolder

UNFINISHED = "unfinished"
READERS = 8
_BLOCK = 1 << 24


class CheckpointError(UserError, RuntimeError):
    """A checkpoint could not be written. Those of other steps are untouched."""


@contextmanager
def whole_checkpoint(folder: RunFolder, step: int) -> Iterator[Path]:
    """Yield a temporary folder for the caller to write ``global_step_N`` in, then move that to ``checkpoints``.

    The move is a rename, made only once every file has been read back. Any failure removes the temporary folder and
    raises :class:`CheckpointError`, which names the checkpoint that remains.
    """
    unfinished = folder.checkpoints / UNFINISHED
    name = f"global_step_{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        read_back(unfinished / name)
        # A run that was resumed from an older checkpoint repeats this step and replaces its checkpoint.
        shutil.rmtree(folder.checkpoints / name, ignore_errors=True)
        (unfinished / name).rename(folder.checkpoints / name)
        _flush(folder.checkpoints)  # a rename is lasting only once the folder is on disk
    except Exception as failure:  # of the disk, of torch or of the check: each becomes one line
        shutil.rmtree(unfinished, ignore_errors=True)
        free = shutil.disk_usage(folder.checkpoints).free / 1e9
        said = f"the checkpoint of step {step} could not be written: {failure}; {free:.1f} GB are free"
        raise CheckpointError(said) from failure
    shutil.rmtree(unfinished)


def read_back(folder: Path) -> None:
    """Flush each file in ``folder`` to disk and read it back.

    Raises ``ValueError`` if a file is damaged, or if no file has weights.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    # A checkpoint without weights would pass every check of its files.
    if not any(path.suffix == ".pt" for path in files):
        raise ValueError(f"{folder} has no file of weights (*.pt)")
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(_check, files))


def remove_unfinished(folder: RunFolder) -> None:
    """Remove checkpoints that a killed run had not finished writing or deleting."""
    for leftover in (*folder.checkpoints.glob(f"{UNFINISHED}*"), *folder.checkpoints.glob("deleted_*")):
        shutil.rmtree(leftover)


def delete_old(folder: RunFolder, keep: int) -> None:
    """Delete all checkpoints except the newest ``keep``."""
    for checkpoint in folder.whole_checkpoints()[:-keep]:
        # Renamed first: a kill while deleting must not leave half a checkpoint under its name.
        shutil.rmtree(checkpoint.folder.rename(folder.checkpoints / f"deleted_{checkpoint.step}"))


def _check(path: Path) -> None:
    _flush(path)
    if path.suffix == ".pt":  # what torch writes is a zip archive, with a checksum for every tensor
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{path} was not written whole: it has no end")
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            if broken is not None:
                raise ValueError(f"{path} was not written whole: {broken} differs from its checksum")
    else:
        with path.open("rb") as file:
            while file.read(_BLOCK):
                pass


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
