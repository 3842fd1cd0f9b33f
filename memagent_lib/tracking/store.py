"""The MLflow store: where it is, how it is opened, and what is done when it is busy, full or away. Knows no run."""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_exponential

from memagent_lib.errors import UserError
from memagent_lib.paths import absolute

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
RETRY_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
_SCHEMES = ("http://", "https://", "sqlite:///", "postgresql", "mysql", "mssql", "databricks")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TrackingError(UserError, ValueError):
    """The store cannot be used, or does not hold what was asked for."""


def store_uri(where: str | Path) -> str:
    """The address of the store: a tracking server or database address as it is, a folder as its ``mlflow.db``."""
    return str(where) if "://" in str(where) else f"sqlite:///{absolute(where) / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """The file behind a SQLite address; ``None`` for any other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def prepare(uri: str) -> None:
    """See that the store can be used: a SQLite store gets its tables, and readers beside one writer."""
    if file := sqlite_file(uri):
        _prepare_file(uri, file)
    elif uri.startswith("http"):
        _require_answer(uri)
    elif not uri.startswith(_SCHEMES):
        raise TrackingError(
            f"no MLflow store at {uri!r}; give a folder, or an address that begins with {', '.join(_SCHEMES)}"
        )


def _prepare_file(uri: str, file: Path) -> None:
    from sqlalchemy.exc import DatabaseError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as failure:
        raise TrackingError(f"{file.parent} is a file; the MLflow store is a folder (it gets a mlflow.db)") from failure
    try:
        _make_tables(file)
        client_of(uri)
        with sqlite3.connect(file, timeout=30) as database:
            database.execute("PRAGMA journal_mode=WAL")
    except (sqlite3.DatabaseError, DatabaseError) as failure:
        raise _unusable(uri, failure) from failure


def _make_tables(file: Path) -> None:
    """A new store appears with all its tables: one that is interrupted half way could never be opened again. Of several
    processes that come at once, the first one's stays.
    """
    if file.exists():
        return
    _quieten()
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH as ARTIFACTS
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    unfinished = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        SqlAlchemyStore(f"sqlite:///{unfinished}", ARTIFACTS).engine.dispose()
        with suppress(FileExistsError):
            try:
                os.link(unfinished, file)
            except PermissionError:  # a file system without links
                unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def count_spans(uri: str) -> None:
    """Let SQLite see how many spans a trace has. Without that its planner reads all spans anew for every trace in which
    MLflow looks for text.
    """
    if file := sqlite_file(uri):
        # Of a store that is busy or full, the next readings that are logged are counted.
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file, timeout=5)) as database, database:
            database.execute("PRAGMA analysis_limit=400")  # rows of an index that are looked at
            database.execute("BEGIN IMMEDIATE")
            database.execute("DROP TABLE IF EXISTS sqlite_stat1")  # else connections that are open keep the old counts
            database.execute("ANALYZE spans")


def _require_answer(uri: str) -> None:
    """MLflow itself tries for minutes before it says that nobody is there."""
    try:
        urllib.request.urlopen(uri, timeout=10).close()
    except urllib.error.HTTPError:
        return  # it answers; whether we may use it, MLflow says
    except (OSError, ValueError) as failure:
        fix = "start it (`memagent lab` starts one), or give a folder instead"
        raise TrackingError(f"no MLflow server answers at {uri} ({failure}); {fix}") from failure


def _unusable(uri: str, failure: Exception) -> TrackingError:
    """What is wrong with the store, why, and what to do about it."""
    said = re.search(r"\(?sqlite3\.\w+\)? (.+)", str(failure))
    why = said[1] if said else str(failure)
    fixes = {
        "locked": "another process holds it: end that one (fuser and lsof name it) and run this again",
        "not a database": "move that file away, or name another folder",
        "readonly": "make it writable, or name another folder",
        "full": "free some space and run this again",
        "disk I/O error": "see that its disk is not full and can be written, and run this again",
    }
    fix = next(
        (fix for words, fix in fixes.items() if words in why),
        "see that it is up and can be written, and run this again",
    )
    return TrackingError(
        f"the MLflow store {sqlite_file(uri) or uri} cannot be used ({why}); {fix}. What was logged is kept."
    )


@lru_cache(maxsize=8)
def client_of(uri: str) -> MlflowClient:
    _quieten()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _quieten() -> None:
    """Before MLflow is imported: no report of use over the network, no bars and lines of its own."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for chatty in ("mlflow.store.db.utils", "mlflow.system_metrics.system_metrics_monitor", "alembic"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL if chatty.endswith("db.utils") else logging.WARNING)


def with_retries(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a client of the store; wait and try again while it is busy: another writes, or a server is overloaded."""
    from mlflow.exceptions import MlflowException

    uri = getattr(getattr(call, "__self__", None), "tracking_uri", "")
    retrying = Retrying(
        retry=retry_if_exception(_busy),
        wait=wait_exponential(_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        stop=stop_before_delay(RETRY_S),
        reraise=True,
    )
    try:
        return retrying(call, *args, **kwargs)
    except MlflowException as failure:
        if _gave_up(failure) or failure.error_code == "TEMPORARILY_UNAVAILABLE":
            raise _unusable(uri, failure) from failure
        raise
    except OSError as failure:
        if failure.errno not in _NO_SPACE:
            raise
        fix = "free some and run this again. What was logged is kept."
        raise TrackingError(f"no space for what is logged ({failure}); {fix}") from failure


def all_pages(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Every item of a search that the store answers page by page."""
    token = None
    while True:
        page = with_retries(call, *args, **kwargs, page_token=token)
        yield from page
        if not (token := page.token):
            return


def _busy(failure: BaseException) -> bool:
    """Whether the store may take the call in a moment. A full disk will not."""
    hopeless = "disk I/O error" in str(failure) or "disk is full" in str(failure) or _gave_up(failure)
    return (getattr(failure, "error_code", "") == "TEMPORARILY_UNAVAILABLE" or _overtaken(failure)) and not hopeless


def _overtaken(failure: BaseException) -> bool:
    """Whether another process logged the same dataset or tag between MLflow's look and its insert; the next look
    finds it."""
    said = str(failure).lower()
    twice = "unique constraint" in said or "duplicate entry" in said
    return twice and ("datasets" in said or "tags" in said)


def _gave_up(failure: BaseException) -> bool:
    """Whether MLflow has tried a server for long enough itself."""
    return str(failure).startswith("API request to")
