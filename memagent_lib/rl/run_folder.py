"""The files of a training run: status, metrics, checkpoints, exported model. Other processes may read them at any time.

Every file is written atomically or grows by whole lines, so a reader never sees half a record. A checkpoint, whose
content is verl's, is complete or absent: it is written aside, flushed, its weights read back, and renamed. No process
starts here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from memagent_lib.data import data_hash
from memagent_lib.errors import MissingFile, UserError, nearest_path
from memagent_lib.evaluation import Result, read_results
from memagent_lib.journal import append_record, digest
from memagent_lib.models import WEIGHTS_FILE
from memagent_lib.paths import read_lines, write_atomically
from memagent_lib.plugins import is_plugin, plugin_hash
from memagent_lib.provenance import model_hash
from memagent_lib.rl.advantages import Credited
from memagent_lib.rl.config import Recipe

STATUS_FILE = "status.json"
UNFINISHED = "unfinished"
_THREADS = 8


class RunError(UserError, RuntimeError):
    """A run cannot be started, watched or stopped. The message names the reason and the fix."""


class CheckpointError(UserError, RuntimeError):
    """A checkpoint could not be written. Those of other steps are untouched."""


class TrainingState(StrEnum):
    """The state of a run. ``died`` means that the run was killed before it could record its end."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    DIED = "died"

    @property
    def over(self) -> bool:
        return self not in (TrainingState.STARTING, TrainingState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """The status of a run at one moment.

    ``reward`` is the mean score of the last step's rollouts, and ``waits_for`` names what a run that has no step yet is
    waiting for.
    """

    state: TrainingState
    step: int = 0
    steps: int = 0
    reward: float | None = None
    error: str = ""
    pid: int = 0
    mlflow_run: str = ""
    waits_for: str = ""

    @property
    def progress(self) -> str:
        return f"waiting for {self.waits_for}" if self.waits_for else f"step {self.step} of {self.steps}"


class Checkpoint(NamedTuple):
    """The policy and optimizer after ``step`` training steps, saved in ``folder``."""

    step: int
    folder: Path

    @property
    def huggingface(self) -> Path:
        """The checkpoint's folder in Hugging Face's format.

        transformers and vLLM load it if it has weights, which by default only checkpoints made on a CPU have.
        """
        return self.folder / "actor" / "huggingface"  # verl's names


class RunFolder:
    """The paths and records in the folder of one training run."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.json"
        self.log = path / "log.txt"
        self.error = path / "error.txt"
        self.stop_request = path / "stop"
        self.waits_for = path / "waits_for.txt"  # what the training process is waiting for before its first step
        self.mlflow_note = path / "mlflow_run.txt"  # the id of the MLflow run to which attempts to train this run log
        self.metrics = path / "metrics.jsonl"  # a line per step, {"step", "time", "metrics"}, with all that verl logged
        self.verl_metrics = path / "metrics.part.jsonl"  # what verl itself logs; emptied whenever verl starts
        self.traces = path / "traces"
        self.credit = path / "credit"  # what the traced rollouts of each step were trained with
        self.checkpoints = path / "checkpoints"
        self.checkpoint_note = self.checkpoints / "latest_checkpointed_iteration.txt"  # where verl continues
        self.model = path / "model"  # the exported policy, once the run has finished
        self.left_out = path / "left_out"  # empty modules that hide slow ones

    @property
    def is_run(self) -> bool:
        """Whether the folder is that of a training run."""
        return (self.path / STATUS_FILE).is_file()

    @property
    def stays_stopped(self) -> bool:
        """Whether a person has stopped the run, so that it continues only when it is resumed explicitly."""
        return self.stop_request.is_file() and bool(self.stop_request.read_text(encoding="utf-8"))

    def record(self) -> dict[str, Any]:
        """Return what :meth:`write_recipe` has recorded when the run was started."""
        return json.loads(self.config.read_text(encoding="utf-8"))

    @property
    def key(self) -> str:
        """12 hex digits, unique to the run's path, for the names of its sockets, actors and namespace."""
        return digest(str(self.path))[:12]

    def write_recipe(self, recipe: Recipe, device: str) -> None:
        """Write the recipe and the device, and hashes of what the recipe reads."""
        record = {"config": recipe.to_tables(), "device": device, "inputs": input_hashes(recipe)}
        write_atomically(self.config, json.dumps(record, indent=2))

    def changed_inputs(self, recipe: Recipe) -> list[str]:
        """Return a sentence for each input of ``recipe`` whose content is not what the run was started with."""
        before = self.record()["inputs"]
        changed = [name for name, now in input_hashes(recipe).items() if now != before.get(name)]
        return [f"{name} is not what it was when the run was started" for name in changed]

    def recipe(self) -> tuple[Recipe, str]:
        """Return the recipe that the run trains with, and its device."""
        record = self.record()
        return Recipe.from_tables(record["config"]), record["device"]

    def write_status(self, status: TrainingStatus) -> None:
        write_atomically(self.path / STATUS_FILE, json.dumps(asdict(status)))

    def status(self) -> TrainingStatus:
        """Return the last status. Its state is ``died`` if it was written as active but no process holds the lock."""
        status = self._written_status()
        if status.state.over or self.locked():
            return status
        status = self._written_status()  # it may have ended in between
        if status.state.over:
            return status
        return replace(status, state=TrainingState.DIED)

    def _written_status(self) -> TrainingStatus:
        if not self.is_run:
            raise MissingFile(f"no training run at {self.path}; `memagent train` starts one{nearest_path(self.path)}")
        try:
            record = json.loads((self.path / STATUS_FILE).read_text(encoding="utf-8"))
            status = TrainingStatus(**record | {"state": TrainingState(record["state"])})
        except (ValueError, TypeError, LookupError) as broken:
            raise RunError(f"{self.path / STATUS_FILE} is not a status that memagent wrote ({broken})") from broken
        waits = status.state is TrainingState.STARTING and self.waits_for.is_file()
        return replace(status, waits_for=self.waits_for.read_text(encoding="utf-8") if waits else "")

    def due(self, steps: int) -> tuple[float, float]:
        """Return about when the next of ``steps`` and the last are done, as seconds since the epoch; 0 if not known.

        A step takes the mean time of those before it. The longest may be a pause between two attempts, and is left out.
        """
        rows = self.rows()
        times = sorted(after["time"] - before["time"] for before, after in pairwise(rows))
        if not times or rows[-1]["step"] >= steps:
            return 0, 0
        step_s = mean(times[:-1] or times)
        return rows[-1]["time"] + step_s, rows[-1]["time"] + step_s * (steps - rows[-1]["step"])

    def lock(self, how: int = fcntl.LOCK_EX) -> int:
        """Lock the run and return the lock's descriptor; processes that inherit it hold the lock too.

        Raises ``BlockingIOError`` if another process holds the lock.
        """
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise
        return handle

    def locked(self) -> bool:
        # flock has no query: a shared lock is taken and released at once. Two that ask do not see each other's.
        try:
            os.close(self.lock(fcntl.LOCK_SH))
        except BlockingIOError:
            return True
        return False

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines of :attr:`metrics` as records, without an incomplete last line."""
        return read_lines(self.metrics)

    def whole_checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, ordered by step. None is incomplete (:func:`whole_checkpoint`)."""
        return sorted(Checkpoint(step, path) for step, path in _numbered(self.checkpoints, "global_step_*"))

    def latest_checkpoint(self) -> Checkpoint | None:
        return next(reversed(self.whole_checkpoints()), None)

    def resumable_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint whose step has metrics, or else the newest: a kill may come between the two."""
        logged = {row["step"] for row in self.rows()}
        return max((each for each in self.whole_checkpoints() if each.step in logged), default=self.latest_checkpoint())

    def forget_after(self, step: int) -> None:
        """Remove the metrics and rollouts of all steps after ``step``, which a resumed run repeats."""
        remaining = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in remaining))
        # A resumed run would append the rollouts of a repeated step to those of the first attempt.
        for number, file in [*_numbered(self.traces, "step_*.jsonl"), *_numbered(self.credit, "step_*.json")]:
            if number > step:
                file.unlink()

    def write_credit(self, step: int, rollouts: Mapping[str, Credited]) -> None:
        """Write what the rollouts of a step are trained with, by the name that :func:`save_rollout` gives them."""
        self.credit.mkdir(exist_ok=True)
        write_atomically(self.credit / f"step_{step:06d}.json", json.dumps(rollouts))

    def credited(self, step: int) -> dict[str, Credited] | None:
        """Return what the rollouts of a step were trained with, or None if the step has not come so far."""
        file = self.credit / f"step_{step:06d}.json"
        if not file.is_file():
            return None
        return {name: Credited(*values) for name, values in json.loads(file.read_text(encoding="utf-8")).items()}

    def rollouts(self) -> Iterator[tuple[int, list[Result]]]:
        """Yield each step with its traced rollouts, the newest step first.

        As soon as a step has them, a rollout's metadata has two more entries. ``credit`` is what it was trained with:
        :class:`Credited`, or None if the update left it out. ``rows`` is how many rows of all rollouts the step has
        trained, skipped and added as padding.
        """
        counts = {
            row["step"]: {name[5:]: value for name, value in row["metrics"].items() if name.startswith("rows/")}
            for row in self.rows()
        }
        for step, file in sorted(_numbered(self.traces, "step_*.jsonl"), reverse=True):
            results = read_results(file)
            credited = self.credited(step)
            for metadata in (result.example.metadata for result in results if credited is not None):
                metadata |= {"credit": credited.get(metadata["rollout"]), "rows": counts.get(step, {})}
            yield step, results


def _numbered(folder: Path, pattern: str) -> Iterator[tuple[int, Path]]:
    """Yield the paths in a folder that have a number instead of the pattern's star; a copy of one has more there."""
    before, _, after = pattern.partition("*")
    for path in folder.glob(pattern):
        number = path.name.removeprefix(before).removesuffix(after)
        if number.isdecimal():
            yield int(number), path


def input_hashes(recipe: Recipe) -> dict[str, str]:
    """Return hashes of the models and files that are here, by path, and of the template and the reader."""
    models = [path for path in (recipe.model.path, recipe.model.average_with) if path]
    files = [*recipe.data.files, *([f"{recipe.adapter}/{WEIGHTS_FILE}"] if recipe.adapter else [])]
    hashes = {path: model_hash(path) for path in models if Path(path).exists()}
    hashes |= {path: data_hash(path) for path in files if Path(path).exists()}
    return hashes | recipe.reading.hashes | {name: plugin_hash(name) for name in recipe.rewards if is_plugin(name)}


def save_rollout(traces: Path, result: Result, step: int, name: str = "") -> None:
    """Append a rollout's record to the file of its step. The record has the chunks' text, but not the document.

    ``name`` is that of the rollout's rows, ``{prompt}_{rollout}``.
    """
    metadata = {**result.example.metadata, "step": step, "rollout": name}
    saved = replace(result, example=replace(result.example, metadata=metadata))
    append_record(traces / f"step_{step:06d}.jsonl", name or result.key, saved.to_record())


@contextmanager
def whole_checkpoint(folder: RunFolder, step: int) -> Iterator[Path]:
    """Yield a temporary folder for the caller to write ``global_step_N`` in, then move that to ``checkpoints``.

    The move is a rename, made only once every file is on disk and the weights have been read back. Any failure removes
    the temporary folder and raises :class:`CheckpointError`, which names the checkpoint that remains.
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
    """Flush each file in ``folder`` to disk, and read those with tensors back.

    Raises ``ValueError`` if one is damaged, or if no file has weights.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    # A checkpoint without weights would pass every check of its files.
    if not any(path.suffix == ".pt" for path in files):
        raise ValueError(f"{folder} has no file of weights (*.pt)")
    with ThreadPoolExecutor(_THREADS) as pool:
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
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            if broken is not None:
                raise ValueError(f"{path} was not written whole: {broken} differs from its checksum")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
