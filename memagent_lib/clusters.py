"""Start Ray on this machine, or find a cluster that runs. This module knows neither engines nor training runs."""

from __future__ import annotations

import os
import shutil
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from memagent_lib.errors import UserError

LOCAL = "local"
"""The address that stands for a private Ray on this machine."""
ANSWER_WAIT_S = 10.0
T = TypeVar("T")
_START_TRIES = 5  # a machine under load may not start a node in the half minute that Ray gives it


class ClusterError(UserError, RuntimeError):
    """A Ray cluster does not answer, or has too little of what the work needs."""


def require_answer(address: str) -> None:
    """Raise :class:`ClusterError` if no cluster answers at ``address``, because Ray itself would wait forever."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        host, _, port = canonicalize_bootstrap_address(address).rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_WAIT_S).close()
    except (OSError, ValueError) as error:  # a name without a port is a ValueError
        at = address
        if address == "auto":
            at = os.environ.get("RAY_ADDRESS") or "any address known here (auto)"
        fix = f"see that its head runs and this machine reaches it; the address {LOCAL!r} starts a Ray on this machine"
        raise ClusterError(f"no Ray cluster answers at {at} ({error}); {fix}") from error


def start_ray(arguments: dict[str, Any]) -> Path:
    """Call ``ray.init`` for a private Ray on this machine, again if its node was too slow to start.

    Return the folder of its logs and sockets, which Ray leaves behind.
    """
    import ray

    os.environ.pop("RAY_ADDRESS", None)  # it would win over "local" in the processes that Ray starts
    return Path(started(lambda: ray.init(**arguments)).address_info["session_dir"])


def started(start: Callable[[], T]) -> T:
    """Return what ``start`` returns, which starts a node of Ray. Call it again if the node was too slow to start."""
    for tries_left in reversed(range(_START_TRIES)):
        try:
            return start()
        except Exception as error:  # Ray raises a bare one
            if "timed out during startup" not in str(error) or not tries_left:
                raise
            print(f"Ray's node did not start within its 30 seconds; trying again, {tries_left} left", flush=True)
            _end_nodes_of(error)
    raise AssertionError("the last try returns or raises")


def _end_nodes_of(error: Exception) -> None:
    """End the processes of a node that failed to start. Ray leaves them behind, and only the traceback has the node."""
    import ray
    from ray._private.node import Node

    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, Node):
            node.kill_all_processes(check_alive=False, wait=True)
    ray.shutdown()


def end_ray(session: Path | None = None) -> None:
    """Leave Ray, which ends if it is private, and remove the folder ``session`` of its logs and sockets."""
    import ray

    ray.shutdown()
    if session is None:
        return
    shutil.rmtree(session, ignore_errors=True)
    latest = session.with_name("session_latest")
    with suppress(OSError):  # no link, or another's
        if latest.readlink() == session:  # Ray replaces no link that leads nowhere
            latest.unlink()
