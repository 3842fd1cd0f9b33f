"""``memagent evaluate`` from data files to a table: against a server, resumed, with published numbers beside ours."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from hostile import serving

from memagent_lib.cli import main
from memagent_lib.data import Example, Span, load, make, save, stream
from memagent_lib.evaluation import gather_rows
from memagent_lib.tracking import Experiment, load_runs


def reply(body: dict) -> dict:
    """A perfect reader of needles, as a server's model says it."""
    (message,) = body["messages"]
    text = message["content"]
    key = re.search(r"code of the (\w+ \w+)\?", text)  # none while a document is read for all questions
    found = key and re.search(rf"The code of the {key.group(1)} is (\d+)\.", text)
    said = found.group(0) if found else "nothing yet"
    if "Write the answer" in text:
        said = f"\\boxed{{{found.group(1)}}}" if found else "\\boxed{unknown}"
    return {"choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}], "usage": {}}


@pytest.fixture
def needles(tokenizer, tmp_path) -> Path:
    examples = make("needle", 5, 3, tokenizer, chunks=3, chunk_tokens=200)
    return save(examples, tmp_path / "needles.parquet")


def command_for(server, tokenizer_folder: str, workspace: Path, out: Path, *more: str) -> list[str]:
    command = ["evaluate", "--out", str(out), "--model", "small", "--base-url", server.url, "--template", "short"]
    command += ["--set", "api=chat", "--set", "window=4096", "--set", f"tokenizer={tokenizer_folder}"]
    command += ["--chunk-tokens", "200", "--memory-tokens", "60", "--set", "answer_tokens=16"]
    return [*command, "--tracking", str(workspace), *more]


def test_a_model_judge_adds_a_second_opinion_to_every_answer(needles, tokenizer_folder, workspace, tmp_path, capsys):
    def judged_or_read(body: dict) -> dict:
        if "CORRECT" not in body["messages"][0]["content"]:
            return reply(body)
        choice = {"message": {"role": "assistant", "content": "INCORRECT"}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"prompt_tokens": 0, "completion_tokens": 1}}

    with serving() as server:
        server.reply = judged_or_read
        command = command_for(server, tokenizer_folder, workspace, tmp_path / "out", str(needles))
        judge = ["--judge", "small", "--judge-set", "window=4096", "--judge-set", f"tokenizer={tokenizer_folder}"]
        assert main([*command, *judge]) == 0
        said = capsys.readouterr().err
        assert "the rule agrees on 0.0 % of the model judge's 5 verdicts on overwrite" in said
        posts = server.posts
        assert main([*command, *judge]) == 0
        assert server.posts == posts, "the verdicts are saved"
        capsys.readouterr()
    rows = gather_rows(tmp_path / "out")
    assert set(rows["model_judge"]) == {"small"} and list(rows["model_verdict"]) == [0] * 5
    assert set(rows["model_judge_reply"]) == {"INCORRECT"}
    runs = load_runs(Experiment.open(workspace))
    assert set(runs["tags.model_judge"]) == {"small"}


def test_wrong_examples_become_data_and_failed_ones_do_not(needles, tokenizer_folder, workspace, tmp_path, capsys):
    there = list(stream(needles))
    replies = {there[1].question: "\\boxed{no idea}", there[3].question: " "}  # a wrong answer, and none

    def sometimes(body: dict) -> dict:
        asked = body["messages"][0]["content"]
        said = next((text for question, text in replies.items() if question in asked), "")
        if said and "Write the answer" in asked:
            return {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
        return reply(body)

    wrong = tmp_path / "wrong.parquet"
    with serving() as server:
        server.reply = sometimes
        given = command_for(server, tokenizer_folder, workspace, tmp_path / "out", str(needles), "--wrong")
        given[-1:-1] = ["--reader", "overwrite", "--reader", "blind"]  # which gets all of them wrong
        assert main([*given, str(tmp_path / "wrong.csv")]) == 2
        assert server.posts == 0
        assert main([*given, str(wrong)]) == 0
        assert load(wrong) == [there[1]]
        again = command_for(server, tokenizer_folder, workspace, tmp_path / "none wrong", str(needles), "--wrong")
        del replies[there[1].question]
        assert main([*again, str(tmp_path / "none.parquet")]) == 0
    assert not (tmp_path / "none.parquet").exists()
    said = capsys.readouterr().err
    assert f"1 not answered right, saved in {wrong}" in said and "0 not answered right" in said
    assert "end the name" in said, "a name that is not parquet is said before anything is read"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_how_to_continue_and_does(
    needles, tokenizer_folder, workspace, tmp_path, number: signal.Signals, code: int
):
    with serving() as server:
        enough, over = threading.Event(), threading.Event()

        def hanging(body: dict) -> dict:
            if server.posts > 6:
                enough.set()
                over.wait(120)
            return reply(body)

        server.reply = hanging
        given = command_for(server, tokenizer_folder, workspace, tmp_path / "out", str(needles), "--concurrency", "1")
        command = [sys.executable, "-m", "memagent_lib.cli", *given]
        heeds = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heeds) as process:
            assert enough.wait(120)
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        over.set()
        assert process.returncode == code
        out = tmp_path / "out"
        assert f"stopped; finished turns are saved in {out}/readings, and the same command continues" in said
        assert "Traceback" not in said
        before, server.reply = server.posts, reply
        assert main(given) == 0
        turns = pd.read_parquet(out / "small.parquet")["turns"].sum()
        assert (before, server.posts - before) == (7, turns - 6), "the six finished turns are not asked again"


MEASURED = """
import sys
from memagent_lib.cli import main
assert main(sys.argv[1:]) == 0
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.long
def test_an_example_of_3500000_tokens_is_read_under_a_gigabyte(workspace, tmp_path):
    words = "Rain taps on the roof all night and a small boat drifts past the old mill. "
    needle = "The code of the bold owl is 4711. "
    document = needle + words * 207_000
    example = Example(
        id="long", task="needle", question="What is the code of the bold owl?", document=document, answers=("4711",),
        evidence=(Span(0, len(needle) - 1),),
    )  # fmt: skip
    data = save([example], tmp_path / "long.parquet")
    pocket = Path(__file__).parents[2] / "experiments/pocket/warm_start"
    with serving(window=8192) as server:
        server.reply = reply
        command = ["evaluate", str(data), "--out", str(tmp_path / "out"), "--tracking", str(workspace)]
        command += ["--model", "small", "--base-url", server.url, "--template", "short"]
        command += ["--set", "api=chat", "--set", f"tokenizer={pocket}"]
        # Not ru_maxrss, which begins at what the parent held when it forked: a whole test run holds gigabytes.
        done = subprocess.run([sys.executable, "-c", MEASURED, *command], capture_output=True, text=True, check=True)
    (row,) = pd.read_parquet(tmp_path / "out" / "small.parquet").to_dict("records")
    assert row["document_tokens"] >= 3_500_000 and row["score"] == row["capture"] == row["retention"] == 1.0
    assert server.posts == row["turns"] > 700
    assert int(done.stdout.rpartition("VmHWM:")[2].split()[0]) < 1_000_000, done.stdout
    assert json.loads((tmp_path / "out/readings/documents.jsonl").read_text())["record"]["text"] == document
