"""``memagent lab``: JupyterLab and MLflow on loopback, started and stopped together."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from memagent_lib.cli.arguments import Verbs, add_verb, option, port_refused, require_port
from memagent_lib.paths import absolute, root
from memagent_lib.status_line import status_line

HOST = "127.0.0.1"
START_LIMIT_S = 600.0  # a busy machine that imports MLflow for the first time took more than four minutes
STOP_GRACE_S = 10.0
SETTINGS = Path(__file__).parent / "jupyter"  # no news, and exported pages without scripts of the network
FIRST_PAGE = "lab/tree/notebooks"
# Without retries: JupyterLab would otherwise take another port than the one that is printed.
JUPYTER = ("jupyterlab", "--no-browser", "--ServerApp.port_retries=0", "--LabApp.news_url=None")
NO_UPDATES = "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"
MLFLOW_APP = "memagent"  # memagent_lib.tracking.mlflow_app, by its entry point in pyproject.toml
JOBS = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"
GIT_HOOK = f"--FileContentsManager.post_save_hook={__name__}.refresh_in_git"


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "lab", run, "start JupyterLab and MLflow on loopback")
    option(verb, "--port", "N", "JupyterLab's port", default=8888)
    option(verb, "--mlflow-port", "N", "MLflow's port", default=5000)


def run(a: argparse.Namespace) -> int:
    """Start both servers, print their addresses, and stop both at Ctrl-C or when the terminal closes.

    After Ctrl-C it returns 0, because that is the usual way to end this verb. Raises ``OSError`` if a server ends.
    """
    token = secrets.token_urlsafe(24)
    with _ended_once(), servers(a.port, a.mlflow_port, "runs", token) as both:
        for server in both:
            print(f"{server.name:<13}{server.page}")
        board = leaderboard_page(both[0], "runs", token)
        if board:
            print(f"{'Leaderboard':<13}{board}")
        print("MLflow lists evaluations, trainings and readings apart under Views, at the top right of its tables.")
        print("Ctrl-C stops both; a training run that you started continues.", flush=True)
        if (root() / "Makefile").is_file():
            print(
                "Outputs of the notebooks show in git; `make git-filter` leaves them out of diffs, commits and status.",
                flush=True,
            )
        try:
            while all(server.process.poll() is None for server in both):
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
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
    """Block until all servers answer.

    Raises ``OSError`` as soon as one of them ends, or if one exceeds :data:`START_LIMIT_S`.
    """
    deadline = time.monotonic() + START_LIMIT_S
    waiting = list(started)
    while True:
        waiting = [server for server in waiting if not server.answers()]
        if not waiting:
            return
        for server in started:
            if server.process.poll() is not None:
                raise OSError(server.how_it_ended())
        if time.monotonic() > deadline:
            server = waiting[0]
            late = f"does not answer at {server.address} after {START_LIMIT_S:.0f} s"
            raise OSError(f"{server.name} {late}; its log is {server.log}")
        time.sleep(0.2)


def leaderboard_page(jupyter: LabServer, workspace: str, token: str) -> str:
    """Write the leaderboard of a workspace; return its address on the Jupyter server, or "" without an evaluation."""
    from memagent_lib.inspector import save_leaderboard
    from memagent_lib.tracking import Experiment, TrackingError, leaderboard

    try:
        path = save_leaderboard(leaderboard(Experiment.open(workspace)), absolute(workspace) / "leaderboard.html")
        below = path.relative_to(root())
    except (TrackingError, ValueError):  # no evaluation yet, or a workspace that the server cannot see
        return ""
    return f"{jupyter.page.partition('/lab/')[0]}/files/{below.as_posix()}?token={token}"


def refresh_in_git(os_path: str, model: Mapping[str, Any], **_: Any) -> None:
    """Refresh git's index after JupyterLab has saved a notebook, if only the notebook's outputs have changed.

    With ``make git-filter``, diffs leave outputs out, but ``git status`` compares file sizes and would still list the
    notebook as modified. An untracked notebook stays untracked.
    """
    if model["type"] == "notebook" and shutil.which("git"):
        git = ["git", "-C", os.path.dirname(os_path)]
        same = subprocess.run([*git, "diff", "--quiet", "--", os_path], capture_output=True)
        if same.returncode == 0:
            subprocess.run([*git, "update-index", "--", os_path], capture_output=True)


@contextmanager
def servers(port: int, mlflow_port: int, workspace: str, token: str) -> Iterator[tuple[LabServer, LabServer]]:
    """Run JupyterLab and MLflow during a ``with`` block, which begins once both answer.

    Yields the two servers, JupyterLab first. At the end both are stopped, with their kernels and workers. Raises
    ``OSError`` if a port is in use or a server does not start.
    """
    require_port("--port", port)
    require_port("--mlflow-port", mlflow_port)
    _require_free(port, "--port")
    _require_free(mlflow_port, "--mlflow-port")
    _require_settings_folders()
    from memagent_lib.tracking import Experiment

    experiment = Experiment.open(workspace)
    folder = absolute(workspace)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    started: list[LabServer] = []
    try:
        store = ["--backend-store-uri", experiment.uri, "--default-artifact-root", (folder / "artifacts").as_uri()]
        started.append(_mlflow(mlflow_port, store, folder / "logs", f"experiments/{experiment.experiment_id}/runs"))
        started.append(_jupyter(port, token, folder / "logs"))
        with status_line("starting JupyterLab and MLflow"):
            wait_until_all_answer(started)
        yield started[1], started[0]
    finally:
        for server in started:  # first, so that both shut down at the same time; stop() waits for each in turn
            server.process.terminate()
        for server in started:
            server.stop()


@contextmanager
def _ended_once() -> Iterator[None]:
    """Ignore all but the first Ctrl-C, SIGTERM or closed terminal; a second one would leave a server running."""
    from memagent_lib.system import Terminated

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


def _require_settings_folders() -> None:
    """Raise ``OSError`` unless the folders that JupyterLab writes at its start can be written."""
    from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir

    folders = {
        "JUPYTER_CONFIG_DIR": jupyter_config_dir(),
        "JUPYTER_DATA_DIR": jupyter_data_dir(),
        "JUPYTER_RUNTIME_DIR": jupyter_runtime_dir(),
    }
    for variable, folder in folders.items():
        reason = _why_not_writable(Path(folder))
        if reason:
            culprit = variable if variable in os.environ else "HOME"
            raise OSError(
                f"JupyterLab cannot write {folder} ({reason}); set {culprit} to a folder of yours: "
                f"{culprit}=/tmp/jupyter memagent lab"
            )


def _why_not_writable(folder: Path) -> str:
    """Create a folder if it is missing, and return why it cannot be written, or "" if it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):  # os.access allows root to write where the system does not
            return ""
    except OSError as failure:
        return failure.strerror


