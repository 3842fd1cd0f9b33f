"""The ledger: MLflow runs, what is logged to them, and reading them back as tidy frames.

One explicit store, by default a SQLite file in the workspace; no environment variable and no global active run. Whoever starts
a job opens the ledger and creates its runs; workers are handed ids and :meth:`Ledger.join`. Knows no notebook and no model.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from memagent_lib.workbench import code_version, place

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from mlflow import MlflowClient

    from memagent_lib.evaluate import Result

T = TypeVar("T")
EXPERIMENT = "memagent"
PARENT_TAG, NAME_TAG = "mlflow.parentRunId", "mlflow.runName"
TRACE_FOLDER = "traces"
_PARAM_CHARS = 6000  # MLflow's limit for the value of a parameter
_TRIES, _FIRST_WAIT_S = 6, 0.5


class Status(StrEnum):
    """How a run stands, in MLflow's words."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class TrackingError(ValueError):
    """The store cannot be used, or does not hold what was asked for."""


class Terminated(SystemExit):
    """The process was asked to end (SIGTERM)."""


def store_uri(where: str | Path) -> str:
    """The address of the store: a tracking server or database address as it is, a folder as its ``mlflow.db``."""
    return str(where) if "://" in str(where) else f"sqlite:///{place(where) / 'mlflow.db'}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """One experiment in one MLflow store. Small and picklable: hand it to other processes."""

    uri: str
    experiment_id: str

    @classmethod
    def open(cls, where: str | Path, experiment: str = EXPERIMENT) -> Ledger:
        """The ledger of a workspace folder or tracking address; store and experiment are created where they are missing."""
        uri = store_uri(where)
        _prepare(uri)
        client = _client(uri)
        found = _patiently(client.get_experiment_by_name, experiment)
        if found is None:
            file = sqlite_file(uri)
            artifacts = (file.parent / "artifacts").as_uri() if file else None
            return cls(uri, _create_experiment(client, experiment, artifacts))
        if found.lifecycle_stage != "active":
            raise TrackingError(f"the experiment {experiment!r} was deleted; restore it in MLflow or choose another name")
        return cls(uri, found.experiment_id)

    @property
    def client(self) -> MlflowClient:
        return _client(self.uri)

    def start(
        self, name: str, params: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None, parent: str | None = None
    ) -> Run:
        """A new run with its parameters and the version of the code. It stays RUNNING until :meth:`Run.end`; see :meth:`run`."""
        given = {NAME_TAG: name, **code_version(), **(tags or {})} | ({PARENT_TAG: parent} if parent else {})
        info = _patiently(self.client.create_run, self.experiment_id, tags=given, run_name=name).info
        run = Run(self, info.run_id)
        run.params(params or {})
        return run

    def join(self, run_id: str) -> Run:
        """A run that someone else started."""
        from mlflow.exceptions import MlflowException

        try:
            _patiently(self.client.get_run, run_id)
        except MlflowException as failure:
            raise TrackingError(f"no run {run_id!r} in {self.uri}; `load_runs` lists those there are") from failure
        return Run(self, run_id)

    @contextmanager
    def run(self, name: str, params: Mapping[str, Any] | None = None, *, run_id: str = "", **start: Any) -> Iterator[Run]:
        """A run that ends with the true status of what is done inside: FINISHED, FAILED, or KILLED by Ctrl-C or SIGTERM.

        With ``run_id`` it joins that run instead, and leaves ending it to whoever started it (a sweep, the launcher).
        """
        if run_id:
            run = self.join(run_id)
            known = _patiently(self.client.get_run, run_id).data.params  # a sweep logs its point's; MLflow lets nobody change one
            run.params({name: value for name, value in flatten(params or {}).items() if name not in known})
            yield run
            return
        run = self.start(name, params, **start)
        with terminable():
            try:
                yield run
            except BaseException as failure:
                status = _status_of(failure)
                if status is not Status.FINISHED:
                    run.tags({"error": f"{type(failure).__name__}: {failure}"[:5000]})
                run.end(status)
                raise
        run.end(Status.FINISHED)


@dataclass(frozen=True, slots=True)
class Run:
    """One MLflow run, by id. Logging works from any process that holds it, also after the run has ended."""

    ledger: Ledger
    id: str

    def params(self, params: Mapping[str, Any]) -> None:
        """Parameters as resolved; nested tables become dotted names. A value too long for MLflow is kept in ``parameters.json``."""
        from mlflow.entities import Param

        flat = flatten(params)
        if long := {name: value for name, value in flat.items() if len(value) > _PARAM_CHARS}:
            self.text(json.dumps(flat, indent=2), "parameters.json")
            flat |= {name: f"({len(value):,} characters, see parameters.json)" for name, value in long.items()}
        entries = [Param(name, value) for name, value in flat.items()]
        for batch in _batches(entries, 100):
            _patiently(self.ledger.client.log_batch, self.id, params=batch)

    def metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for batch in _batches(
            [Metric(_metric_name(name), float(value), now, step) for name, value in metrics.items() if value is not None], 500
        ):
            _patiently(self.ledger.client.log_batch, self.id, metrics=batch)

    def tags(self, tags: Mapping[str, str]) -> None:
        for name, value in tags.items():
            _patiently(self.ledger.client.set_tag, self.id, name, str(value))

    def file(self, path: str | Path, folder: str | None = None) -> None:
        """A file or a folder as an artifact."""
        log = self.ledger.client.log_artifacts if Path(path).is_dir() else self.ledger.client.log_artifact
        _patiently(log, self.id, str(path), folder)

    def text(self, text: str, name: str) -> None:
        _patiently(self.ledger.client.log_text, self.id, text, name)

    def table(self, frame: pd.DataFrame, name: str) -> None:
        """A frame as an artifact; ``name`` ends in ``.parquet`` or ``.csv``."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(name).name
            frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)
            self.file(path, str(Path(name).parent) if "/" in name else None)

    def figure(self, figure: Figure, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            figure.savefig(path := Path(folder) / name, dpi=150, bbox_inches="tight")
            self.file(path)

    def data(self, *files: str | Path) -> None:
        """Which data the run saw: each file's name and hash."""
        from memagent_lib.data.examples import data_hash

        self.tags({f"data.{Path(f).name}": data_hash(f) for f in files})

    def traces(self, results: Iterable[Result], limit_bytes: int = 32 << 20) -> int:
        """The traces of results as an artifact, wrong and right ones in turn until the limit. Returns how many were left out."""
        from memagent_lib.tracefiles import write

        with tempfile.TemporaryDirectory() as folder:
            left_out = write(results, folder, limit_bytes)
            self.file(folder, TRACE_FOLDER)
        self.metrics({"traces_left_out": left_out})
        return left_out

    def end(self, status: Status | str = Status.FINISHED) -> None:
        _patiently(self.ledger.client.set_terminated, self.id, str(Status(status)))

    def resume(self) -> None:
        """Set an ended run RUNNING again: its work goes on."""
        _patiently(self.ledger.client.update_run, self.id, status=str(Status.RUNNING))

    @property
    def status(self) -> Status:
        return Status(_patiently(self.ledger.client.get_run, self.id).info.status)

    def fetch(self, artifact: str, into: str | Path) -> Path:
        """An artifact's path: in place where the store is on this machine, else a copy in ``into``."""
        from mlflow.exceptions import MlflowException

        where = urlsplit(_patiently(self.ledger.client.get_run, self.id).info.artifact_uri)
        if where.scheme in ("", "file") and (here := Path(unquote(where.path)) / artifact).exists():
            return here
        try:
            return Path(_patiently(self.ledger.client.download_artifacts, self.id, artifact, str(into)))
        except (MlflowException, OSError) as failure:
            raise TrackingError(f"run {self.id} has no artifact {artifact!r}") from failure


def load_runs(ledger: Ledger, where: str = "") -> pd.DataFrame:
    """One row per run, newest first: ``run_id, name, status, started, seconds, parent`` and every ``params.*``, ``metrics.*``, ``tags.*``.

    ``where`` is MLflow's filter language, as in ``"params.model = 'x' and metrics.score > 0.5"``.
    """
    import pandas as pd

    rows, token = [], None
    while True:
        page = _patiently(
            ledger.client.search_runs, [ledger.experiment_id], where, max_results=1000, order_by=["start_time DESC"], page_token=token
        )
        rows += [_run_row(run) for run in page]
        if not (token := page.token):
            break
    first = ["run_id", "name", "status", "started", "seconds", "parent"]
    frame = pd.DataFrame(rows)
    return frame[first + sorted(set(frame.columns) - set(first))] if rows else pd.DataFrame(columns=first)


def load_curve(run: Run, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """A run's metrics over its steps, long form: ``run_id, metric, step, value, seconds`` since the run began. All metrics by default."""
    import pandas as pd

    client = run.ledger.client
    stored = _patiently(client.get_run, run.id)
    rows = []
    for name in metrics or sorted(stored.data.metrics):
        history = _patiently(client.get_metric_history, run.id, _metric_name(name))
        rows += [(run.id, m.key, m.step, m.value, (m.timestamp - stored.info.start_time) / 1000) for m in history]
    frame = pd.DataFrame(rows, columns=["run_id", "metric", "step", "value", "seconds"])
    return frame.sort_values(["metric", "step", "seconds"], ignore_index=True)


def load_results(run: Run) -> list[Result]:
    """The results whose traces a run kept, with examples and documents."""
    from memagent_lib.tracefiles import read

    with tempfile.TemporaryDirectory() as folder:
        try:
            return read(run.fetch(TRACE_FOLDER, folder))
        except TrackingError as failure:
            raise TrackingError(f"run {run.id} kept no traces; runs of 03_evaluate and of training do") from failure


def load_traces(run: Run) -> pd.DataFrame:
    """One row per turn of every trace that a run kept; see :func:`memagent_lib.tracefiles.to_frame`."""
    from memagent_lib.tracefiles import to_frame

    return to_frame(load_results(run)).assign(run_id=run.id)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names and plain strings: the form in which parameters are logged."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if is_dataclass(value):
            value = asdict(value)
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def sqlite_file(uri: str) -> Path | None:
    """The file behind a SQLite address; ``None`` for any other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _prepare(uri: str) -> None:
    """Create a SQLite store's tables, and let readers and one writer work side by side (write-ahead log)."""
    if (file := sqlite_file(uri)) is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    _client(uri)
    try:
        with sqlite3.connect(file, timeout=30) as database:
            database.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as failure:
        raise TrackingError(
            f"the MLflow store {file} cannot be used ({failure}); close the program that holds it and try again"
        ) from failure


@lru_cache(maxsize=8)
def _client(uri: str) -> MlflowClient:
    import logging

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _create_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return _patiently(client.create_experiment, name, artifact_location=artifacts)
    except MlflowException:  # another process was quicker
        if (found := _patiently(client.get_experiment_by_name, name)) is None:
            raise
        return found.experiment_id


def _patiently(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call the store; wait and try again while it is busy (another process writes, or a server is short of breath)."""
    from mlflow.exceptions import MlflowException

    for attempt in range(_TRIES):
        try:
            return call(*args, **kwargs)
        except MlflowException as failure:
            if failure.error_code != "TEMPORARILY_UNAVAILABLE":
                raise
            if attempt == _TRIES - 1:
                raise TrackingError(
                    f"the MLflow store stays unavailable after {_TRIES} tries: {failure}; is it locked, or the disk full?"
                ) from failure
            time.sleep(_FIRST_WAIT_S * 2**attempt)
    raise AssertionError("unreachable")


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into :class:`Terminated` meanwhile, so that what is open gets closed. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise Terminated(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _status_of(failure: BaseException) -> Status:
    if isinstance(failure, (KeyboardInterrupt, Terminated)):
        return Status.KILLED
    if isinstance(failure, SystemExit) and not failure.code:
        return Status.FINISHED
    return Status.FAILED


def _metric_name(name: str) -> str:
    """MLflow allows letters, digits and ``_-. :/`` in names; verl's have ``@`` and others."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)


def _run_row(run: Any) -> dict[str, Any]:
    import pandas as pd

    info, data = run.info, run.data
    row = {
        "run_id": info.run_id,
        "name": info.run_name,
        "status": info.status,
        "started": pd.Timestamp(info.start_time, unit="ms", tz="UTC"),
        "seconds": (info.end_time - info.start_time) / 1000 if info.end_time else None,
        "parent": data.tags.get(PARENT_TAG),
    }
    tags = {f"tags.{k}": v for k, v in data.tags.items() if not k.startswith("mlflow.")}
    return row | {f"params.{k}": v for k, v in data.params.items()} | {f"metrics.{k}": v for k, v in data.metrics.items()} | tags


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))
