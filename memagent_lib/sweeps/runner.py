"""Run and resume sweeps. A sweep has one folder and one MLflow run; each point is a child run.

A finished point runs again only if its notebook, its parameters, a recipe or plug-in that they name, the library's code
or an earlier stage has changed. The sweep's folder has all of its state, so the same command continues after any
interruption.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from memagent_lib.errors import MissingFile
from memagent_lib.paths import absolute, root, write_atomically
from memagent_lib.rl import RunError, RunFolder
from memagent_lib.status_line import time_left
from memagent_lib.sweeps.notebook_jobs import JobOutcome, NotebookJob, run_jobs
from memagent_lib.sweeps.specification import PointState, SweepError, SweepPoint, SweepSpec, plan
from memagent_lib.system import terminable
from memagent_lib.tracking import PARENT_TAG, Experiment, MissingArtifact, Run, RunStatus, TrackingError, load_runs

if TYPE_CHECKING:
    import pandas as pd

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep.

    ``frame`` has a row per point, with the point's parameters as columns. ``mlflow`` is where its run opens.
    """

    folder: Path
    run_id: str
    frame: pd.DataFrame
    mlflow: str = ""

    @property
    def ok(self) -> bool:
        return bool((self.frame["status"] == PointState.FINISHED).all())


def run_sweep(sweep: SweepSpec | str | Path, *, workers: int | None = None) -> SweepResult:
    """Run the points of a sweep that have not finished, those that failed earlier too.

    After a failed point, the rest of its stage runs, but no later stage. Raises :class:`SweepError` for a faulty sweep
    before anything starts, and ``KeyboardInterrupt`` when stopped.
    """
    spec = sweep if isinstance(sweep, SweepSpec) else SweepSpec.load(sweep)
    if workers is not None:
        spec = replace(spec, workers=workers)
    stages = plan(spec)
    points = list(itertools.chain.from_iterable(stages))
    with only_sweep_in(spec.path), terminable():
        experiment = Experiment.open(spec.tracking)
        parent = _parent_run(experiment, spec)
        listed = [point.to_record() for point in points]
        record = {"name": spec.name, "run_id": parent.id, "tracking": experiment.uri, "points": listed}
        _write(spec.path / SWEEP_FILE, record)
        run = _SweepRun(spec, points, experiment, parent)
        try:
            for stage in stages:
                run.stage(stage)
                if any(_state(point)["status"] != PointState.FINISHED for point in stage):
                    break
        except BaseException as failure:
            print(f"stopped after {run.count} points; the same command continues from here", flush=True)
            killed = isinstance(failure, KeyboardInterrupt | SystemExit)
            parent.end(RunStatus.KILLED if killed else RunStatus.FAILED)
            raise
        result = SweepResult(spec.path, parent.id, sweep_frame(spec.path), parent.page)
        parent.end(RunStatus.FINISHED if result.ok else RunStatus.FAILED)
    return result


