"""A plain installation has no engine: what a server can do is done in full, and all else is refused in one line.

The commands have a home folder that cannot be written, as in many containers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pandas as pd
import pytest
from hostile import serving
from needle_server import right

from memagent_lib.data import make, save
from memagent_lib.tracking import Experiment, load_runs

ROOT = Path(__file__).parents[2]
HIDING = ROOT / "tests" / "support" / "without_engines"
PLAIN = os.environ | {"PYTHONPATH": f"{HIDING}{os.pathsep}{ROOT}"}
MEMAGENT = [sys.executable, "-m", "memagent_lib.cli"]


def options(url: str, tokenizer_folder: str) -> list[str]:
    command = ["--model", "small", "--base-url", url, "--template", "short", "--chunk-tokens", "200"]
    command += ["--memory-tokens", "60", "--set", "api=chat", "--set", "window=4096", "--set", "answer_tokens=16"]
    return [*command, "--set", f"tokenizer={tokenizer_folder}"]


def memagent(folder: Path, *words: str) -> subprocess.CompletedProcess:
    environment = PLAIN | {"HOME": "/dev/null/home"}
    return subprocess.run([*MEMAGENT, *words], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def needles(tokenizer, tmp_path) -> Path:
    examples = make("needle", 4, 3, tokenizer, chunks=2, chunk_tokens=200)
    return save(examples, tmp_path / "data" / "test_2.parquet")


def test_evaluate_ends_with_rows_page_and_run(needles, tokenizer_folder, workspace, tmp_path):
    with serving() as server:
        server.reply = right
        command = ["evaluate", str(needles), "--out", "out", "--tracking", str(workspace)]
        done = memagent(tmp_path, *command, *options(server.url, tokenizer_folder))
    assert done.returncode == 0, done.stderr
    rows = pd.read_parquet(tmp_path / "out" / "small.parquet")
    assert list(rows["score"]) == [1.0] * 4
    assert (tmp_path / "out" / "inspector.html").is_file()
    assert list(load_runs(Experiment.open(workspace))["metrics.score"]) == [1.0]


def test_serve_answers_a_request(tokenizer_folder, tmp_path):
    message = {"role": "user", "content": "What is the code of the bold owl?"}
    body = {"model": "small", "messages": [message], "document": "The code of the bold owl is 4711."}
    with serving() as server:
        server.reply = right
        command = [*MEMAGENT, "serve", "--port", "0", *options(server.url, tokenizer_folder)]
        with subprocess.Popen(command, cwd=tmp_path, env=PLAIN, stdout=subprocess.PIPE, text=True) as process:
            try:
                url = process.stdout.readline().split()[0]
                head = {"Content-Type": "application/json"}
                request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), head)
                with urllib.request.urlopen(request) as response:
                    reply = json.load(response)
            finally:
                process.terminate()
    assert "4711" in reply["choices"][0]["message"]["content"]


NEEDS = {
    "evaluate DATA --out out --model small": "the vllm backend needs",
    "evaluate DATA --out out --model small --backend transformers": "the transformers backend needs",
    "evaluate DATA --out out --model small SERVER --judge small --judge-set backend=vllm": "the vllm backend needs",
    "serve --model small --port 0": "the vllm backend needs",
    "train RECIPE": "training needs",
}


RUN_EACH = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from memagent_lib.cli import main
results = []
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(command)
    results.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


def test_what_needs_an_engine_is_refused_in_one_line(needles, tokenizer_folder, tmp_path):
    recipe = ROOT / "experiments" / "recipes" / "7b_8gpu.toml"
    words = {"DATA": [str(needles)], "RECIPE": [str(recipe)]}
    words["SERVER"] = ["--base-url", "http://127.0.0.1:9/v1", "--set", f"tokenizer={tokenizer_folder}"]
    commands = [[word for name in line.split() for word in words.get(name, [name])] for line in NEEDS]
    call = [sys.executable, "-c", RUN_EACH, json.dumps(commands)]
    done = subprocess.run(call, cwd=tmp_path, env=PLAIN, capture_output=True, text=True, check=True)
    for (line, needs), (status, out, err) in zip(NEEDS.items(), json.loads(done.stdout), strict=True):
        assert (status, out) == (2, ""), line
        last = err.splitlines()[-1]  # after "opening the MLflow store ..." on a slow machine
        assert last.startswith(f"memagent {line.split()[0]}: {needs}") and "make install" in last, line
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_the_doctor_passes_a_plain_installation(tmp_path):
    done = memagent(tmp_path, "doctor")
    assert done.returncode == 0, done.stdout
    assert "none (a plain installation)" in done.stdout and "missing" not in done.stdout
