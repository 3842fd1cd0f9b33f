"""The wheel in an empty environment: a plain installation reads, measures and explores, from any folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest
from aiohttp import ClientSession
from hostile import serving
from needle_server import right
from ports import free_port
from waiting import command_of, has_ended, wait_for

from memagent_lib.cli import commands

ROOT = Path(__file__).parents[2]
UV = [str(Path(sys.executable).with_name("uv"))]
INDEX = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if os.environ.get("PIP_INDEX_URL") else {}
OUTSIDE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
COMMIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "--allow-empty", "--message"]
OUTSIDE |= INDEX | {"COLUMNS": "900"}  # wide enough for doctor's longest line

pytestmark = pytest.mark.slow


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


def test_every_verb_of_a_plain_installation_has_its_help(memagent, tmp_path):
    assert "init FOLDER" in run(memagent, "--help", cwd=tmp_path).stdout
    for verb in commands.commands:
        assert f"Usage: memagent {verb}" in run(memagent, verb, "--help", cwd=tmp_path).stdout


def test_the_doctor_passes_it_and_names_the_engines_command(memagent, tmp_path):
    table = run(memagent, "doctor", cwd=tmp_path).stdout
    assert not {"missing", "failed"} & set(table.split())
    assert "none (a plain installation)" in table and "--torch-backend cpu --no-deps --requirement /" in table


def test_a_second_init_changes_no_file(memagent, workbench):
    mine = workbench / "experiments" / "demo.toml"
    before = mine.read_bytes()
    mine.write_text("# mine\n")
    out = run(memagent, "init", workbench.name, cwd=workbench.parent).stdout
    assert mine.read_text() == "# mine\n"
    assert out.startswith("0 files written") and "1 of them differ from the library's: experiments/demo.toml" in out
    mine.write_bytes(before)


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


def test_a_newer_wheel_over_it_leaves_every_file_of_a_person(memagent, wheel, workbench):
    mine = {path: path.read_bytes() for path in workbench.rglob("*") if path.is_file()}
    build = [*UV, "build", "--quiet", "--wheel", "--out-dir", "newer", "."]
    run("env", "SETUPTOOLS_SCM_PRETEND_VERSION=9.9.9", *build, cwd=wheel.parents[1])
    (newer,) = (wheel.parents[1] / "newer").glob("*.whl")
    into = ["--quiet", "--python", str(Path(memagent).with_name("python"))]
    install = [*UV, "pip", "install", *into, "--no-config", "--no-deps", str(newer)]
    run(*install, cwd=workbench)
    assert run(memagent, "--version", cwd=workbench).stdout.startswith("memagent 9.9.9")
    assert run(memagent, "init", workbench.name, cwd=workbench.parent).stdout.startswith("0 files written")
    run(*UV, "pip", "uninstall", *into, "memagent-lib", cwd=workbench)
    assert not Path(memagent).exists()
    assert {path: path.read_bytes() for path in workbench.rglob("*") if path.is_file()} == mine
    run(*install, cwd=workbench)  # the other tests need it


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


def test_what_needs_an_engine_is_one_line_that_names_the_fix(memagent, workbench):
    refused = run(memagent, "demo", cwd=workbench, status=2).stderr
    assert refused.count("\n") == 1
    command = r"`uv pip install --python (\S+) --torch-backend cpu --no-deps --requirement (\S+)`"
    python, pins = re.search(command, refused).groups()
    assert Path(python) == Path(memagent).with_name("python")
    assert Path(pins).read_text().count("==") > 200


def test_the_first_notebook_ends_in_one_line_without_engines(memagent, workbench):
    papermill = [str(Path(memagent).with_name("python")), "-m", "papermill", "--no-progress-bar"]
    ran = workbench / "00.ipynb"
    run(*papermill, "notebooks/00_quickstart.ipynb", str(ran), "--cwd", "notebooks", cwd=workbench, status=1)
    cells = [cell for cell in nbformat.read(str(ran), 4).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    document, failure = (output for output in outputs if output.output_type != "stream")
    assert "<mark" in document["data"]["text/html"]
    (line,) = failure["traceback"]
    assert re.match(r"MissingPackage: .*transformers.* not installed; run `uv pip install", line)


def test_a_wheel_states_the_pythons_that_it_installs_into(wheel):
    with zipfile.ZipFile(wheel) as content:
        (about,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        assert "Requires-Python: <3.13,>=3.11\n" in content.read(about).decode()


def test_the_lab_refuses_a_port_in_use_before_it_starts(memagent, workbench):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = run(
            memagent, "lab", "--port", port, "--mlflow-port", str(free_port()), cwd=workbench, status=2
        ).stderr
    assert f"port {port} of 127.0.0.1 is in use" in refused and refused.count("\n") == 1


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
