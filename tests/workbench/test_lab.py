from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from memagent_lib.lab import HOST, LabError, servers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        taken_twice = servers(free_port(), port, str(tmp_path), "t")
        with pytest.raises(LabError, match=f"port {port} is in use; give another with --mlflow-port"), taken_twice:
            pass
    assert list(tmp_path.iterdir()) == []


def test_both_servers_answer_on_loopback_jupyter_only_with_its_token_and_none_is_left(workspace: Path) -> None:
    with servers(free_port(), free_port(), str(workspace), "secret") as (jupyter, mlflow):
        with urllib.request.urlopen(f"{jupyter.address}/contents?token=secret") as reply:
            assert reply.status == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{jupyter.address}/contents").close()
        with urllib.request.urlopen(f"{mlflow.address}/api/2.0/mlflow/experiments/get-by-name?experiment_name=memagent") as reply:
            assert reply.status == 200
        parents = [psutil.Process(server.process.pid) for server in (jupyter, mlflow)]
        family = [*parents, *(child for parent in parents for child in parent.children(recursive=True))]
        assert "secret" not in "".join(" ".join(process.cmdline()) for process in family)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
