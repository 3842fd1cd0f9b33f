"""The MLflow store: where it is, how it is opened, and what is done when it is busy, locked or full. Knows no run."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from memagent_lib.workbench import place

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
_TRIES, _FIRST_WAIT_S = 6, 0.5


class TrackingError(ValueError):
    """The store cannot be used, or does not hold what was asked for."""


def store_uri(where: str | Path) -> str:
    """The address of the store: a tracking server or database address as it is, a folder as its ``mlflow.db``."""
    return str(where) if "://" in str(where) else f"sqlite:///{place(where) / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """The file behind a SQLite address; ``None`` for any other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def prepare(uri: str) -> None:
    """Create a SQLite store's tables, and let readers and one writer work side by side (write-ahead log)."""
    if (file := sqlite_file(uri)) is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    client_of(uri)
    try:
        with sqlite3.connect(file, timeout=30) as database:
            database.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as failure:
        raise TrackingError(
            f"the MLflow store {file} cannot be used ({failure}); close the program that holds it and try again"
        ) from failure


@lru_cache(maxsize=8)
def client_of(uri: str) -> MlflowClient:
    import logging
    import os

    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported; else it reports use over the network
    for chatty in ("mlflow.store.db.utils", "mlflow.system_metrics.system_metrics_monitor", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def patiently(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
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
