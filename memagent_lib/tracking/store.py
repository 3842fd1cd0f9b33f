"""Find and open the MLflow store. MLflow itself waits for a busy one, and its own messages say what is wrong."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from memagent_lib.errors import UserError, one_line
from memagent_lib.paths import absolute, lock_beside

if TYPE_CHECKING:
    from mlflow import MlflowClient


class TrackingError(UserError, ValueError):
    """The store cannot be used, or does not have the requested experiment, run or artifact."""


class MissingArtifact(TrackingError):
    """A run has no artifact of the requested name."""


def store_uri(where: str | Path) -> str:
    """Return the address of a store. ``where`` is the address itself, or a folder that contains ``mlflow.db``.

    The relative path of a SQLite address is resolved as that of a folder is (:func:`absolute`).
    """
    file = sqlite_file(str(where))
    if file:
        return f"sqlite:///{absolute(file)}"
    if re.match(r"[a-z]\w+:", str(where)):
        return str(where)
    return f"sqlite:///{absolute(where) / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file at a SQLite address, or None for any other address."""
    if uri.startswith("sqlite:///"):
        return Path(uri.removeprefix("sqlite:///"))
    return None


def prepare(uri: str) -> None:
    """Make a store ready for use, or raise :class:`TrackingError`.

    A new SQLite store gets its tables, and write-ahead logging, with which readers do not block the writer.
    """
    file = sqlite_file(uri)
    if file:
        if re.search(r"[?%]", str(file)):
            raise TrackingError(f"the path of the MLflow store {file.parent} has a ? or %, which SQLAlchemy decodes")
        try:
            with lock_beside(file):
                _make(file)
        except (sqlite3.Error, OSError) as failure:
            raise TrackingError(f"the MLflow store {file} cannot be used: {failure}") from failure
    elif urlsplit(uri).username:
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        raise TrackingError(f"the address of the MLflow server has a user name, which would be logged with it; {fix}")
    elif uri.startswith("http"):
        _quieten()
        from mlflow.utils.credentials import get_default_host_creds
        from mlflow.utils.rest_utils import http_request

        # Else MLflow would keep trying for minutes.
        call(http_request, get_default_host_creds(uri), "/version", "GET", max_retries=0, timeout=10)


def _make(file: Path) -> None:
    """Create a store in one step: MLflow cannot open one that is half made, nor SQLite switch the log of one in use."""
    if file.exists():
        return
    _quieten()
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH as ARTIFACTS
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    unfinished = file.with_name(f".{file.name}.part")
    unfinished.unlink(missing_ok=True)
    SqlAlchemyStore(f"sqlite:///{unfinished}", ARTIFACTS).engine.dispose()
    with closing(sqlite3.connect(unfinished)) as database:
        database.execute("PRAGMA journal_mode=WAL")
    unfinished.replace(file)


@lru_cache(maxsize=8)
def client_of(uri: str) -> MlflowClient:
    """Return MLflow's client for the store at ``uri``. It is created once per process."""
    _quieten()
    from mlflow import MlflowClient

    return call(MlflowClient, tracking_uri=uri)


def _quieten() -> None:
    """Turn off MLflow's telemetry, progress bars and routine log messages. Call this before MLflow is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    for chatty in ("mlflow.system_metrics.system_metrics_monitor", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of MLflow; its failure becomes a :class:`TrackingError` of one line.

    If another process has inserted the same dataset or tag between MLflow's query and its own insert, a second call
    finds that one.
    """
    from mlflow.exceptions import MlflowException

    for tries_left in (2, 1, 0):
        try:
            return method(*args, **kwargs)
        except MlflowException as failure:
            if not tries_left or "unique constraint" not in str(failure).lower():
                raise TrackingError(f"MLflow: {one_line(failure)}") from failure


def all_pages(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield all items of a search, whose results the store returns in pages."""
    page = call(method, *args, **kwargs, page_token=None)
    yield from page
    while page.token:
        page = call(method, *args, **kwargs, page_token=page.token)
        yield from page
