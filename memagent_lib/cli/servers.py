"""``memagent serve``, a chat endpoint that reads with a memory, and ``lab``: JupyterLab and MLflow. All on loopback."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from memagent_lib.cli.options import agent_of, agent_options, reader_option
from memagent_lib.paths import absolute, root
from memagent_lib.status_line import status_line
from memagent_lib.system import OWN_KERNEL, terminable

HOST = "127.0.0.1"
STOP_GRACE_S = 10.0
SETTINGS = Path(__file__).parent / "jupyter"  # no news, and exported pages without scripts of the network
FIRST_PAGE = "lab/tree/notebooks"
port_type = click.IntRange(0, 65535)
SPLIT = click.Choice(["auto", "last_paragraph", "last_line", "first_paragraph", "first_line"])


@click.command()
@agent_options
@reader_option
@click.option("--port", metavar="N", type=port_type, default=8000, help=f"The port on {HOST}, 0 for any free one.")
@click.option("--split", type=SPLIT, default="auto", help="How to divide a long single message: rule 4 above.")
@click.option(
    "--allow-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name under which clients may reach it besides localhost, such as a proxy's; repeat it for more.",
)
def serve(port: int, split: str, hosts: tuple[str, ...], **agent: Any) -> None:
    """Answer OpenAI-compatible chat requests of any length, on loopback.

    \b
    Every request is read as a document and a question about it:
      1. the fields document and question of the request: extra_body={"document": text}
      2. else the last of several messages is the question, and those before it are the document
      3. else a single message of up to question_tokens is a question without a document
      4. else --split, or the request's field split, says which part of the message is the question;
         auto takes its end, if that is marked as a question
    The field memagent of a reply names the rule that was used, the question, what was ignored (sampling is the
    server's own), and a trace_id for GET /v1/traces/ID. OpenAI's client gives up a reading after ten minutes: ask it
    for a stream, which has an event per chunk, or for a longer timeout.

    \b
      lm_eval --model local-chat-completions --apply_chat_template --tasks longbench_narrativeqa --model_args \\
        model=NAME,base_url=http://127.0.0.1:8000/v1/chat/completions,max_length=1000000
    lm-eval itself cuts prompts on the left to max_length, 2,047 tokens by default.
    """
    import uvicorn

    from memagent_lib.serve import make_app

    name = agent["model"].rstrip("/").rpartition("/")[2]
    with socket.create_server((HOST, port)) as listening:  # a port in use fails here, before a model is loaded
        opened = agent_of(**agent)
        app = make_app(opened, name, opened.backend.sampling, split, hosts)
        print(f"http://{HOST}:{listening.getsockname()[1]}/v1 answers as {name!r}; Ctrl-C stops it", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)).run([listening])


@click.command()
@click.option("--port", metavar="N", type=port_type, default=8888, help="JupyterLab's port.")
@click.option("--mlflow-port", metavar="N", type=port_type, default=5000, help="MLflow's port.")
def lab(port: int, mlflow_port: int) -> None:
    """Start JupyterLab and MLflow on loopback; Ctrl-C stops both."""
    with terminable(signal.SIGHUP), servers(port, mlflow_port, "runs", secrets.token_urlsafe(24)) as both:
        for server in both:
            print(f"{server.name:<13}{server.page}")
        print("Ctrl-C stops both; a training run that you started continues.", flush=True)
        interrupts: list[int] = []
        signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))  # a second one changes nothing
        while not interrupts:
            for server in both:
                server.require_running()
            time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class LabServer:
    """A server that was started. ``page`` is for the user to open first."""

    name: str
    process: subprocess.Popen
    log: Path
    port: int
    page: str

    def require_running(self) -> None:
        """Raise ``OSError`` if the server has ended."""
        status = self.process.poll()
        if status is not None:
            raise OSError(f"{self.name} ended with status {status}; its log is {self.log}")

    def answers(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex((HOST, self.port)) == 0

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
    """Block until all servers answer. Raises ``OSError`` as soon as one ends."""
    while not all(server.answers() for server in started):
        for server in started:
            server.require_running()
        time.sleep(0.2)


@contextmanager
def servers(port: int, mlflow_port: int, workspace: str, token: str) -> Iterator[tuple[LabServer, LabServer]]:
    """Run JupyterLab and MLflow during a ``with`` block, which begins once both answer.

    Yields the two servers, JupyterLab first. At the end both are stopped, with their kernels and workers. Raises
    ``OSError`` if a port is in use or a server does not start.
    """
    with socket.create_server((HOST, port)), socket.create_server((HOST, mlflow_port)):
        pass  # a port in use fails here
    from memagent_lib.tracking import Experiment

    experiment = Experiment.open(workspace)
    folder = absolute(workspace)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    started: list[LabServer] = []
    try:
        started.append(_jupyter(port, token, folder / "logs" / "jupyter.log"))
        store = ["--backend-store-uri", experiment.uri, "--default-artifact-root", (folder / "artifacts").as_uri()]
        page = f"experiments/{experiment.experiment_id}/runs"
        started.append(_mlflow(mlflow_port, store, folder / "logs" / "mlflow.log", page))
        with status_line("starting JupyterLab and MLflow"):
            wait_until_all_answer(started)
        yield started[0], started[1]
    finally:
        for server in started:  # first, so that both shut down at the same time; stop() waits for each in turn
            server.process.terminate()
        for server in started:
            server.stop()


def _jupyter(port: int, token: str, log: Path) -> LabServer:
    command = ["jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}"]
    # Without retries: JupyterLab would otherwise take another port than the one that is printed.
    command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={root()}"]
    # The token goes through the environment, because any user of the machine can read a command line.
    environment = {"JUPYTER_TOKEN": token} | OWN_KERNEL
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):  # the user's own settings come first
        environment[name] = os.pathsep.join(filter(None, (os.environ.get(name), str(SETTINGS))))
    page = f"http://{HOST}:{port}/{FIRST_PAGE}?token={token}"
    return LabServer("JupyterLab", _start(command, log, environment), log, port, page)


def _mlflow(port: int, store: Sequence[str], log: Path, page: str) -> LabServer:
    # One worker is enough; MLflow's default is 4.
    command = ["mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1", *store]
    # MLflow's jobs double the work of a start, take eight processes and 650 MB, and leave a folder in /dev/shm.
    jobs = os.environ.get("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": jobs}
    return LabServer("MLflow", _start(command, log, environment), log, port, f"http://{HOST}:{port}/#/{page}")


def _start(module: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen:
    """Start a server in its own session, so that Ctrl-C reaches only this process, which then stops the server."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # Jupyter writes its token there
    with open(handle, "wb") as output:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        command = [sys.executable, "-m", *module]
        return subprocess.Popen(command, **pipes, env=os.environ | environment, start_new_session=True)
