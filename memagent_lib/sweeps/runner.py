"""Run, resume and inspect sweeps. A sweep has one folder and one MLflow run; each point is a child run.

A finished point runs again only if its notebook, its parameters, a recipe or plug-in that they name, the library's code
or an earlier stage has changed.
The sweep's folder has all of its state, so the same command continues after any interruption.
"""

from __future__ import annotations

import ast
import fcntl
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.paths import absolute, root, write_atomically
from memagent_lib.sweeps.board import SweepBoard, duration, show_states
from memagent_lib.sweeps.notebook_jobs import JobOutcome, NotebookJob, run_jobs
from memagent_lib.sweeps.specification import (
    OWN_PARAMETERS,
    PointState,
    SweepError,
    SweepPoint,
    SweepSpec,
    plan,
)
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

    def _repr_html_(self) -> str:
        return self.frame.drop(columns=["notebook"]).to_html(index=False, escape=True)


def run_sweep(sweep: SweepSpec | str | Path, *, workers: int | None = None, retry: bool = False) -> SweepResult:
    """Run the unfinished points of a sweep. Points that failed earlier are run again only with ``retry``.

    After a failed point, the rest of its stage runs, but no later stage. Raises :class:`SweepError` for a faulty sweep
    before anything starts, and ``KeyboardInterrupt`` when stopped.
    """
    spec = sweep if isinstance(sweep, SweepSpec) else SweepSpec.load(sweep)
    if workers is not None:
        spec = replace(spec, workers=workers)
    stages = plan(spec)
    with only_sweep_in(spec.path), terminable():
        experiment = Experiment.open(spec.tracking)
        parent = _parent_run(experiment, spec)
        _write(
            spec.path / SWEEP_FILE,
            {"name": spec.name, "run_id": parent.id, "tracking": experiment.uri, "points": _listed(stages)},
        )
        with SweepBoard(stages) as board:
            _SweepRun(spec, experiment, parent, board, retry).run(stages)
        result = SweepResult(spec.path, parent.id, _frame(stages), parent.page)
        # As text, because parameters of several notebooks share a column and differ in type.
        parent.table(result.frame.astype(str), "points.parquet")
        parent.end(RunStatus.FINISHED if result.ok else RunStatus.FAILED)
    return result


def show_sweep(folder: str | Path) -> bool:
    """Print the state of the sweep in ``folder``; return whether all of its points have finished.

    This works from any process, while the sweep runs and afterwards. Raises :class:`SweepError` if there is none.
    """
    folder = absolute(folder)
    if not is_sweep(folder):
        pid = _running_in(folder)
        if pid:  # it opens its store first, and then lists its points
            print(f"the sweep in {folder} is starting, process {pid}; it lists its points in a few seconds")
            return False
    sweep = _sweep_of(folder)
    rows = [point | record for point, record in _recorded(folder, sweep)]
    pid = _running_in(folder)
    if pid is None:
        for row in rows:  # a point cannot run without its sweep: this one was killed
            if row["status"] == PointState.RUNNING:
                row["status"] = PointState.WAITING
    state = f"running, process {pid}" if pid else "not running"
    show_states(rows, f"{sweep['name']}: {state}")
    return all(row["status"] == PointState.FINISHED for row in rows)


def gather_sweep(folder: str | Path, table: str = "results.parquet", *, tracking: str | Path = "") -> pd.DataFrame:
    """Return the rows of the artifact ``table`` from the runs, and their child runs, of all finished points.

    The parameters that vary become columns. If the rows already have a column of the same name with other values, the
    parameter's column gets the prefix ``param.``. ``tracking`` is the store that has the runs (default:
    :func:`store_of_sweep`). Raises :class:`SweepError` if no finished point logged the table, and
    :class:`TrackingError` if there is no such store or it does not have the runs.
    """
    import pandas as pd

    folder = absolute(folder)
    sweep = _sweep_of(folder)
    frames = []
    run_ids = []
    experiment = Experiment.open(tracking or sweep["tracking"], create=False)
    for point, record in _recorded(folder, sweep):
        if record["status"] != PointState.FINISHED:
            continue
        run_ids.append(_require_run(experiment, point, record["run_id"]))
        below = load_runs(experiment, f"tags.`{PARENT_TAG}` = '{record['run_id']}'")["run_id"]
        for rows in _tables(experiment, [record["run_id"], *reversed(below)], table):  # MLflow lists newest first
            frames.append(rows.assign(point=point["point"], **_columns(point["varied"], rows)))
    if not frames:
        expected = f" (the first one's is expected in {experiment.join(run_ids[0]).artifacts})" if run_ids else ""
        raise SweepError(
            f"no finished point of the sweep in {folder} logged {table}{expected}; name a table that its notebooks "
            "log, or put the artifacts of its runs back where the store expects them"
        )
    return pd.concat(frames, ignore_index=True)


