"""The wheel in an empty environment: a plain installation reads, measures and explores, from any folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest
from aiohttp import ClientSession
from hostile import serving
from needle_server import right
from ports import free_port
from waiting import command_of, has_ended, wait_for

ROOT = Path(__file__).parents[2]
UV = [str(Path(sys.executable).with_name("uv"))]
INDEX = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if os.environ.get("PIP_INDEX_URL") else {}
OUTSIDE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
COMMIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "--allow-empty", "--message"]
OUTSIDE |= INDEX | {"COLUMNS": "900"}  # wide enough for doctor's longest line

pytestmark = pytest.mark.long


def run(*command: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=cwd, env=OUTSIDE, capture_output=True, text=True)
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of the files that git tracks, built in a folder whose name has a blank."""
    source = tmp_path_factory.mktemp("source") / "a clone"
    listed = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")[:-1]
    for name in listed:
        copy = source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    run(*UV, "build", "--quiet", "--wheel", "--out-dir", str(source / "dist"), ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def memagent(wheel, tmp_path_factory) -> str:
    """The command of a plain installation."""
    folder = tmp_path_factory.mktemp("plain") / "environment"
    pins = ROOT / "memagent_lib" / "constraints" / "plain.txt"
    run(*UV, "venv", "--quiet", "--python", sys.executable, str(folder), cwd=wheel.parent)
    python = str(folder / "bin" / "python")
    into = ["--quiet", "--no-config", "--python", python, "--constraints", str(pins)]
    run(*UV, "pip", "install", *into, str(wheel), cwd=wheel.parent)
    return str(folder / "bin" / "memagent")


@pytest.fixture(scope="module")
def workbench(memagent, tmp_path_factory) -> Path:
    """A folder of `memagent init`, whose name has a blank."""
    folder = tmp_path_factory.mktemp("walk") / "my workbench"
    assert "files written to" in run(memagent, "init", folder.name, cwd=folder.parent).stdout
    return folder


def test_the_name_of_a_wheel_says_its_version(wheel, tmp_path):
    assert wheel.name == "memagent_lib-0.1.dev0-py3-none-any.whl"  # of a copy without git
    run("git", "clone", "--quiet", "--no-tags", "--depth", "1", f"file://{ROOT}", "clone", cwd=tmp_path)
    clone = tmp_path / "clone"
    run("git", "archive", "--prefix", "archive/", "--output", str(tmp_path / "archive.tar"), "HEAD", cwd=clone)
    run("tar", "--extract", "--file", "archive.tar", cwd=tmp_path)
    run(*UV, "build", "--quiet", "--wheel", "--out-dir", "dist", ".", cwd=tmp_path / "archive")
    assert (tmp_path / "archive" / "dist" / wheel.name).is_file()  # of an archive without tags
    run("git", "tag", "v9.8.7", cwd=clone)
    run("make", f"UV={UV[0]}", "wheel", cwd=clone)
    names = {path.name for path in (clone / "dist").iterdir()}
    assert {"memagent_lib-9.8.7-py3-none-any.whl", "memagent_lib-9.8.7.tar.gz"} <= names
    run(*COMMIT, "a later commit", cwd=clone)
    run(*UV, "build", "--quiet", "--wheel", "--out-dir", "later", ".", cwd=clone)
    (later,) = (clone / "later").glob("*.whl")
    assert re.fullmatch(r"memagent_lib-9\.8\.8\.dev1\+g[0-9a-f]+-py3-none-any\.whl", later.name)


def test_a_wheel_has_the_notebooks_and_small_policies(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    share = {name.partition("/share/memagent/")[2] for name in names if "/share/memagent/" in name}
    assert {"notebooks/00_quickstart.ipynb", "experiments/demo.toml", "experiments/recipes/7b_8gpu.toml"} <= share
    assert {"experiments/pocket/trained/model.safetensors", "experiments/pocket/world.py"} <= share
    assert not [name for name in names if "/tests/" in name or ".venv" in name]
    # The one study that a recipe names, by its wording and its warm start.
    prose = {"README.md", "train.toml", "warm_start.toml", "wording.toml"}
    assert {name for name in share if "/studies/" in name} == {f"experiments/studies/prose/{name}" for name in prose}
    assert wheel.stat().st_size < 8_000_000


def test_the_doctor_passes_it_and_names_the_engines_command(memagent, tmp_path):
    table = run(memagent, "doctor", cwd=tmp_path).stdout
    assert not {"missing", "failed"} & set(table.split())
    assert "none (a plain installation)" in table and "--torch-backend cpu --no-deps --requirement /" in table


def test_data_read_and_evaluate_end_with_their_results(memagent, workbench):
    data = ["data", "needle", "--chunks", "2", "--chunk-tokens", "200", "--n", "3", "--out", "runs/test_2.parquet"]
    run(memagent, *data, cwd=workbench)
    (workbench / "a.txt").write_text("The code of the bold owl is 4711.")
    settings = ("api=chat", "window=8192", "answer_tokens=40", "tokenizer=experiments/pocket/warm_start")
    sizes = ["--template", "short", "--chunk-tokens", "400", "--memory-tokens", "90"]
    sizes += [word for setting in settings for word in ("--set", setting)]
    with serving() as server:
        server.reply = right
        model = ["--model", "small", "--base-url", server.url, *sizes]
        question = ["--question", "What is the code of the bold owl?"]
        assert run(memagent, "read", "a.txt", *question, *model, cwd=workbench).stdout == "4711\n"
        run(memagent, "evaluate", "runs/test_2.parquet", "--out", "runs/scores", *model, cwd=workbench)
    assert list(pd.read_parquet(workbench / "runs" / "scores" / "small.parquet")["score"]) == [1.0] * 3
    assert (workbench / "runs" / "scores" / "inspector.html").is_file()


def test_default_paths_are_found_outside_of_the_workbench(memagent, tmp_path):
    size = ["--chunks", "2", "--chunk-tokens", "96"]
    run(
        memagent,
        "data",
        "experiments/pocket/world.py:pocket_needle",
        *size,
        "--n",
        "2",
        "--out",
        "a.parquet",
        cwd=tmp_path,
    )
    assert len(pd.read_parquet(tmp_path / "a.parquet")) == 2


@contextmanager
def lab_in(folder: Path, memagent: str, scratch: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """Run `memagent lab` during a ``with`` block; yield JupyterLab's address, its token and the process."""
    output = scratch / "lab.txt"
    ports = ["--port", str(free_port()), "--mlflow-port", str(free_port())]
    other = scratch / "home" / ".local" / "share" / "jupyter" / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text('{"argv": ["false"], "display_name": "Other", "language": "python"}')
    # A home folder with a kernel of another Python, which counts in an environment that another user owns.
    environment = OUTSIDE | {"HOME": str(scratch / "home"), "JUPYTER_PREFER_ENV_PATH": "0"}
    with open(output, "wb") as file:
        started = subprocess.Popen([memagent, "lab", *ports], cwd=folder, env=environment, stdout=file, stderr=file)
    lab = psutil.Process(started.pid)
    try:
        wait_for(lambda: "Ctrl-C stops both" in output.read_text() or started.poll() is not None, most_s=400)
        page = re.search(r"JupyterLab +(http://\S+)/lab/tree/notebooks\?token=(\S+)", output.read_text())
        assert page, output.read_text()
        yield *page.groups(), lab
    finally:
        family = lab.children(recursive=True) if started.poll() is None else []
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(60)
        for left in (lab, *family):  # none, unless a test has failed
            with suppress(psutil.NoSuchProcess):
                left.kill()


def test_the_lab_opens_a_notebook_runs_its_cells_and_stops(memagent, workbench, tmp_path):
    with lab_in(workbench, memagent, tmp_path) as (address, token, lab):

        def from_jupyter(path: str, body: dict | None = None) -> dict:
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(f"{address}/api/{path}?token={token}", data) as reply:
                return json.load(reply)

        with urllib.request.urlopen(f"{address}/lab/tree/notebooks?token={token}") as page:
            assert b"jupyter-config-data" in page.read()
        assert "00_quickstart.ipynb" in {file["name"] for file in from_jupyter("contents/notebooks")["content"]}
        book = from_jupyter("contents/notebooks/00_quickstart.ipynb")
        kernel = {"name": "", "path": book["path"], "type": "notebook", "kernel": {"name": "python3"}}
        started = from_jupyter("sessions", kernel)["kernel"]["id"]
        sources = [cell["source"] for cell in book["content"]["cells"] if cell["cell_type"] == "code"]
        last, shown = asyncio.run(run_cells(address, token, started, sources))
        assert any("<mark" in page for page in shown)
        (line,) = last["traceback"]
        assert re.match(r"MissingPackage: .*transformers.* not installed; run `uv pip install", line)
        family = lab.children(recursive=True)
        assert any("ipykernel" in command_of(process) for process in family)
        assert not any("huey" in command_of(process) for process in family)  # MLflow's jobs
        lab.terminate()
        wait_for(lambda: all(map(has_ended, (lab, *family))))


async def run_cells(address: str, token: str, kernel: str, sources: list[str]) -> tuple[dict, list[str]]:
    """Run cells as JupyterLab's page does, up to the first error; return the last reply and the HTML outputs."""
    shown = []
    last = {}
    channels = f"{address}/api/kernels/{kernel}/channels?token={token}"
    async with ClientSession() as session, session.ws_connect(channels, max_msg_size=0) as socket:
        for number, source in enumerate(sources):
            header = {"msg_id": str(number), "msg_type": "execute_request", "session": "t", "username": "t"}
            request = {"header": header | {"version": "5.3"}, "parent_header": {}, "metadata": {}, "channel": "shell"}
            await socket.send_json(request | {"content": {"code": source, "silent": False, "allow_stdin": False}})
            last = {}
            is_idle = False
            while not (last and is_idle):  # outputs can arrive after the reply, and before the kernel is idle
                message = await socket.receive_json(timeout=300)
                content = message["content"]
                if message["parent_header"].get("msg_id") != str(number):
                    continue
                if message["msg_type"] == "execute_reply":
                    last = content
                is_idle |= content.get("execution_state") == "idle"
                shown.append(content.get("data", {}).get("text/html", ""))
            if last["status"] != "ok":
                break
    return last, shown
