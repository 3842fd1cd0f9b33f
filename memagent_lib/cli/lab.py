"""``memagent lab``: JupyterLab and MLflow on loopback, started and stopped together."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from memagent_lib.cli.options import HOST, bound, port_type
from memagent_lib.paths import absolute, root
from memagent_lib.status_line import status_line
from memagent_lib.system import OWN_KERNEL, terminable

START_LIMIT_S = 600.0  # a busy machine that imports MLflow for the first time took more than four minutes
STOP_GRACE_S = 10.0
SETTINGS = Path(__file__).parent / "jupyter"  # no news, and exported pages without scripts of the network
FIRST_PAGE = "lab/tree/notebooks"
# Without retries: JupyterLab would otherwise take another port than the one that is printed.
JUPYTER = ("jupyterlab", "--no-browser", "--ServerApp.port_retries=0", "--LabApp.news_url=None")
NO_UPDATES = "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"


@click.command()
@click.option("--port", metavar="N", type=port_type, default=8888, help="JupyterLab's port.")
@click.option("--mlflow-port", metavar="N", type=port_type, default=5000, help="MLflow's port.")
def lab(port: int, mlflow_port: int) -> None:
    """Start JupyterLab and MLflow on loopback; Ctrl-C stops both."""
    with terminable(signal.SIGHUP), servers(port, mlflow_port, "runs", secrets.token_urlsafe(24)) as both:
        for server in both:
            print(f"{server.name:<13}{server.page}")
        print("Ctrl-C stops both; a training run that you started continues.", flush=True)
        try:
            while all(server.process.poll() is None for server in both):
                time.sleep(0.5)
        except KeyboardInterrupt:  # the usual way to end this verb
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would leave a server running
            return
        ended = next(server for server in both if server.process.poll() is not None)
        raise OSError(ended.how_it_ended())


@dataclass(frozen=True, slots=True)
class LabServer:
    """A server that was started. ``address`` is polled until it answers; ``page`` is for the user to open first."""

    name: str
    process: subprocess.Popen
    log: Path
    address: str
    page: str

    def how_it_ended(self) -> str:
        return f"{self.name} ended with status {self.process.returncode}; its log is {self.log}"

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(self.address, timeout=5).close()
        except urllib.error.HTTPError:  # refused for want of a token, so the server is up
            return True
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Stop the server. If it has not ended after :data:`STOP_GRACE_S` seconds, kill it and its children."""
        self.process.terminate()
        try:
            self.process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            # Kernels and workers are in the server's session; killing only the server would leave them running.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def wait_until_all_answer(started: Sequence[LabServer]) -> None:
    """Block until all servers answer. Raises ``OSError`` as soon as one ends, or after :data:`START_LIMIT_S`."""
    deadline = time.monotonic() + START_LIMIT_S
    while not all(server.answers() for server in started):
        for server in started:
            if server.process.poll() is not None:
                raise OSError(server.how_it_ended())
        if time.monotonic() > deadline:
            logs = ", ".join(str(server.log) for server in started)
            raise OSError(f"no answer after {START_LIMIT_S:.0f} s; the logs are {logs}")
        time.sleep(0.2)


@contextmanager
def servers(port: int, mlflow_port: int, workspace: str, token: str) -> Iterator[tuple[LabServer, LabServer]]:
    """Run JupyterLab and MLflow during a ``with`` block, which begins once both answer.

    Yields the two servers, JupyterLab first. At the end both are stopped, with their kernels and workers. Raises
    ``OSError`` if a port is in use or a server does not start.
    """
    with bound("--port", port), bound("--mlflow-port", mlflow_port):
        pass
    from memagent_lib.tracking import Experiment

    experiment = Experiment.open(workspace)
    folder = absolute(workspace)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    started: list[LabServer] = []
    try:
        store = ["--backend-store-uri", experiment.uri, "--default-artifact-root", (folder / "artifacts").as_uri()]
        page = f"experiments/{experiment.experiment_id}/runs"
        started = [_jupyter(port, token, folder / "logs"), _mlflow(mlflow_port, store, folder / "logs", page)]
        with status_line("starting JupyterLab and MLflow"):
            wait_until_all_answer(started)
        yield started[0], started[1]
    finally:
        for server in started:  # first, so that both shut down at the same time; stop() waits for each in turn
            server.process.terminate()
        for server in started:
            server.stop()


def _jupyter(port: int, token: str, logs: Path) -> LabServer:
    where = [f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", f"--ServerApp.root_dir={root()}"]
    as_root = ["--allow-root"] if os.geteuid() == 0 else []  # JupyterLab refuses to run as root without it
    # The token goes through the environment, because any user of the machine can read a command line.
    environment = {"JUPYTER_TOKEN": token} | OWN_KERNEL
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):  # the user's own settings come first
        environment[name] = os.pathsep.join(filter(None, (os.environ.get(name), str(SETTINGS))))
    log = logs / "jupyter.log"
    process = _start([*JUPYTER, NO_UPDATES, *where, *as_root], log, environment)
    address = f"http://{HOST}:{port}"
    return LabServer("JupyterLab", process, log, f"{address}/api", f"{address}/{FIRST_PAGE}?token={token}")


def _mlflow(port: int, store: Sequence[str], logs: Path, page: str) -> LabServer:
    where = ["--host", HOST, "--port", str(port), "--workers", "1"]  # one is enough; MLflow's default is 4
    # MLflow's jobs double the work of a start, take eight processes and 650 MB, and leave a folder in /dev/shm.
    jobs = os.environ.get("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": jobs}
    log = logs / "mlflow.log"
    process = _start(["mlflow", "server", *where, *store], log, environment)
    return LabServer("MLflow", process, log, f"http://{HOST}:{port}", f"http://{HOST}:{port}/#/{page}")


def _start(module: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen:
    """Start a server in its own session, so that Ctrl-C reaches only this process, which then stops the server."""
    command = [sys.executable, "-m", *module]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # Jupyter writes its token there
    with open(handle, "wb") as output:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        return subprocess.Popen(command, **pipes, env=os.environ | environment, start_new_session=True)
