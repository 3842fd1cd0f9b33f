"""Find and open the MLflow store, and deal with a store that is busy, full or unreachable."""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_exponential

from memagent_lib.errors import UserError
from memagent_lib.paths import absolute

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
RETRY_S = 60.0
_VERSION = metadata.version("mlflow")
_UPGRADE_SERVER = (
    "upgrade the server (stop it, `pip install -U mlflow`, `mlflow db upgrade` its store), or give a folder"
)
_SIGN_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_REASON_CHARS = 300
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0
_SCHEMES = ("http://", "https://", "sqlite:///", "postgresql", "mysql", "mssql", "databricks")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    if re.match(r"[a-z]\w+:", str(where)):  # MLflow's own file:./mlruns is an address too
        return str(where)
    return f"sqlite:///{absolute(where) / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file at a SQLite address, or None for any other address."""
    if uri.startswith("sqlite:///"):
        return Path(uri.removeprefix("sqlite:///"))
    return None


def prepare(uri: str) -> None:
    """Make a store ready for use, or raise :class:`TrackingError`.

    A SQLite store gets its tables, and write-ahead logging, with which readers do not block the writer.
    """
    file = sqlite_file(uri)
    if file:
        _prepare_file(uri, file)
    elif uri.startswith("http"):
        _require_no_password(uri)
        _require_answer(uri)
    elif not uri.startswith(_SCHEMES):
        raise TrackingError(
            f"no MLflow store at {uri!r}; give a folder, or an address that begins with {', '.join(_SCHEMES)}"
        )


def _prepare_file(uri: str, file: Path) -> None:
    from sqlalchemy.exc import DatabaseError

    if "?" in str(file) or unquote(str(file)) != str(file):
        raise TrackingError(
            f"the MLflow store {file.parent} has a ? or a code such as %20 in its path, which SQLAlchemy would read as "
            "another path; rename the folder, or give another one"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as failure:
        raise TrackingError(f"{file.parent} is a file; the MLflow store is a folder (it gets a mlflow.db)") from failure
    try:
        _make_tables(file)
        _require_same_schema(uri, file)
        client_of(uri)
        with sqlite3.connect(file, timeout=30) as database:
            database.execute("PRAGMA journal_mode=WAL")
    except (sqlite3.DatabaseError, DatabaseError) as failure:
        raise _unusable(uri, failure) from failure


def _make_tables(file: Path) -> None:
    """Create a new store with all its tables in one step, because MLflow could never open one that is half made.

    If several processes create the store at once, the first to finish wins.
    """
    if file.exists():
        return
    _quieten()
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH as ARTIFACTS
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    unfinished = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        SqlAlchemyStore(f"sqlite:///{unfinished}", ARTIFACTS).engine.dispose()
        # A hard link appears in one step, and fails if another process was faster.
        with suppress(FileExistsError):
            try:
                os.link(unfinished, file)
            except PermissionError:  # a file system without links
                unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _require_same_schema(uri: str, file: Path) -> None:
    """Raise :class:`TrackingError` if another version of MLflow wrote the store.

    MLflow's own error always suggests ``mlflow db upgrade``, which fails if the store is newer than MLflow.
    """
    # Read-only, because a look must not change a store that another version of MLflow owns.
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=30)) as database:
        try:
            rows = database.execute("SELECT version_num FROM alembic_version").fetchall()
        except sqlite3.OperationalError as failure:
            if "no such table" not in str(failure):
                raise
            return  # MLflow makes the tables of an empty database
    _quieten()
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.version import VERSION

    scripts = ScriptDirectory.from_config(_get_alembic_config(uri))
    found = rows[0][0] if rows else ""
    if not found or found in scripts.get_heads():
        return
    differs = f"the MLflow store {file} was written by another version of MLflow (schema {found}; here is {VERSION})"
    try:
        scripts.get_revision(found)
    except CommandError as unknown:
        fix = "a newer one: stop every process that writes it, then `pip install -U mlflow`, or name another folder"
        raise TrackingError(f"{differs}, {fix}") from unknown
    upgrade = f"mlflow db upgrade {shlex.quote(uri)}"
    fix = f"an older one: stop every process that writes it, copy the file, then run `{upgrade}`"
    raise TrackingError(f"{differs}, {fix}")


def count_spans(uri: str) -> None:
    """Update SQLite's statistics of the table of spans.

    With outdated statistics, SQLite reads all spans once per trace when MLflow searches traces for a text.
    """
    file = sqlite_file(uri)
    if file:
        # If the store is busy or full now, the next call updates the statistics.
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file, timeout=5)) as database, database:
            database.execute("PRAGMA analysis_limit=400")  # rows read per index
            database.execute("BEGIN IMMEDIATE")
            database.execute("DROP TABLE IF EXISTS sqlite_stat1")  # else open connections keep using the old counts
            database.execute("ANALYZE spans")


def _require_no_password(uri: str) -> None:
    """Raise :class:`TrackingError` if an address has a user or password, which runs and notebooks would record."""
    parts = urlsplit(uri)
    if parts.username or parts.password:
        host = parts.netloc.rpartition("@")[2]
        raise TrackingError(
            f"the address of the MLflow server {host} has a user name or password, which would be logged with it; "
            f"leave them out, and {_SIGN_IN}"
        )