def _require_run(experiment: Experiment, point: Mapping[str, Any], run_id: str) -> str:
    """Return the id of a finished point's run. Raises :class:`TrackingError` if the store does not have the run."""
    try:
        return experiment.join(run_id, deleted=True).id
    except TrackingError as failure:
        name = f"{point['stage']} {point['point']}".strip()
        raise TrackingError(
            f"the run of the finished point {name!r} cannot be read ({failure}); name the store that has it, or delete "
            f"{point['record']} in the sweep's folder and run the sweep again"
        ) from failure


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


def unfinished_points(folder: str | Path) -> list[str]:
    """Return one line per unfinished point of the sweep in ``folder``: its stage, name and state."""
    folder = absolute(folder)
    records = _recorded(folder, _sweep_of(folder))
    return [f"{p['stage']}, {p['point']}: {r['status']}" for p, r in records if r["status"] != PointState.FINISHED]


def _tables(experiment: Experiment, run_ids: Iterable[str], name: str) -> Iterator[pd.DataFrame]:
    """Yield the table of each run that logged one."""
    for run_id in run_ids:
        with suppress(MissingArtifact):
            yield experiment.join(run_id, deleted=True).read_table(name)


def _sweep_of(folder: Path) -> dict[str, Any]:
    sweep = _read(folder / SWEEP_FILE)
    if "tracking" not in sweep:
        raise SweepError(f"no sweep has run in {folder}; name a sweep's folder, or run one: memagent sweep FILE.toml")
    return sweep