@dataclass(frozen=True)
class _SweepRun:
    """One call of :func:`run_sweep`, between its checks and its result."""

    spec: SweepSpec
    points: Sequence[SweepPoint]
    experiment: Experiment
    parent: Run

    @property
    def count(self) -> str:
        """The number of finished points and the total, such as ``3/12``."""
        return f"{sum(_state(point)['status'] == PointState.FINISHED for point in self.points)}/{len(self.points)}"

    def stage(self, points: Sequence[SweepPoint]) -> None:
        """Run a stage's unfinished points."""
        todo = {point.output: point for point in points if not self._has_finished(point)}
        runs: dict[Path, Run] = {}

        def jobs() -> Iterator[NotebookJob]:
            for output, point in list(todo.items()):
                run = runs[output] = self._start(point)
                own = {"tracking": self.spec.tracking, "run_id": run.id, "point": point.file_name}
                declared = {name: value for name, value in own.items() if name in point.declared}
                yield NotebookJob(point.notebook, output, point.parameters | declared, root())

        note = partial(self._say_what_runs, points, todo, runs)
        try:
            with closing(run_jobs(jobs(), self.spec.workers, note)) as outcomes:
                for outcome in outcomes:
                    self._finish(todo.pop(outcome.job.output), runs.pop(outcome.job.output), outcome)
        finally:
            for run in runs.values():
                with suppress(TrackingError):  # the first failure is the one to raise
                    run.end(RunStatus.KILLED)

    def _say_what_runs(self, points: Sequence[SweepPoint], todo: Mapping[Path, SweepPoint], runs: Mapping) -> None:
        """Print which points of a stage run, and about how long they take, where anything tells that.

        It is told by the steps of a training that runs, and by the points of the stage that have finished.
        """
        running = [point for output, point in todo.items() if output in runs]
        note = "; ".join(f"{point.name}{_steps(point)}" for point in running)
        took = [state["seconds"] for state in map(_state, points) if state["status"] == PointState.FINISHED]
        if took:
            spent = sum(min(mean(took), time.time() - point.record.stat().st_mtime) for point in running)
            left = (len(todo) * mean(took) - spent) / min(len(todo), self.spec.workers)
            note += f"; {len(todo)} points of {points[0].stage}{time_left(left)}"
        print(f"[{self.count}] running: {note}", flush=True)

    def _has_finished(self, point: SweepPoint) -> bool:
        finished = _state(point)["status"] == PointState.FINISHED and point.output.exists()
        if finished:
            self._say(point, "was finished before")
        return finished

    def _start(self, point: SweepPoint) -> Run:
        tags = {"sweep": self.spec.name, "sweep_id": self.parent.id, "stage": point.stage, "key": point.key}
        run = self.experiment.start(point.name, point.parameters, tags, parent=self.parent.id)
        _save(point, PointState.RUNNING, run_id=run.id)
        self._say(point, "started")
        return run

    def _finish(self, point: SweepPoint, run: Run, outcome: JobOutcome) -> None:
        state = PointState.FAILED if outcome.error else PointState.FINISHED
        if point.output.exists():
            run.file(point.output)
        run.end(state.upper(), outcome.error or "")  # MLflow's words are the same
        # Saved last: no point counts as finished whose run does not say so.
        _save(point, state, run_id=run.id, seconds=round(outcome.seconds, 2), error=outcome.error)
        took = timedelta(seconds=round(outcome.seconds))
        self._say(point, f"failed: {outcome.error}" if outcome.error else f"finished in {took}")

    def _say(self, point: SweepPoint, how: str) -> None:
        print(f"[{self.count}] {point.name} {how}", flush=True)


def _steps(point: SweepPoint) -> str:
    """Return the step of the training in the point's folder ``out`` and the time left, or "" if there is none."""
    run = RunFolder(absolute(point.parameters.get("out", "")))
    with suppress(MissingFile, RunError):
        status = run.status()
        return f": {status.progress}{time_left(run.due(status.steps)[1] - time.time())}"
    return ""


def sweep_frame(folder: str | Path) -> pd.DataFrame:
    """Return a row per point of the sweep in ``folder``: its state, run and time, and its parameters as columns."""
    import pandas as pd

    names = ("stage", "point", "status", "seconds", "run_id", "error")
    rows = [point["parameters"] | {name: point[name] for name in names} for point in _points(absolute(folder))]
    return pd.DataFrame(rows).astype({"seconds": object, "error": object})