def _require_answer(uri: str) -> None:
    """Raise :class:`TrackingError` if no server answers within 10 s, or if its MLflow has an older major version.

    MLflow itself would keep trying for minutes.
    """
    from mlflow.exceptions import MlflowException

    try:
        found = _server_version(uri)
    except MlflowException as failure:
        reason = _first_cause(failure)
        fix = "start it (`memagent lab` starts one), or give a folder instead"
        if "CERTIFICATE_VERIFY_FAILED" in str(reason):
            fix = "name the certificate of its authority in MLFLOW_TRACKING_SERVER_CERT_PATH"
        raise TrackingError(f"no MLflow server answers at {uri} ({reason}); {fix}") from failure
    if found and int(found.partition(".")[0]) < int(_VERSION.partition(".")[0]):
        # A server of MLflow 2 has no logged models, so a run would fail in the middle.
        raise TrackingError(f"{_of_other_version(uri, found)}; {_UPGRADE_SERVER}")


def _server_version(uri: str) -> str:
    """Return the version of the MLflow server at ``uri``, or "" if it does not state one, or not without permission.

    The request has the credentials and certificates of MLflow's variables ``MLFLOW_TRACKING_...``. Raises MLflow's
    exception if no server answers within 10 s.
    """
    _quieten()
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    answer = http_request(
        get_default_host_creds(uri), "/version", "GET", max_retries=0, timeout=10, raise_on_status=False
    )
    text = answer.text[:40].strip()
    return text if answer.ok and re.fullmatch(r"\d+\.\d+[\w.+-]*", text) else ""


def _first_cause(failure: BaseException) -> BaseException:
    """Return the exception with which a chain of exceptions began."""
    while failure.__context__:
        failure = failure.__context__
    return failure


def _of_other_version(uri: str, found: str) -> str:
    return f"the MLflow server at {uri} has version {found}, and this is version {_VERSION}"


def _unusable(uri: str, failure: Exception) -> TrackingError:
    """Return the error that names the store, what is wrong with it, and the fix."""
    if uri.startswith("http") and "error code 404" in str(failure):  # an address that only newer servers have
        from mlflow.exceptions import MlflowException

        found = ""
        with suppress(MlflowException):  # the server has gone away since
            found = _server_version(uri)
        return TrackingError(
            f"{_of_other_version(uri, found or 'unknown')}; it lacks what is logged here; {_UPGRADE_SERVER}. "
            "What was logged is safe."
        )
    of_sqlite = re.search(r"\(?sqlite3\.\w+\)? (.+)", str(failure))
    reason = " ".join((of_sqlite[1] if of_sqlite else str(failure)).split())
    if len(reason) > _REASON_CHARS:  # a server's answer may be a whole page
        reason = f"{reason[:_REASON_CHARS]} ..."
    fixes = {
        "error code 401": f"{_SIGN_IN}, and run this again",
        "error code 403": "ask its administrator for permission, or name another store",
        "locked": "another process holds it: end that one (fuser and lsof name it) and run this again",
        "not a database": "move that file away, or name another folder",
        "readonly": "make it writable, or name another folder",
        "full": "free some space and run this again",
        "disk I/O error": "see that its disk is not full and can be written, and run this again",
    }
    fitting = (fix for words, fix in fixes.items() if words in reason)
    fix = next(fitting, "see that it is up and can be written, and run this again")
    return TrackingError(
        f"the MLflow store {sqlite_file(uri) or uri} cannot be used ({reason}); {fix}. What was logged is safe."
    )


@lru_cache(maxsize=8)
def client_of(uri: str) -> MlflowClient:
    """Return MLflow's client for the store at ``uri``. It is created once per process."""
    _quieten()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _quieten() -> None:
    """Turn off MLflow's telemetry, progress bars and routine log messages. Call this before MLflow is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    for chatty in ("mlflow.system_metrics.system_metrics_monitor", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def with_retries(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call ``call``, and call it again after a wait if another process is writing or a server is overloaded.

    Raises :class:`TrackingError` if the store is still unavailable after :data:`RETRY_S` seconds, or if the disk is
    full.
    """
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
        fix = "free some and run this again. What was logged is safe."
        raise TrackingError(f"no space for what is logged ({failure}); {fix}") from failure


def all_pages(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield all items of a search, whose results the store returns in pages."""
    page = with_retries(call, *args, **kwargs, page_token=None)
    yield from page
    while page.token:
        page = with_retries(call, *args, **kwargs, page_token=page.token)
        yield from page


def _busy(failure: BaseException) -> bool:
    """Return whether the same call may succeed in a moment. On a full disk it will not."""
    text = str(failure)
    if "disk I/O error" in text or "disk is full" in text or _gave_up(failure):
        return False
    return getattr(failure, "error_code", "") == "TEMPORARILY_UNAVAILABLE" or _overtaken(failure)


def _overtaken(failure: BaseException) -> bool:
    """Return whether another process inserted the same dataset or tag between MLflow's query and its own insert.

    A second try finds what the other process inserted, and succeeds.
    """
    text = str(failure).lower()
    is_duplicate = "unique constraint" in text or "duplicate entry" in text
    return is_duplicate and ("datasets" in text or "tags" in text)


def _gave_up(failure: BaseException) -> bool:
    """Return whether MLflow itself has retried a request to a server and given up."""
    return str(failure).startswith("API request to")  # how the errors of MLflow's HTTP client begin
