from __future__ import annotations

import errno
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from ports import free_port
from waiting import command_of, has_ended, wait_for

from memagent_lib.cli import main
from memagent_lib.cli.arguments import port_refused, require_port
from memagent_lib.cli.lab import GIT_HOOK, HOST, LabServer, servers, wait_until_all_answer


def test_a_port_in_use_fails_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        taken_twice = servers(free_port(), port, str(tmp_path), "t")
        with (
            pytest.raises(OSError, match=rf"port {port} of {HOST} is in use; .* memagent lab --mlflow-port \d+"),
            taken_twice,
        ):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["lab", "--port"], ["lab", "--mlflow-port"], ["serve", "--model", "m", "--port"]])
def test_a_number_that_is_no_port_fails_before_anything_starts(command: list[str], capsys) -> None:
    for number in ("65536", "-1"):
        assert main([*command, number]) == 2
        assert re.search(rf"{command[-1]} must be 1 to 65535.*, got {number}\n", capsys.readouterr().err)
    with pytest.raises(ValueError, match="--port must be 1 to 65535, got 0"):
        require_port("--port", 0)
    require_port("--port", 0, free=True)


def test_a_port_without_rights_is_not_reported_as_in_use() -> None:
    reason = port_refused(HOST, 80, PermissionError(errno.EACCES, "Permission denied"))
    assert reason == "port 80 of 127.0.0.1 is not yours to listen on (ports below 1024 need rights)"
    with socket.socket() as taken, socket.socket() as second:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(OSError, match="Address already in use") as failure:
            second.bind(taken.getsockname())
    assert port_refused(HOST, 7, failure.value) == "port 7 of 127.0.0.1 is in use"


@pytest.mark.parametrize(("variable", "folder"), [("HOME", "/dev/null/home"), ("JUPYTER_DATA_DIR", "/proc/data")])
def test_a_folder_of_settings_that_cannot_be_written_is_named(
    variable: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, folder)
    workspace = tmp_path / "runs"
    refused = rf"JupyterLab cannot write {folder}.* \(N.*\); set {variable} to a folder of yours"
    with pytest.raises(OSError, match=refused), servers(free_port(), free_port(), str(workspace), "t"):
        pass
    assert not workspace.exists()


def test_a_server_that_ended_is_reported_before_others_answer(tmp_path: Path) -> None:
    nowhere = f"http://{HOST}:{free_port()}"
    with subprocess.Popen(["sleep", "60"]) as slow, subprocess.Popen(["false"]) as dead:
        dead.wait()
        both = [LabServer(name, process, tmp_path, nowhere, "") for name, process in (("A", slow), ("B", dead))]
        with pytest.raises(OSError, match="B ended with status 1; its log is"):
            wait_until_all_answer(both)
        slow.kill()


def test_both_servers_answer_until_they_are_stopped(workspace: Path) -> None:
    with servers(free_port(), free_port(), str(workspace), "secret") as (jupyter, mlflow):
        with urllib.request.urlopen(f"{jupyter.address}/contents?token=secret") as reply:
            assert reply.status == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{jupyter.address}/contents").close()
        with urllib.request.urlopen(
            f"{mlflow.address}/api/2.0/mlflow/experiments/get-by-name?experiment_name=memagent"
        ) as reply:
            assert reply.status == 200
        parents = [psutil.Process(server.process.pid) for server in (jupyter, mlflow)]
        family = [*parents, *(child for parent in parents for child in parent.children(recursive=True))]
        assert "secret" not in "".join(map(command_of, family))
    wait_for(lambda: all(map(has_ended, family)))


async def test_git_sees_edited_notebooks_and_not_those_only_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*command: str) -> str:
        named = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(["git", *named, *command], check=True, capture_output=True, text=True).stdout

    async def saved(name: str, source: str, **more: object) -> str:
        cell = {"cell_type": "code", "id": "one", "metadata": {}, "source": source, "outputs": [], **more}
        book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"execution_count": None, **cell}]}
        await manager.save({"type": "notebook", "content": book}, f"notebooks/{name}.ipynb")
        return git("status", "--porcelain", "--", "notebooks")

    trait, hook = GIT_HOOK.removeprefix("--").split("=")
    assert trait == "FileContentsManager.post_save_hook"
    manager = AsyncLargeFileManager(root_dir=str(tmp_path), post_save_hook=hook)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    for name in (".gitattributes", ".gitignore"):
        shutil.copy(Path(__file__).parents[2] / name, tmp_path)
    git("init", "--quiet")
    git("config", "filter.notebooks.clean", f"{Path(sys.executable).parent}/nbstripout --keep-id")
    printed = {"output_type": "stream", "name": "stdout", "text": "printed"}
    assert await saved("run", "print('printed')") == "?? notebooks/\n"
    git("add", "notebooks")
    git("commit", "--quiet", "--message", "as it is")
    assert await saved("run", "print('printed')", execution_count=1, outputs=[printed]) == ""
    assert await saved("new", "print('printed')") == "?? notebooks/new.ipynb\n"
    (tmp_path / "notebooks/new.ipynb").unlink()
    assert await saved("run", "print('other')", execution_count=1, outputs=[printed]) == " M notebooks/run.ipynb\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C twice", "terminal closed"])
def test_the_command_prints_both_addresses_and_leaves_no_process(number: signal.Signals, workspace: Path) -> None:
    for mark in ("pyproject.toml", "notebooks"):
        (workspace.parent / mark).mkdir()
    command = [
        sys.executable,
        "-m",
        "memagent_lib.cli",
        "lab",
        "--port",
        str(free_port()),
        "--mlflow-port",
        str(free_port()),
    ]
    # A shell that runs the tests in the background has its children ignore Ctrl-C.
    heeds = {"preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}
    with subprocess.Popen(command, cwd=workspace.parent, stdout=subprocess.PIPE, text=True, **heeds) as process:
        jupyter, mlflow, _ = (process.stdout.readline().split()[-1] for _ in range(3))
        address, token = re.fullmatch(r"(.*)/lab/tree/notebooks\?token=(.*)", jupyter).groups()
        request = urllib.request.Request(f"{address}/api/kernels?token={token}", data=b"{}", method="POST")
        urllib.request.urlopen(request).close()
        assert re.search(r"/#/experiments/\d+/runs$", mlflow)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("ipykernel" in command_of(p) for p in family)
        process.send_signal(number)
        process.send_signal(number)
    assert process.returncode == (0 if number is signal.SIGINT else 128 + number)
    wait_for(lambda: all(map(has_ended, family)))