def _recorded(folder: Path, sweep: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each point, as listed in the sweep's file, with its record of status, time and error."""
    return ((point, _record(folder / point["record"], point["key"])) for point in sweep["points"])


@dataclass(frozen=True)
class _SweepRun:
    """One call of :func:`run_sweep`, between its checks and its result."""

    spec: SweepSpec
    experiment: Experiment
    parent: Run
    board: SweepBoard
    retry: bool

    def run(self, stages: Sequence[Sequence[SweepPoint]]) -> None:
        try:
            for points in stages:
                if not self._run_stage(points):
                    return
        except BaseException as failure:
            self.board.say(f"stopped after {self.board.count} points; the same command continues from here")
            stopped = isinstance(failure, KeyboardInterrupt | SystemExit)
            self._end(self.parent, RunStatus.KILLED if stopped else RunStatus.FAILED)
            raise

    def _run_stage(self, points: Sequence[SweepPoint]) -> bool:
        """Run a stage's unfinished points; return whether all are finished now."""
        todo = {point.output: point for point in points if self._wants(point)}
        runs: dict[Path, Run] = {}

        def start(job: NotebookJob) -> NotebookJob:
            point = todo[job.output]
            run = self._child_run(point)
            runs[job.output] = run
            before = _record(_record_file(point), point.key)["seconds"]
            _save(point, PointState.RUNNING, run_id=run.id)
            how = "started"
            if before:
                how = f"started, took {duration(before)} before"
            self.board.set(point, PointState.RUNNING, how)
            own = {"tracking": self.experiment.uri, "run_id": run.id, "point": point.file_name}
            own |= self.spec.cluster.parameters
            return replace(job, parameters=job.parameters | {k: v for k, v in own.items() if k in point.defaults})

        def end(outcome: JobOutcome) -> None:
            self._finish(todo[outcome.job.output], runs.pop(outcome.job.output), outcome)

        jobs = [NotebookJob(p.notebook, p.output, p.parameters, root()) for p in todo.values()]
        try:
            run_jobs(jobs, self.spec.workers, start, end, self.board.stopping)
        finally:
            for run in runs.values():
                self._end(run, RunStatus.KILLED)
        return all(_state(p) == PointState.FINISHED for p in points)

    def _wants(self, point: SweepPoint) -> bool:
        """Return whether a point has to run. If not, print why."""
        record = _record(_record_file(point), point.key)
        if record["status"] == PointState.FINISHED and point.output.exists():
            self.board.set(point, PointState.FINISHED, "was finished before")
            return False
        if record["status"] == PointState.FAILED and not self.retry:
            self.board.set(point, PointState.FAILED, f"failed earlier (--retry runs it again): {record['error']}")
            return False
        return True

    def _child_run(self, point: SweepPoint) -> Run:
        tags = {"sweep": self.spec.name, "sweep_id": self.parent.id, "stage": point.stage, "key": point.key}
        defaults = {name: _literal(text) for name, text in point.defaults.items() if name not in OWN_PARAMETERS}
        tags["notebook"] = point.notebook.name
        engines = {name: value for name, value in self.spec.cluster.parameters.items() if name in defaults}
        return self.experiment.start(point.run_name, defaults | point.parameters | engines, tags, parent=self.parent.id)

    def _finish(self, point: SweepPoint, run: Run, outcome: JobOutcome) -> None:
        state, how = PointState.FINISHED, f"finished in {duration(outcome.seconds)}"
        if outcome.error is not None:
            state, how = PointState.FAILED, f"failed: {outcome.error}"
        # Saved before the store is asked: if that fails, the sweep stops, and the point need not run again.
        _save(point, state, run_id=run.id, seconds=round(outcome.seconds, 2), error=outcome.error)
        self.board.set(point, state, how)
        if point.output.exists():
            run.file(point.output)
        run.metrics({"seconds": outcome.seconds})
        if outcome.error is not None:
            run.tags({"error": outcome.error[:5000]})  # the store's limit on the length of a tag
        run.end(RunStatus.FINISHED if outcome.error is None else RunStatus.FAILED)

    def _end(self, run: Run, status: RunStatus) -> None:
        """End a run after a failure. If that fails too, only print why, so that the first failure is the one raised."""
        try:
            run.end(status)
        except TrackingError as failure:
            self.board.say(f"the run {run.id} could not be ended as {status}: {failure}")


def _literal(text: str) -> Any:
    """Return a parameter's default as a Python value, or as text if it is an expression."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _parent_run(experiment: Experiment, spec: SweepSpec) -> Run:
    """Return the sweep's own run: that of an earlier call, so that all children have one parent, or else a new one."""
    sweep = _read(spec.path / SWEEP_FILE)
    try:
        run = experiment.join(sweep["run_id"])
    except (KeyError, TrackingError):
        params = {"stages": [stage.name for stage in spec.stages], "folder": str(spec.path)}
        return experiment.start(f"sweep {spec.name}", params, {"sweep": spec.name})
    run.resume()
    # An earlier call's children may still be RUNNING in MLflow, although only this process runs the sweep now.
    abandoned = load_runs(experiment, f"tags.sweep_id = '{run.id}' and attributes.status = 'RUNNING'")
    states = {record["run_id"]: record["status"] for _, record in _recorded(spec.path, sweep)}
    ended = {PointState.FINISHED: RunStatus.FINISHED, PointState.FAILED: RunStatus.FAILED}
    for run_id in abandoned["run_id"]:  # a sweep that was killed outright, or whose store failed, could not end them
        experiment.join(run_id).end(ended.get(states.get(run_id), RunStatus.KILLED))
    return run


@contextmanager
def only_sweep_in(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for a ``with`` block; raise :class:`SweepError` if another sweep runs there.

    The system releases the lock when the process ends, however it ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # "a+" neither truncates what the holder wrote nor requires that the file exists.
    with open(folder / "sweep.lock", "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip() or "not known"
            fix = "wait for it, stop it, or give this one another folder"
            raise SweepError(f"a sweep is running in {folder} (process {pid}); {fix}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _running_in(folder: Path) -> str | None:
    """Return the id of the process that runs the sweep in ``folder``, if one does."""
    file = folder / "sweep.lock"
    if not file.is_file():
        return None
    with open(file, encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read().strip()
        return None


def _record_file(point: SweepPoint) -> Path:
    return point.output.with_suffix(".json")


def _state(point: SweepPoint) -> str:
    return _record(_record_file(point), point.key)["status"]


def _record(file: Path, key: str) -> dict[str, Any]:
    """Return a point's record. If the record has another key, only its time is used, as an estimate."""
    saved = _read(file)
    known = saved if saved.get("key") == key else {"seconds": saved.get("seconds")}
    return {"status": PointState.WAITING, "seconds": None, "run_id": None, "error": None} | known


def _save(point: SweepPoint, state: PointState, **outcome: Any) -> None:
    file = _record_file(point)
    file.parent.mkdir(parents=True, exist_ok=True)
    before = {"seconds": _read(file).get("seconds"), "error": None}
    _write(file, before | {"key": point.key, "status": state, "parameters": point.parameters} | outcome)


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def _write(file: Path, record: Mapping[str, Any]) -> None:
    write_atomically(file, json.dumps(record, indent=1))


def _listed(stages: Sequence[Sequence[SweepPoint]]) -> list[dict[str, Any]]:
    """Return what :func:`show_sweep` and :func:`gather_sweep` need to know about each point."""
    return [
        {
            "stage": point.stage,
            "point": point.label,
            "varied": dict(point.varied),
            "key": point.key,
            "record": str(_record_file(point).relative_to(point.folder)),
        }
        for point in itertools.chain.from_iterable(stages)
    ]


def _frame(stages: Sequence[Sequence[SweepPoint]]) -> pd.DataFrame:
    """Return a row per point. A parameter with the name of another column gets the prefix ``param.``."""
    import pandas as pd

    rows = []
    for point in itertools.chain.from_iterable(stages):
        record = _record(_record_file(point), point.key)
        row = {
            "stage": point.stage,
            "point": point.label,
            "status": record["status"],
            "seconds": record["seconds"],
            "run_id": record["run_id"],
            "error": record["error"],
            "notebook": str(point.output),
        }
        rows.append(row | {f"param.{name}" if name in row else name: v for name, v in point.parameters.items()})
    return pd.DataFrame(rows)
