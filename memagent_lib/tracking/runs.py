"""MLflow experiments and runs: what is logged to them, and reading them back as tidy frames.

One explicit store, by default a SQLite file in the workspace; no environment variable and no global active run. Whoever
starts a job opens the experiment and creates its runs; workers are handed ids and :meth:`Experiment.join`. A run names
the process that owns it: one that was killed outright is found out, and its run ended, when the experiment is next
opened on that machine.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import pandas as pd

from memagent_lib.paths import absolute, bytes_of
from memagent_lib.processes import Terminated, is_gone, terminable, this_process
from memagent_lib.provenance import code_version, environment, model_hash
from memagent_lib.tracking.store import TrackingError, client_of, prepare, sqlite_file, store_uri, with_retries

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mlflow import MlflowClient

T = TypeVar("T")
EXPERIMENT = "memagent"
PARENT_TAG = "mlflow.parentRunId"
OWNER_TAG = "owner"
SAMPLE_S = 5.0  # between two measurements of the machine
COPIED_WHOLE_BYTES = 64 << 20
_PARAM_CHARS = 6000  # MLflow's limit for the value of a parameter


class RunStatus(StrEnum):
    """How a run stands, in MLflow's words."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment in one MLflow store. Small and picklable: hand it to other processes."""

    uri: str
    experiment_id: str

    @classmethod
    def open(cls, where: str | Path, experiment: str = EXPERIMENT) -> Experiment:
        """The experiment of a workspace folder or address; store and experiment are made where they are missing."""
        uri = store_uri(where)
        prepare(uri)
        client = client_of(uri)
        found = with_retries(client.get_experiment_by_name, experiment)
        if found is None:
            file = sqlite_file(uri)
            artifacts = (file.parent / "artifacts").as_uri() if file else None
            return cls(uri, _create_experiment(client, experiment, artifacts))
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"the experiment {experiment!r} was deleted; restore it in MLflow or choose another name"
            )
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
        """A new run with its parameters, code version and ``environment.json``, RUNNING until it is ended."""
        given = {OWNER_TAG: this_process(), **code_version(), **(tags or {})}
        given |= {PARENT_TAG: parent} if parent else {}
        info = with_retries(self.client.create_run, self.experiment_id, tags=given, run_name=name).info
        run = Run(self, info.run_id)
        run.params(params or {})
        run.text(json.dumps(environment(), indent=1), "environment.json")
        return run

    def join(self, run_id: str) -> Run:
        """A run that someone else started."""
        from mlflow.exceptions import MlflowException

        try:
            with_retries(self.client.get_run, run_id)
        except MlflowException as failure:
            raise TrackingError(f"no run {run_id!r} in {self.uri}; `load_runs` lists those there are") from failure
        return Run(self, run_id)

    @contextmanager
    def run(
        self, name: str, params: Mapping[str, Any] | None = None, *, run_id: str = "", **start: Any
    ) -> Iterator[Run]:
        """A run that ends with the true status of what is done inside: FINISHED, FAILED, or KILLED by Ctrl-C or
        SIGTERM. Processor, memory, disk, network and GPU use are measured meanwhile, as metrics ``system/...``.

        With ``run_id`` it joins that run instead, and leaves ending it to whoever started it (a sweep, the launcher).
        """
        if run_id:
            run = self.join(run_id)
            known = run._call("get_run").data.params  # a sweep logs its point's; MLflow lets nobody change one
            given = _flat(params or {})
            run.params({name: value for name, value in given.items() if not _is_known(name, value, known)})
            with run.measured():
                yield run
            return
        run = self.start(name, params, **start)
        with terminable():
            try:
                with run.measured():
                    yield run
            except BaseException as failure:
                status = _status_of(failure)
                if status is not RunStatus.FINISHED:
                    run.tags({"error": f"{type(failure).__name__}: {failure}"[:5000]})
                run.end(status)
                raise
        run.end(RunStatus.FINISHED)

    def _end_runs_of_dead_processes(self) -> None:
        running = with_retries(
            self.client.search_runs, [self.experiment_id], f"attributes.status = 'RUNNING' AND tags.{OWNER_TAG} != ''"
        )
        for run in running:
            if is_gone(run.data.tags[OWNER_TAG]):
                ended = Run(self, run.info.run_id)
                ended.tags({"error": "its process was killed before it could say how it ended"})
                ended.end(RunStatus.KILLED)