def gather_sweep(folder: str | Path, table: str = "results.parquet", *, tracking: str | Path = "") -> pd.DataFrame:
    """Return the rows of the artifact ``table`` from the runs, and their child runs, of all finished points.

    The parameters that vary become columns. If the rows already have a column of the same name with other values, the
    parameter's column gets the prefix ``param.``. ``tracking`` is the store that has the runs (default: the sweep's).
    Raises :class:`SweepError` if no finished point logged the table, and :class:`TrackingError` if the store does not
    have the runs.
    """
    import pandas as pd

    folder = absolute(folder)
    experiment = Experiment.open(tracking or store_of_sweep(folder), create=False)
    frames = []
    for point in _points(folder):
        if point["status"] != PointState.FINISHED:
            continue
        run = experiment.join(point["run_id"], deleted=True)
        below = load_runs(experiment, f"tags.`{PARENT_TAG}` = '{run.id}'")["run_id"]
        for run_id in (run.id, *reversed(below)):  # MLflow lists newest first
            with suppress(MissingArtifact):
                rows = experiment.join(run_id, deleted=True).read_table(table)
                frames.append(rows.assign(point=point["point"], **_columns(point["varied"], rows)))
    if not frames:
        raise SweepError(f"no finished point of the sweep in {folder} logged {table}, or its artifacts have moved")
    return pd.concat(frames, ignore_index=True)


def _columns(varied: Mapping[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return the columns to add to ``rows``: a point's varying parameters, renamed where ``rows`` differ from them."""
    columns = {}
    for name, value in varied.items():
        cell = json.dumps(value) if isinstance(value, list | dict) else value  # lists cannot be grouped by
        clashes = name in rows and list(rows[name].unique()) != [cell]
        columns[f"param.{name}" if clashes else name] = cell
    return columns


def is_sweep(folder: str | Path) -> bool:
    """Return whether a sweep has run in ``folder``."""
    return (absolute(folder) / SWEEP_FILE).is_file()


def store_of_sweep(folder: str | Path) -> str:
    """Return the address of the MLflow store to which the sweep in ``folder`` has logged."""
    return _sweep_of(absolute(folder))["tracking"]


def _sweep_of(folder: Path) -> dict[str, Any]:
    if not is_sweep(folder):
        raise SweepError(f"no sweep has run in {folder}; name a sweep's folder, or run one: memagent sweep FILE.toml")
    return _read(folder / SWEEP_FILE)


def _points(folder: Path) -> list[dict[str, Any]]:
    """Return each point as the sweep's file lists it, with its record of status, time and error."""
    return [point | _record(folder / point["record"], point["key"]) for point in _sweep_of(folder)["points"]]


def _parent_run(experiment: Experiment, spec: SweepSpec) -> Run:
    """Return the sweep's own run: that of an earlier call, so that all children have one parent, or else a new one."""
    sweep = _read(spec.path / SWEEP_FILE)
    try:
        run = experiment.join(sweep["run_id"])
    except (KeyError, TrackingError):
        params = {"stages": [stage.name for stage in spec.stage], "folder": str(spec.path)}
        return experiment.start(f"sweep {spec.name}", params, {"sweep": spec.name})
    run.resume()
    return run


@contextmanager
def only_sweep_in(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for a ``with`` block; raise :class:`SweepError` if another sweep runs there.

    The system releases the lock when the process ends, however it ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "sweep.lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "wait for it, stop it, or give this one another folder"
            raise SweepError(f"a sweep is running in {folder}; {fix}") from None
        yield


def _state(point: SweepPoint) -> dict[str, Any]:
    return _record(point.record, point.key)


def _record(file: Path, key: str) -> dict[str, Any]:
    """Return a point's record; without one of this key, that of a point that has not run."""
    saved = _read(file)
    known = saved if saved.get("key") == key else {}
    return {"status": PointState.WAITING, "seconds": None, "run_id": None, "error": None} | known


def _save(point: SweepPoint, state: PointState, **outcome: Any) -> None:
    point.record.parent.mkdir(parents=True, exist_ok=True)
    _write(point.record, {"key": point.key, "status": state} | outcome)


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _write(file: Path, record: Mapping[str, Any]) -> None:
    write_atomically(file, json.dumps(record, indent=1))
