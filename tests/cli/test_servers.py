from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from ports import free_port
from waiting import command_of, has_ended, wait_for

from memagent_lib.cli.servers import HOST, servers


def test_a_port_in_use_fails_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(port)), servers(free_port(), port, str(tmp_path), "t"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_both_servers_answer_until_they_are_stopped(workspace: Path) -> None:
    with servers(free_port(), free_port(), str(workspace), "secret") as (jupyter, mlflow):
        contents = f"http://{HOST}:{jupyter.port}/api/contents"
        urllib.request.urlopen(f"{contents}?token=secret").close()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(contents).close()
        experiment = "api/2.0/mlflow/experiments/get-by-name?experiment_name=memagent"
        urllib.request.urlopen(f"http://{HOST}:{mlflow.port}/{experiment}").close()
        parents = [psutil.Process(server.process.pid) for server in (jupyter, mlflow)]
        family = [*parents, *(child for parent in parents for child in parent.children(recursive=True))]
        assert "secret" not in "".join(map(command_of, family))
    wait_for(lambda: all(map(has_ended, family)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C twice", "terminal closed"])
def test_the_command_prints_both_addresses_and_leaves_no_process(number: signal.Signals, workspace: Path) -> None:
    for mark in ("pyproject.toml", "notebooks"):
        (workspace.parent / mark).mkdir()
    ports = ["--port", str(free_port()), "--mlflow-port", str(free_port())]
    command = [sys.executable, "-m", "memagent_lib.cli", "lab", *ports]
    # A shell that runs the tests in the background has its children ignore Ctrl-C.
    heeds = {"preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}
    with subprocess.Popen(command, cwd=workspace.parent, stdout=subprocess.PIPE, text=True, **heeds) as process:
        jupyter, mlflow = (process.stdout.readline().split()[-1] for _ in range(2))
        address, token = re.fullmatch(r"(.*)/lab/tree/notebooks\?token=(.*)", jupyter).groups()
        request = urllib.request.Request(f"{address}/api/kernels?token={token}", data=b"{}", method="POST")
        urllib.request.urlopen(request).close()
        assert re.search(r"/#/experiments/\d+/runs$", mlflow)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("ipykernel" in command_of(p) for p in family)
        process.send_signal(number)
        if number is signal.SIGINT:
            process.send_signal(number)
    assert process.returncode == (0 if number is signal.SIGINT else 128 + number)
    wait_for(lambda: all(map(has_ended, family)))