@dataclass(frozen=True, slots=True)
class Run:
    """One MLflow run, by id. Logging works from any process that holds it, also after the run has ended."""

    experiment: Experiment
    id: str

    def params(self, params: Mapping[str, Any]) -> None:
        """Parameters as resolved, tables as dotted names; values too long for MLflow go to ``parameters.json``."""
        from mlflow.entities import Param

        flat = _flat(params)
        if long := {name: value for name, value in flat.items() if len(value) > _PARAM_CHARS}:
            self.text(json.dumps(flat, indent=2), "parameters.json")
            flat |= {name: f"({len(value):,} characters, see parameters.json)" for name, value in long.items()}
        for batch in _batches([Param(name, value) for name, value in flat.items()], 100):
            self._call("log_batch", params=batch)

    def metrics(self, metrics: Mapping[str, float], step: int = 0, model: str | None = None) -> None:
        """Numbers at a step; with the id of a logged model (:meth:`model`, :meth:`uses`) they are that model's too."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        entries = [
            Metric(allowed_name(n), float(value), now, step, model) for n, value in metrics.items() if value is not None
        ]
        for batch in _batches(entries, 500):
            self._call("log_batch", metrics=batch)

    def tags(self, tags: Mapping[str, str]) -> None:
        for name, value in tags.items():
            self._call("set_tag", allowed_name(name), str(value))

    def file(self, path: str | Path, folder: str | None = None) -> None:
        """A file or a folder as an artifact."""
        self._call("log_artifacts" if Path(path).is_dir() else "log_artifact", str(path), folder)

    def text(self, text: str, name: str) -> None:
        self._call("log_text", text, name)

    def table(self, frame: pd.DataFrame, name: str) -> None:
        """A frame as an artifact; ``name`` ends in ``.parquet`` or ``.csv``."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(name).name
            frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)
            self.file(path, str(Path(name).parent) if "/" in name else None)

    def figure(self, figure: Figure, name: str) -> None:
        self._call("log_figure", figure, name, save_kwargs={"dpi": 150, "bbox_inches": "tight"})

    def data(self, *files: str | Path, use: str = "evaluation") -> None:
        """Which data the run saw: each file as an MLflow dataset, its hash as the digest. ``use``: what for."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        from memagent_lib.data import data_hash

        sets = [Dataset(Path(f).name, data_hash(f), "local", json.dumps({"uri": str(absolute(f))})) for f in files]
        inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", use)]) for dataset in sets]
        self._call("log_inputs", datasets=inputs)

    def model(self, folder: str | Path, name: str, step: int = 0) -> str:
        """A policy that this run made at a step, as an MLflow model; returns its id, for :meth:`metrics`.

        Its tags say where it is (``folder``) and the hash of its ``weights``. Small ones are copied whole, of large
        ones only the place is kept: MLflow would double tens of gigabytes.
        """
        from mlflow.entities import LoggedModelOutput

        size = bytes_of(folder)
        made = self._register(
            folder, name, {"step": str(step), "files": "copied" if size <= COPIED_WHOLE_BYTES else "in the folder only"}
        )
        if size <= COPIED_WHOLE_BYTES:
            with_retries(self.experiment.client.log_model_artifacts, made, str(folder))
        with_retries(self.experiment.client.finalize_logged_model, made, "READY")
        self._call("log_outputs", [LoggedModelOutput(made, step)])
        return made

    def uses(self, model: str | Path) -> str:
        """The policy that this run reads with as its input: the MLflow model with these weights, made if missing."""
        from mlflow.entities import LoggedModelInput

        client, weights = self.experiment.client, model_hash(model)
        found = with_retries(
            client.search_logged_models, [self.experiment.experiment_id], f"tags.weights = '{weights}'", max_results=1
        )
        if found:
            used = found[0].model_id
        else:
            used = self._register(model, policy_name(model), {"files": "in the folder only"})
            with_retries(client.finalize_logged_model, used, "READY")
        with_retries(client.log_inputs, self.id, models=[LoggedModelInput(used)])
        return used

    def _call(self, what: str, *given: Any, **named: Any) -> Any:
        """A method of the client, on this run."""
        return with_retries(getattr(self.experiment.client, what), self.id, *given, **named)

    def _register(self, folder: str | Path, name: str, tags: Mapping[str, str]) -> str:
        given = {"folder": str(folder), "weights": model_hash(folder), **tags}
        name = "".join("-" if c in "/:.%\"'" else c for c in name)
        create = self.experiment.client.create_logged_model
        return with_retries(create, self.experiment.experiment_id, name, self.id, given, model_type="policy").model_id

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the machine meanwhile. A run that takes less than :data:`SAMPLE_S` seconds has no measurement.

        What is measured is logged once the run has a metric of its own, or at the end: MLflow's comparison of runs
        opens on the metric that was logged first.
        """
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(self.id, SAMPLE_S, resume_logging=True, tracking_uri=self.experiment.uri)
        waiting = monitor.mlflow_logger
        due = waiting._should_flush
        waiting._should_flush = lambda: due() and bool(self._call("get_run").data.metrics)
        monitor.start()
        try:
            yield
        finally:
            monitor.finish()

    def end(self, status: RunStatus | str = RunStatus.FINISHED) -> None:
        self._call("set_terminated", str(RunStatus(status)))

    def resume(self) -> None:
        """Set an ended run RUNNING again: its work goes on, in this process."""
        self.tags({OWNER_TAG: this_process()})
        self._call("update_run", status=str(RunStatus.RUNNING))

    @property
    def status(self) -> RunStatus:
        return RunStatus(self._call("get_run").info.status)

    def fetch(self, artifact: str, into: str | Path) -> Path:
        """An artifact's path: in place where the store is on this machine, else a copy in ``into``."""
        from mlflow.exceptions import MlflowException

        where = urlsplit(self._call("get_run").info.artifact_uri)
        if where.scheme in ("", "file") and (here := Path(unquote(where.path)) / artifact).exists():
            return here
        try:
            return Path(self._call("download_artifacts", artifact, str(into)))
        except (MlflowException, OSError) as failure:
            raise TrackingError(f"run {self.id} has no artifact {artifact!r}") from failure

    def read_table(self, name: str) -> pd.DataFrame:
        """A frame that was logged as a ``.parquet`` :meth:`table`."""
        with tempfile.TemporaryDirectory() as folder:
            return pd.read_parquet(self.fetch(name, folder))


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names that MLflow allows, and plain strings: the form in which parameters are logged."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if is_dataclass(value):
            value = asdict(value)
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[allowed_name(f"{prefix}{key}")] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _create_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return with_retries(client.create_experiment, name, artifact_location=artifacts)
    except MlflowException:  # another process was quicker
        if (found := with_retries(client.get_experiment_by_name, name)) is None:
            raise
        return found.experiment_id


def _status_of(failure: BaseException) -> RunStatus:
    if isinstance(failure, (KeyboardInterrupt, Terminated)):
        return RunStatus.KILLED
    if isinstance(failure, SystemExit) and not failure.code:
        return RunStatus.FINISHED
    return RunStatus.FAILED


def _is_known(name: str, value: str, known: Mapping[str, str]) -> bool:
    """Whether a run has a parameter already, or its value under its last name (of ``budget.chunk_tokens``)."""
    return name in known or known.get(name.rpartition(".")[2]) == value


def policy_name(model: str | Path) -> str:
    """What a model is called unless told otherwise: its folder's or hub name's last part. Every training run leaves its
    policy in a folder called ``model``, every checkpoint in ``actor/huggingface``; what that belongs to tells it apart.
    """
    parts = [part for part in Path(model).parts if part not in ("model", "actor", "huggingface", "/")]
    own = Path(model).name in ("model", "huggingface")
    return "/".join(parts[-2:] if own else parts[-1:]) or "model"


def allowed_name(name: str) -> str:
    """MLflow allows letters, digits and ``_-. :/`` in names; verl's metrics have ``@``, and policies commas."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))
