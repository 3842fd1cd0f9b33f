"""``memagent lab``: JupyterLab and MLflow side by side on this machine's own address, with one place to stop both."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.cli.arguments import Verbs, add_verb
from memagent_lib.files import place, root

if TYPE_CHECKING:
    from memagent_lib.tracking.runs import Experiment

HOST = "127.0.0.1"
START_LIMIT_S = 120.0
STOP_GRACE_S = 10.0
SETTINGS = Path(__file__).parent / "jupyter"  # for JupyterLab, below those of the user: ask for no news
FIRST_PAGE = "lab/tree/notebooks"


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "lab", run, "start JupyterLab and MLflow on this machine's own address")
    verb.add_argument("--port", type=int, default=8888, metavar="N", help="JupyterLab's port")
    verb.add_argument("--mlflow-port", type=int, default=5000, metavar="N", help="MLflow's port")


def run(a: argparse.Namespace) -> int:
    return lab(a.port, a.mlflow_port)


class LabError(OSError):
    """A server that cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server: its name, process and log, the address at which it answers, and the page on which a person begins."""

    name: str
    process: subprocess.Popen
    log: Path
    address: str
    page: str

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.address, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.answers():
            if self.process.poll() is not None:
                raise LabError(f"{self.name} ended with status {self.process.returncode}; its log is {self.log}")
            if time.monotonic() > deadline:
                raise LabError(
                    f"{self.name} does not answer at {self.address} after {START_LIMIT_S:.0f} s; its log is {self.log}"
                )
            time.sleep(0.2)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def lab(port: int = 8888, mlflow_port: int = 5000, workspace: str = "runs") -> int:
    """Start both, say where they are, and stop both at Ctrl-C or when the terminal closes. Returns the exit status."""
    token = secrets.token_urlsafe(24)
    with _ended_once(), servers(port, mlflow_port, workspace, token) as (jupyter, mlflow):
        print(f"JupyterLab   {jupyter.page}")
        print(f"MLflow       {mlflow.page}")
        print("Ctrl-C stops both; a training run that you started continues.", flush=True)
        try:
            while all(server.process.poll() is None for server in (jupyter, mlflow)):
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        ended = next(s for s in (jupyter, mlflow) if s.process.poll() is not None)
        print(f"{ended.name} ended with status {ended.process.returncode}; its log is {ended.log}", file=sys.stderr)
        return 1


@contextmanager
def servers(port: int, mlflow_port: int, workspace: str, token: str) -> Iterator[tuple[Server, Server]]:
    """JupyterLab and MLflow, answering; both are stopped at the end, with their kernels and workers."""
    for number, option in ((port, "--port"), (mlflow_port, "--mlflow-port")):
        _require_free(number, option)
    from memagent_lib.tracking.runs import Experiment

    experiment = Experiment.open(workspace)
    logs = place(workspace) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    started: list[Server] = []
    try:
        started.append(_mlflow(mlflow_port, workspace, experiment, logs / "mlflow.log"))
        started.insert(0, _jupyter(port, token, logs / "jupyter.log"))
        for server in started:
            server.wait_until_it_answers()
        yield started[0], started[1]
    finally:
        for server in started:
            server.process.terminate()
        for server in started:
            server.stop()


@contextmanager
def _ended_once() -> Iterator[None]:
    """Act on the first Ctrl-C, SIGTERM or closed terminal only: a second one must not leave a server behind."""
    from memagent_lib.processes import Terminated

    def end(number: int, _: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _jupyter(port: int, token: str, log: Path) -> Server:
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}"),
        *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={root()}", "--LabApp.news_url=None"),
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    running_as_root = ["--allow-root"] if os.geteuid() == 0 else []
    # The token goes through the environment, because any user of the machine can read a command line.
    settings = os.pathsep.join(filter(None, (os.environ.get("JUPYTER_CONFIG_PATH"), str(SETTINGS))))
    process = _start([*command, *running_as_root], log, {"JUPYTER_TOKEN": token, "JUPYTER_CONFIG_PATH": settings})
    address = f"http://{HOST}:{port}"
    return Server("JupyterLab", process, log, f"{address}/api", f"{address}/{FIRST_PAGE}?token={token}")


def _mlflow(port: int, workspace: str, experiment: Experiment, log: Path) -> Server:
    artifacts = (place(workspace) / "artifacts").as_uri()
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    options = ["--backend-store-uri", experiment.uri, "--default-artifact-root", artifacts]
    address, process = f"http://{HOST}:{port}", _start([*command, *options], log, {"MLFLOW_DISABLE_TELEMETRY": "true"})
    return Server("MLflow", process, log, address, f"{address}/#/experiments/{experiment.experiment_id}/runs")


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen:
    """A server in a session of its own: Ctrl-C reaches us alone, and we stop it in order."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # Jupyter writes its token there
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env=os.environ | environment,
            start_new_session=True,
        )
    finally:
        os.close(handle)


def _require_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as failure:
            another = f"memagent lab {option} {_free_port()}"
            raise LabError(
                f"port {port} of {HOST} is in use; stop what listens there, or take another: {another}"
            ) from failure


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
