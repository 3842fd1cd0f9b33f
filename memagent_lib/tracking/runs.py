"""MLflow experiments and runs: start, join and end runs, and log to them.

The store is always passed explicitly: an address, or a folder, which then has a SQLite file. There is no
environment variable and no global active run. The process that starts a job opens the experiment and creates its runs;
workers receive ids and call :meth:`Experiment.join`. A run records the process that owns it. If that process is killed,
the run is ended when the experiment is next opened on the same machine.
"""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pandas as pd

from memagent_lib.errors import nearest_path
from memagent_lib.paths import absolute
from memagent_lib.provenance import code_version, environment, model_hash
from memagent_lib.settings import flatten
from memagent_lib.status_line import status_line
from memagent_lib.system import Terminated, is_gone, terminable, this_process
from memagent_lib.tracking.store import (
    MissingArtifact,
    TrackingError,
    all_pages,
    call,
    client_of,
    prepare,
    sqlite_file,
    store_uri,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mlflow import MlflowClient

EXPERIMENT = "memagent"
PARENT_TAG = "mlflow.parentRunId"
OWNER_TAG = "owner"
SAMPLE_S = 5.0  # between two measurements of the machine


class RunStatus(StrEnum):
    """The status of a run, in MLflow's words."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment in one MLflow store. It is small and picklable, so it can be passed to other processes."""

    uri: str
    experiment_id: str

    @classmethod
    def open(cls, where: str | Path, experiment: str = EXPERIMENT, *, create: bool = True) -> Experiment:
        """Open an experiment in a store, named by a workspace folder or an address.

        The store and the experiment are created if they are missing, unless ``create`` is False. Raises
        :class:`TrackingError` if one of them is missing then, if the store cannot be used, or if the experiment was
        deleted.
        """
        uri = store_uri(where)
        file = sqlite_file(uri)
        if file and not create and not file.is_file():
            raise TrackingError(f"no MLflow store {file}; name that of an evaluation{nearest_path(file)}")
        with status_line(f"opening the MLflow store {where}"):
            prepare(uri)
            client = client_of(uri)
            found = call(client.get_experiment_by_name, experiment)
            artifacts = (file.parent / "artifacts").as_uri() if file else None
            if found is None and create:
                with suppress(TrackingError):  # another process was quicker
                    call(client.create_experiment, experiment, artifact_location=artifacts)
                found = call(client.get_experiment_by_name, experiment)
            if found is None or found.lifecycle_stage != "active":
                raise TrackingError(f"the MLflow store {uri} has no experiment {experiment!r}, or it was deleted")
            if create and file and found.artifact_location.startswith("file:"):
                _require_at_home(file, found.artifact_location)
            opened = cls(uri, found.experiment_id)
            opened._end_runs_of_dead_processes()
        return opened

    @property
    def client(self) -> MlflowClient:
        return client_of(self.uri)

    def start(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> Run:
        """Start a run, and log its parameters, the code's version and ``environment.json``.

        The run is RUNNING until :meth:`Run.end`.
        """
        all_tags = {OWNER_TAG: this_process(), **code_version(), **(tags or {})}
        if parent:
            all_tags[PARENT_TAG] = parent
        made = call(self.client.create_run, self.experiment_id, tags=all_tags, run_name=name)
        run = Run(self, made.info.run_id)
        run.params(params or {})
        run.text(json.dumps(environment(), indent=1), "environment.json")
        return run

    def join(self, run_id: str, *, deleted: bool = False) -> Run:
        """Return a run that was started before.

        Raises :class:`TrackingError` if the store has no run ``run_id``, or if it was deleted, so that nothing can be
        logged to it. With ``deleted``, such a run is returned too: its artifacts can still be read.
        """
        found = call(self.client.get_run, run_id)
        if found.info.lifecycle_stage != "active" and not deleted:
            raise TrackingError(f"the run {run_id!r} in {self.uri} was deleted")
        return Run(self, run_id)

    @contextmanager
    def run(
        self, name: str, params: Mapping[str, Any] | None = None, *, run_id: str = "", **start: Any
    ) -> Iterator[Run]:
        """Start a run for a ``with`` block, and end it with the block.

        The status becomes FINISHED, FAILED, or KILLED after Ctrl-C or SIGTERM. During the block, the use of processor,
        memory, disk, network and GPU is logged as metrics ``system/...``. With ``run_id``, the block joins that run
        instead and does not end it, because its creator (a sweep, the launcher) does.
        """
        if run_id:
            run = self.join(run_id)
            logged = run._call("get_run").data.params  # a sweep has logged its own, and MLflow allows no change
            run.params({name: value for name, value in _flat(params or {}).items() if name not in logged})
            with run.measured():
                yield run
            return
        run = self.start(name, params, **start)
        with terminable():
            try:
                with run.measured():
                    yield run
            except BaseException as failure:
                if isinstance(failure, SystemExit) and not failure.code:  # sys.exit(0) inside the block is no failure
                    run.end()
                    raise
                killed = isinstance(failure, (KeyboardInterrupt, Terminated))
                status = RunStatus.KILLED if killed else RunStatus.FAILED
                run.end(status, f"{type(failure).__name__}: {failure}")
                raise
        run.end()

    def _end_runs_of_dead_processes(self) -> None:
        owned = f"attributes.status = 'RUNNING' AND tags.{OWNER_TAG} != ''"
        for run in call(self.client.search_runs, [self.experiment_id], owned):
            if is_gone(run.data.tags[OWNER_TAG]):
                why = "its process was killed before it could say how it ended"
                Run(self, run.info.run_id).end(RunStatus.KILLED, why)


@dataclass(frozen=True, slots=True)
class Run:
    """One MLflow run, by id. Any process can log to it, even after the run has ended."""

    experiment: Experiment
    id: str

    def params(self, params: Mapping[str, Any]) -> None:
        """Log parameters, those of nested tables under dotted names. MLflow cuts values of over 6,000 characters."""
        from mlflow.entities import Param

        entries = [Param(name, value) for name, value in _flat(params).items()]
        for at in range(0, len(entries), 100):  # MLflow's limit for one call
            self._call("log_batch", params=entries[at : at + 100])

    def metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log numbers at a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        known = {allowed_name(name): float(value) for name, value in metrics.items() if value is not None}
        self._call("log_batch", metrics=[Metric(name, value, now, step) for name, value in known.items()])

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run, with one call to the store for each tag."""
        for name, value in tags.items():
            self._call("set_tag", allowed_name(name), str(value))

    def file(self, path: str | Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder, as artifacts."""
        method = "log_artifacts" if Path(path).is_dir() else "log_artifact"
        self._call(method, str(path), folder)

    def text(self, text: str, name: str) -> None:
        """Log a text as the artifact ``name``."""
        self._call("log_text", text, name)

    def table(self, frame: pd.DataFrame, name: str) -> None:
        """Log a frame as the artifact ``name``: as CSV if ``name`` ends in ``.csv``, else as parquet."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(name).name
            if path.suffix == ".csv":
                frame.to_csv(path, index=False)
            else:
                frame.to_parquet(path, index=False)
            self.file(path, str(Path(name).parent) if "/" in name else None)

    def figure(self, figure: Figure, name: str) -> None:
        """Log a figure as an image, the artifact ``name``."""
        self._call("log_figure", figure, name, save_kwargs={"dpi": 150, "bbox_inches": "tight"})

    def data(self, *files: str | Path, use: str = "evaluation") -> None:
        """Log the run's input files as MLflow datasets, with their hashes. ``use`` states what they are for."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        from memagent_lib.data import data_hash

        inputs = []
        for file in files:
            # A file's name is its column in load_runs; the digest tells versions of it apart.
            dataset = Dataset(Path(file).name, data_hash(file), "local", json.dumps({"uri": str(absolute(file))}))
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", use)]))
        self._call("log_inputs", datasets=inputs)

    def model(self, folder: str | Path, name: str = "", step: int = 0) -> None:
        """Tag the run with a policy's folder and the hash of its weights, by which runs of one policy are found."""
        self.tags({"model": str(folder), "weights": model_hash(folder), "model_name": name, "model_step": str(step)})

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of MLflow's client with this run's id."""
        return call(getattr(self.experiment.client, method), self.id, *arguments, **options)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the machine during a ``with`` block. A block shorter than :data:`SAMPLE_S` is not measured."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(self.id, SAMPLE_S, resume_logging=True, tracking_uri=self.experiment.uri)
        monitor.start()
        try:
            yield
        finally:
            monitor.finish()

    def end(self, status: RunStatus | str = RunStatus.FINISHED, error: str = "") -> None:
        """End the run with its final status, and first tag it with the error that ended it, if any."""
        if error:
            self.tags({"error": error[:5000]})  # MLflow's limit for a tag
        self._call("set_terminated", str(RunStatus(status)))

    @property
    def page(self) -> str:
        """Where a person opens the run in MLflow: its address, and the command that serves it.

        A store behind a server needs no command.
        """
        uri = self.experiment.uri
        page = f"experiments/{self.experiment.experiment_id}/runs/{self.id}"
        if uri.startswith("http"):
            return f"{uri.rstrip('/')}/#/{page}"
        is_default = uri == store_uri("runs")
        served_by = "memagent lab" if is_default else f"mlflow server --backend-store-uri {shlex.quote(uri)}"
        return f"http://127.0.0.1:5000/#/{page} while `{served_by}` runs"

    def resume(self) -> None:
        """Set an ended run to RUNNING again, now owned by this process."""
        self.tags({OWNER_TAG: this_process()})
        self._call("update_run", status=str(RunStatus.RUNNING))

    @property
    def status(self) -> RunStatus:
        return RunStatus(self._call("get_run").info.status)

    @property
    def policy(self) -> str:
        """The policy that the run has evaluated, its tag or else the run's name."""
        found = self._call("get_run")
        return found.data.tags.get("policy", found.info.run_name)

    def fetch(self, artifact: str, into: str | Path) -> Path:
        """Return the path of an artifact, copied to ``into``.

        Raises :class:`MissingArtifact` if the run has none of this name.
        """
        try:
            return Path(self._call("download_artifacts", artifact, str(into)))
        except (TrackingError, OSError) as failure:
            raise MissingArtifact(f"run {self.id} has no artifact {artifact!r} in {self.experiment.uri}") from failure

    def read_table(self, name: str) -> pd.DataFrame:
        """Return the frame that :meth:`table` logged under ``name``, which must end in ``.parquet``."""
        with tempfile.TemporaryDirectory() as folder:
            return pd.read_parquet(self.fetch(name, folder))


def _require_at_home(file: Path, artifacts: str) -> None:
    """Raise :class:`TrackingError` for a store that was moved or copied: it would write files below its old path."""
    if not Path(url2pathname(urlsplit(artifacts).path)).resolve().is_relative_to(file.parent.resolve()):
        fix = "move it back, or name another folder"
        raise TrackingError(f"the MLflow store {file.parent} was moved or copied from {artifacts}; {fix}")


def _flat(table: Mapping[str, Any]) -> dict[str, str]:
    """Return a nested table as MLflow logs it: dotted names in allowed characters, and strings as values."""
    tables = {key: asdict(value) if is_dataclass(value) else value for key, value in table.items()}
    return {
        allowed_name(name): value if isinstance(value, str) else json.dumps(value, default=str)
        for name, value in flatten(tables).items()
    }


def policy_name(model: str | Path) -> str:
    """Return a model's default name in tables and figures: the last part of its folder or hub name.

    Every training run exports to folders called ``model`` and ``adapter``, and every checkpoint is in
    ``actor/huggingface``. These models are named after the two path components before that.
    """
    parts = [part for part in Path(model).parts if part not in ("model", "adapter", "actor", "huggingface", "/")]
    is_of_a_run = Path(model).name in ("model", "adapter", "huggingface")
    return "/".join(parts[-2:] if is_of_a_run else parts[-1:]) or "model"


def allowed_name(name: str) -> str:
    """Return ``name`` with ``_`` for each character that MLflow refuses: all but letters, digits and ``_-. :/``."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)


def load_runs(experiment: Experiment, where: str = "") -> pd.DataFrame:
    """Return one row per run, newest first.

    Columns: ``run_id, name, status, started, seconds, parent``, then every ``data.*`` (the hashes of the files of that
    name), ``metrics.*``, ``params.*`` and ``tags.*`` (except MLflow's own). ``where`` is in MLflow's filter language,
    such as ``"params.model = 'x'"``.
    """
    query = {"max_results": 1000, "order_by": ["start_time DESC"]}
    found = all_pages(experiment.client.search_runs, [experiment.experiment_id], where, **query)
    rows = [_run_row(run) for run in found]
    first = ["run_id", "name", "status", "started", "seconds", "parent"]
    # Runs have different parameters and metrics, so the columns are those of all runs.
    return pd.DataFrame(rows, columns=first + sorted(set().union(*rows) - set(first)))


def _run_row(run: Any) -> dict[str, Any]:
    info = run.info
    data = run.data
    row = {
        "run_id": info.run_id,
        "name": info.run_name,
        "status": info.status,
        "started": pd.Timestamp(info.start_time, unit="ms", tz="UTC"),
        "seconds": (info.end_time - info.start_time) / 1000 if info.end_time else None,  # MLflow has milliseconds
        "parent": data.tags.get(PARENT_TAG),
    }
    for dataset in (seen.dataset for seen in run.inputs.dataset_inputs):
        name = f"data.{dataset.name}"  # files of several folders may share it
        row[name] = ", ".join(filter(None, (row.get(name), dataset.digest)))
    row |= {f"params.{name}": value for name, value in data.params.items()}
    row |= {f"metrics.{name}": value for name, value in data.metrics.items()}
    return row | {f"tags.{name}": value for name, value in data.tags.items() if not name.startswith("mlflow.")}
