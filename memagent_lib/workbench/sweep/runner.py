"""Sweeps: a grid, a list of points or a sequence of stages over any notebooks, run by papermill and kept in one MLflow run.

A finished point is not run again while its notebook, its parameters, the library's code and the stages before it stay the
same. Everything a sweep knows is in its folder, so any interruption leaves a state that the same command goes on from.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.files import code_hash, place, root, write_atomically
from memagent_lib.processes import terminable
from memagent_lib.tracking.runs import Experiment, Run, Status, load_runs
from memagent_lib.tracking.store import TrackingError
from memagent_lib.workbench.sweep.board import Board, State
from memagent_lib.workbench.sweep.notebook_jobs import Job, NotebookError, Outcome, check, parameters_of, run_jobs

if TYPE_CHECKING:
    import pandas as pd

OWN_PARAMETERS = ("tracking", "run_id")  # given by the sweep to every notebook that has them
FOLDER_MARK = "{folder}"


class SweepError(ValueError):
    """A sweep that cannot start, said before anything runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One notebook at one or more points: every entry of ``points``, times every combination of ``grid``, over ``parameters``."""

    name: str
    notebook: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    points: Sequence[Mapping[str, Any]] = ({},)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.name):
            raise SweepError(f"a stage's name is made of letters, digits, - and _; got {self.name!r}")
        for name, values in self.grid.items():
            if not isinstance(values, list | tuple) or not values:
                raise SweepError(f"stage {self.name}: grid.{name} must be a list of values, got {values!r}")
        if not self.points:
            raise SweepError(f"stage {self.name} has an empty list of points")

    def varied(self) -> Iterator[dict[str, Any]]:
        """What differs between the stage's points, point by point."""
        for point in self.points:
            for values in itertools.product(*self.grid.values()):
                yield dict(point) | dict(zip(self.grid, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """A sweep. ``parameters`` go to every stage whose notebook has them; ``{folder}`` in a text stands for the sweep's folder.

    Stages run one after the other, the points of one stage side by side. ``tracking`` is the MLflow store: a folder or address.
    """

    name: str
    stages: tuple[Stage, ...]
    folder: str = ""
    tracking: str = "runs"
    workers: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stages:
            raise SweepError(f"the sweep {self.name!r} has no stages")
        names = [stage.name for stage in self.stages]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SweepError(f"two stages are called {', '.join(twice)}; names must differ")
        if self.workers < 1:
            raise SweepError(f"workers must be at least 1, got {self.workers}")

    @property
    def place(self) -> Path:
        return place(self.folder or f"runs/{self.name}")

    @classmethod
    def load(cls, path: str | Path) -> SweepSpec:
        """Read a TOML file: the fields above, and ``[[stage]]`` tables; or one notebook's ``notebook``, ``grid``, ``points`` at the top."""
        path = Path(path)
        if not path.is_file():
            raise SweepError(f"no sweep file {path}")
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as failure:
            raise SweepError(f"{path} is not TOML: {failure}") from failure
        stages = table.pop("stage", None)
        if stages is None:
            own = {key: table.pop(key) for key in ("notebook", "grid", "points") if key in table}
            stages = [own | {"name": Path(own["notebook"]).stem}] if "notebook" in own else []
        made = tuple(
            Stage(**_known(Stage, stage, f"{path}: stage {stage.get('name', number)}"))
            for number, stage in enumerate(stages, 1)
        )
        return cls(**_known(cls, {"name": path.stem, **table, "stages": made}, str(path)))


def _known(kind: type, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = [f.name for f in fields(kind)]
    if unknown := sorted(set(table) - set(names)):
        raise SweepError(
            f"{where} has no key {', '.join(unknown)}; the keys are {', '.join(n if n != 'stages' else 'stage' for n in names)}"
        )
    if missing := sorted({"name", "notebook"} & set(names) - set(table)):
        raise SweepError(f"{where} needs {', '.join(missing)}")
    return dict(table)


@dataclass(frozen=True, slots=True)
class Point:
    """One notebook at one set of parameters. ``key`` changes when its result might."""

    stage: str
    label: str
    notebook: Path
    parameters: dict[str, Any]
    defaults: dict[str, str]
    key: str
    output: Path

    @property
    def name(self) -> str:
        return f"{self.stage} {self.label}".strip()

    @property
    def state_file(self) -> Path:
        return self.output.with_suffix(".json")

    def state(self) -> dict[str, Any]:
        """What is known from earlier: ``{}`` if nothing is."""
        try:
            return json.loads(self.state_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}

    def skipped(self) -> bool:
        found = self.state()
        return found.get("key") == self.key and found.get("status") == Status.FINISHED and self.output.exists()

    def failed_before(self) -> bool:
        found = self.state()
        return found.get("key") == self.key and found.get("status") == Status.FAILED


@dataclass(frozen=True)
class SweepResult:
    """What came of a sweep: one row per point in ``frame``."""

    folder: Path
    run_id: str
    frame: pd.DataFrame

    @property
    def ok(self) -> bool:
        return bool((self.frame["status"] == Status.FINISHED).all())

    def _repr_html_(self) -> str:
        return self.frame.drop(columns=["notebook"]).to_html(index=False, escape=True)


def plan(spec: SweepSpec) -> list[list[Point]]:
    """The points of each stage. Unknown parameters, wrong types and missing notebooks are errors here, before anything starts."""
    declared = {stage.name: parameters_of(place(stage.notebook)) for stage in spec.stages}
    if homeless := sorted(set(spec.parameters) - set().union(*declared.values())):
        raise SweepError(f"no notebook of the sweep {spec.name!r} has the parameter {', '.join(homeless)}")
    planned, before, code = [], "", code_hash()
    for stage in spec.stages:
        known, notebook = declared[stage.name], place(stage.notebook)
        shared = {name: value for name, value in spec.parameters.items() if name in known}
        points = []
        for varied in stage.varied():
            given = _filled(shared | dict(stage.parameters) | varied, spec.place)
            check(notebook, known, given)
            if own := sorted(set(given) & set(OWN_PARAMETERS)):
                raise SweepError(f"stage {stage.name}: {', '.join(own)} is given by the sweep itself")
            key = _key(notebook, given, code, before)
            label = _label(varied)
            output = spec.place / "notebooks" / f"{stage.name}{'--' * bool(label)}{_file_name(label)}.ipynb"
            points.append(
                Point(stage.name, label, notebook, given, {n: p.default for n, p in known.items()}, key, output)
            )
        if len({p.output for p in points}) < len(points):
            raise SweepError(f"stage {stage.name} has the same point twice")
        planned.append(points)
        before = hashlib.sha256("".join(p.key for p in points).encode()).hexdigest()
    return planned


def run_sweep(
    sweep: SweepSpec | str | Path, *, workers: int | None = None, retry: bool = False, quiet: bool = False
) -> SweepResult:
    """Run what is not finished yet. ``retry`` runs points again that failed in an earlier call; otherwise they stay failed.

    A failed point does not stop its stage; the stages after it are not begun. Raises :class:`SweepError` or
    :class:`~memagent_lib.workbench.sweep.notebook_jobs.NotebookError` before anything starts, ``KeyboardInterrupt`` when stopped.
    """
    spec = sweep if isinstance(sweep, SweepSpec) else SweepSpec.load(sweep)
    try:
        stages = plan(spec)
    except NotebookError as failure:
        raise SweepError(str(failure)) from failure
    with only_sweep_in(spec.place), terminable():
        ledger = Experiment.open(spec.tracking)
        parent, workers = _parent_run(ledger, spec), workers or spec.workers
        known = [(p.stage, p.name, p.state().get("seconds")) for p in itertools.chain.from_iterable(stages)]
        with Board(spec.name, known, workers, quiet) as board:
            _run_stages(stages, _Sweep(spec, ledger, parent, board, workers, retry))
        result = SweepResult(spec.place, parent.id, _frame(stages))
        parent.table(result.frame.astype({"parameters": str}), "points.parquet")
        parent.end(Status.FINISHED if result.ok else Status.FAILED)
    return result


@dataclass(frozen=True)
class _Sweep:
    spec: SweepSpec
    ledger: Experiment
    parent: Run
    board: Board
    workers: int
    retry: bool


def _run_stages(stages: list[list[Point]], sweep: _Sweep) -> None:
    try:
        for points in stages:
            if not _run_stage(points, sweep):
                return
    except BaseException as failure:
        sweep.board.say(
            f"stopped after {sweep.board.done} of {sweep.board.total} points; the same command goes on from here"
        )
        _end(
            sweep.parent,
            Status.KILLED if isinstance(failure, KeyboardInterrupt | SystemExit) else Status.FAILED,
            sweep.board,
        )
        raise


def _run_stage(points: list[Point], sweep: _Sweep) -> bool:
    """Run a stage's unfinished points; whether all are finished now."""
    todo = []
    for point in points:
        if point.skipped():
            sweep.board.set(point.name, State.KEPT)
        elif point.failed_before() and not sweep.retry:
            sweep.board.set(
                point.name, State.FAILED, error=f"{point.state()['error']} - failed earlier; retry to run it again"
            )
        else:
            todo.append(point)
    by_output, runs = {p.output: p for p in todo}, {}

    def start(job: Job) -> Job:
        point = by_output[job.output]
        runs[job.output] = run = _child_run(point, sweep)
        _write_state(point, Status.RUNNING, run_id=run.id)
        sweep.board.set(point.name, State.RUNNING)
        own = {"tracking": sweep.ledger.uri, "run_id": run.id}
        return Job(
            job.name,
            job.notebook,
            job.output,
            job.parameters | {k: v for k, v in own.items() if k in point.defaults},
            job.cwd,
        )

    def end(outcome: Outcome) -> None:
        run = runs.pop(outcome.job.output)
        _finish(by_output[outcome.job.output], run, outcome, sweep.board)

    try:
        jobs = [Job(p.name, p.notebook, p.output, p.parameters, root()) for p in todo]
        run_jobs(jobs, sweep.workers, start, end, sweep.board.tick, sweep.board.stopping)
    finally:
        for run in runs.values():
            _end(run, Status.KILLED, sweep.board)
    return all(p.skipped() for p in points)


def _child_run(point: Point, sweep: _Sweep) -> Run:
    tags = {
        "sweep": sweep.spec.name,
        "sweep_id": sweep.parent.id,
        "stage": point.stage,
        "notebook": point.notebook.name,
        "key": point.key,
    }
    given = {
        name: _literal(text) for name, text in point.defaults.items() if name not in OWN_PARAMETERS
    } | point.parameters
    return sweep.ledger.start(point.name, given, tags, parent=sweep.parent.id)


def _literal(text: str) -> Any:
    """The value of a default; its text where it is an expression."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _finish(point: Point, run: Run, outcome: Outcome, board: Board) -> None:
    status = Status.FAILED if outcome.error else Status.FINISHED
    if point.output.exists():
        run.file(point.output)
    run.metrics({"seconds": outcome.seconds})
    if outcome.error:
        run.tags({"error": outcome.error[:5000]})
    run.end(status)
    _write_state(point, status, run_id=run.id, seconds=round(outcome.seconds, 2), error=outcome.error)
    board.set(point.name, State.FAILED if outcome.error else State.FINISHED, outcome.seconds, outcome.error)


def _end(run: Run, status: Status, board: Board) -> None:
    """End a run when something has gone wrong already, which must stay what is raised."""
    try:
        run.end(status)
    except TrackingError as failure:
        board.say(f"the run {run.id} could not be ended as {status}: {failure}")


def _write_state(point: Point, status: Status, **facts: Any) -> None:
    point.state_file.parent.mkdir(parents=True, exist_ok=True)
    earlier = {"seconds": point.state().get("seconds")}
    record = earlier | {"key": point.key, "status": status, "parameters": point.parameters} | facts
    _write(point.state_file, record)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(record, indent=1))


def _parent_run(ledger: Experiment, spec: SweepSpec) -> Run:
    """The sweep's own run: the one of an earlier call where there is one, so that all children stay together."""
    file = spec.place / "sweep.json"
    try:
        run = ledger.join(json.loads(file.read_text(encoding="utf-8"))["run_id"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TrackingError):
        run = ledger.start(
            f"sweep {spec.name}",
            {"stages": [s.name for s in spec.stages], "folder": str(spec.place)},
            {"sweep": spec.name},
        )
        _write(file, {"run_id": run.id, "name": spec.name})
        return run
    run.resume()
    abandoned = load_runs(ledger, f"tags.sweep_id = '{run.id}' and attributes.status = 'RUNNING'")
    for run_id in abandoned["run_id"]:  # a sweep that was killed outright could not say so
        ledger.join(run_id).end(Status.KILLED)
    return run


@contextmanager
def only_sweep_in(folder: Path) -> Iterator[None]:
    """Refuse a second sweep in one folder. The lock belongs to a living process: a dead one leaves none behind."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "sweep.lock", "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip() or "another process"
            raise SweepError(
                f"a sweep is running in {folder} (process {pid}); wait for it, stop it, or give this one another folder"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _key(notebook: Path, parameters: Mapping[str, Any], code: str, before: str) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    said = [("".join(c["source"]), c["cell_type"], c.get("metadata", {}).get("tags", [])) for c in cells]
    return hashlib.sha256(
        json.dumps([said, parameters, code, before], sort_keys=True, default=str).encode()
    ).hexdigest()[:16]


def _filled(parameters: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(FOLDER_MARK, str(folder))
        if isinstance(value, list | tuple):
            return [fill(v) for v in value]
        return {k: fill(v) for k, v in value.items()} if isinstance(value, Mapping) else value

    return {name: fill(value) for name, value in parameters.items()}


def _label(varied: Mapping[str, Any]) -> str:
    """What a point is called: what varies. Paths in the sweep's folder are shown from there."""
    label = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in varied.items()
    )
    return label.replace(f"{FOLDER_MARK}/", "")


def _file_name(label: str) -> str:
    """A label as a file name: readable, and never the same for two labels. Of paths it shows the last part."""
    plain = re.sub(r"[^\w=.,-]+", "_", re.sub(r"[^=, ]*/", "", label))
    if plain == label and len(plain) <= 80:
        return plain
    return f"{plain[:70]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}" if label else ""


def _frame(stages: list[list[Point]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([_row(point) for point in itertools.chain.from_iterable(stages)])


def _row(point: Point) -> dict[str, Any]:
    found = point.state()
    known = found if found.get("key") == point.key else {}
    facts = {name: known.get(name) for name in ("seconds", "run_id", "error")}
    asked = {"notebook": str(point.output), "parameters": point.parameters}
    return {"stage": point.stage, "point": point.label, "status": known.get("status", "not run"), **facts, **asked}