def _jupyter(port: int, token: str, logs: Path) -> LabServer:
    from memagent_lib.system import OWN_KERNEL

    where = [f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", f"--ServerApp.root_dir={root()}"]
    as_root = ["--allow-root"] if os.geteuid() == 0 else []  # JupyterLab refuses to run as root without it
    # The token goes through the environment, because any user of the machine can read a command line.
    environment = {"JUPYTER_TOKEN": token} | OWN_KERNEL
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):  # the user's own settings come first
        environment[name] = os.pathsep.join(filter(None, (os.environ.get(name), str(SETTINGS))))
    log = logs / "jupyter.log"
    process = _start([*JUPYTER, NO_UPDATES, GIT_HOOK, *where, *as_root], log, environment)
    address = f"http://{HOST}:{port}"
    return LabServer("JupyterLab", process, log, f"{address}/api", f"{address}/{FIRST_PAGE}?token={token}")


def _mlflow(port: int, store: Sequence[str], logs: Path, page: str) -> LabServer:
    where = ["--host", HOST, "--port", str(port), "--workers", "1"]  # one is enough; MLflow's default is 4
    # MLflow's jobs call a judge model for traces that are chosen on its pages. They double the work of a start, take
    # eight processes and 650 MB, and leave a folder in /dev/shm, so they run only where the user's setting says so.
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", JOBS: os.environ.get(JOBS, "false")}
    # MLflow refuses a name that it does not find, as in a checkout that was installed before it had this entry point.
    named = entry_points(group="mlflow.app", name=MLFLOW_APP)
    without_pop_ups = ["--app-name", MLFLOW_APP] if named else []
    log = logs / "mlflow.log"
    process = _start(["mlflow", "server", *without_pop_ups, *where, *store], log, environment)
    return LabServer("MLflow", process, log, f"http://{HOST}:{port}", f"http://{HOST}:{port}/#/{page}")


def _start(module: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen:
    """Start a server in its own session, so that Ctrl-C reaches only this process, which then stops the server."""
    command = [sys.executable, "-m", *module]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # Jupyter writes its token there
    with open(handle, "wb") as output:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        return subprocess.Popen(command, **pipes, env=os.environ | environment, start_new_session=True)


def _require_free(port: int, option: str) -> None:
    with socket.socket() as probe, socket.socket() as another:
        # The servers set this too, so a port is free although old connections to it are still in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as failure:
            another.bind((HOST, 0))
            fix = f"take another: memagent lab {option} {another.getsockname()[1]}"
            raise OSError(f"{port_refused(HOST, port, failure)}; {fix}") from failure
