"""A card states what was recorded, of exactly these weights; a push takes the model and its card, nothing else."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hub import TOKEN, Hub, hub
from huggingface_hub import ModelCard
from small_policies import BUDGET, write_model

from memagent_lib.agent import Agent, AgentSettings
from memagent_lib.backends import Scripted
from memagent_lib.cli import main
from memagent_lib.data import data_hash, make, save
from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import EvaluationPlan
from memagent_lib.models import PUBLISHED
from memagent_lib.prompts import Encoder, Template
from memagent_lib.provenance import model_hash
from memagent_lib.publishing import Policy, PublishingError, files_of, model_card, push_to_hub
from memagent_lib.publishing.card import public
from memagent_lib.rl import Recipe, RunFolder, TrainingState, TrainingStatus
from memagent_lib.tracking import Experiment, evaluate_files

TAKEN = ["README.md", "config.json", "memagent.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def run(tokenizer, workspace: Path, tmp_path: Path) -> RunFolder:
    """A finished run of a small policy, with a file that is not a model's, and a base with a card."""
    base = write_model(tmp_path / "base", 7)
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# a base\n")
    train = save(make("needle", 3, 5, tokenizer, chunks=2, chunk_tokens=200), tmp_path / "train_2.parquet")
    tables = {
        "model": {"path": str(base), "device": "cpu"},
        "data": {"train": [str(train)], "eval": [str(train)]},
        "reading": {"template": "short", **asdict(BUDGET)},
        "tracking": {"uri": f"sqlite:///{workspace}/mlflow.db"},
        "verl": {"trainer.total_training_steps": 4},
    }
    folder = RunFolder(tmp_path / "seven")
    write_model(folder.model)
    AgentSettings(template="short", budget=BUDGET).save(folder.model)
    (folder.model / "mine.parquet").write_text("private")
    folder.write_recipe(Recipe.from_tables(tables), "cpu")
    folder.write_status(TrainingStatus(state=TrainingState.FINISHED, step=4, steps=4))
    return folder


@pytest.fixture
def policy(run: RunFolder) -> Policy:
    return Policy.of(run.path)


@pytest.fixture
def published(policy: Policy) -> Policy:
    (policy.folder / "README.md").write_text(model_card(policy))
    return policy


@pytest.fixture
def loopback(monkeypatch) -> Iterator[Hub]:
    with hub() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def test_a_card_states_base_licence_recipe_and_hashes(policy, run, tmp_path) -> None:
    text = model_card(policy)
    head = ModelCard(text).data
    assert (head.license, head.get("memagent")) == ("apache-2.0", {"weights": model_hash(run.model)})
    for named in (tmp_path / "base", run.model):
        assert model_hash(named) in text
    assert f"| train_2.parquet | {data_hash(tmp_path / 'train_2.parquet')} |" in text
    assert "It was trained from base." in text and "have not been evaluated" in text
    recipe = Recipe.from_tables(tomllib.loads(text.partition("```toml\n")[2].partition("```")[0]))
    assert recipe.verl["trainer.total_training_steps"] == 4 and recipe.data.train == ("train_2.parquet",)
    assert str(tmp_path) not in text
    assert public({"rewards": {"/home/me/mine.py:brief": 0.2}}) == {"rewards": {"mine.py:brief": 0.2}}


def test_a_card_lists_only_scores_of_its_weights(policy, tokenizer, workspace, tmp_path) -> None:
    data = list(make("needle", 2, 6, tokenizer, chunks=2, chunk_tokens=200))
    data = [replace(each, rule=f"babilong:{each.answers[0]}|b") for each in data]
    file = save(data, tmp_path / "test_2.parquet")
    runs = {}
    short = replace(BUDGET, memory_tokens=8)
    for name, weights, budget in (
        ("seven", policy.weights, BUDGET),
        ("short", policy.weights, short),
        ("other", "0" * 16, BUDGET),
    ):
        knows_one = Scripted(lambda text: f"\\boxed{{{data[0].answers[0] if data[0].question in text else 0}}}")
        agent = Agent(Encoder(tokenizer, Template.load("short"), budget), knows_one, weights=weights)
        with Experiment.open(workspace).run(f"evaluate {name}", {"policy": name}) as tracked:
            evaluate_files(tracked, agent, EvaluationPlan([file]), tmp_path / name, policy=name)
        runs[name] = tracked.id
    row = "| needle | test_2.parquet | 2 | overwrite |{}| babilong | 50.0 [9.5, 90.5] | 2 | 0 | {} |"
    card = model_card(policy)
    assert row.format(f" memory {BUDGET.memory_tokens} ", runs["seven"]) in card
    assert row.format(" memory 8 ", runs["short"]) in card and runs["other"] not in card
    assert row.format("  ", runs["seven"]) in model_card(policy, evaluations=[str(tmp_path / "seven")])
    with pytest.raises(PublishingError, match=policy.weights[:8]):
        model_card(policy, evaluations=[str(tmp_path / "other")])


@pytest.mark.parametrize(
    ("base", "licence", "stated"),
    [("smollm2", "", "apache-2.0"), ("", "mit", "mit"), ("experiments/pocket/warm_start", "", "apache-2.0")],
)
def test_a_licence_is_stated_or_that_of_the_base(tmp_path, workspace, base, licence, stated) -> None:
    text = model_card(Policy.of(write_model(tmp_path / "alone")), str(workspace), base, licence)
    head = ModelCard(text).data
    assert (head.license, head.base_model) == (stated, PUBLISHED["smollm2"].hub if base == "smollm2" else None)
    assert "not recorded in its folder" in text


def test_what_cannot_be_described_is_refused(run, policy, tmp_path, workspace) -> None:
    (tmp_path / "base" / "README.md").unlink()
    with pytest.raises(PublishingError, match="--license"):
        model_card(policy)
    with pytest.raises(MissingFile, match="no policy at"):
        Policy.of(tmp_path)
    run.write_status(TrainingStatus(state=TrainingState.STOPPED, step=2, steps=4))
    with pytest.raises(PublishingError, match="memagent resume"):
        Policy.of(run.path)


def test_only_a_described_policy_is_published_and_only_its_own_files(published) -> None:
    assert [file.name for file in files_of(published)] == TAKEN
    write_model(published.folder.parent / "again", 3)
    for name in ("README.md", "model.safetensors"):
        before = (published.folder / name).read_bytes()
        (published.folder / name).write_bytes((published.folder.parent / "again" / "model.safetensors").read_bytes())
        with pytest.raises((PublishingError, ValueError)):
            files_of(published)
        (published.folder / name).write_bytes(before)
    AgentSettings(budget=BUDGET, reader="/home/me/my_readers.py:mine").save(published.folder)
    with pytest.raises(PublishingError, match="my_readers"):
        files_of(published)


def test_a_push_creates_the_repository_and_commits_once(published, loopback) -> None:
    address = push_to_hub(published, "me/seven", private=True)
    assert address == f"{loopback.url}/me/seven/commit/{'1' * 40}"
    assert set(loopback.files["me/seven"]) == {*TAKEN, ".gitattributes"}
    assert (loopback.private, len(loopback.commits)) == ({"me/seven"}, 1)
    loopback.files["me/seven"]["model-00001-of-00002.safetensors"] = b""
    push_to_hub(published, "me/seven")
    assert set(loopback.files["me/seven"]) == {*TAKEN, ".gitattributes"}, "weights of two policies are never mixed"
    loopback.files["me/open"] = {}
    with pytest.raises(PublishingError, match="public"):
        push_to_hub(published, "me/open", private=True)
    assert loopback.files["me/open"] == {}


def test_the_commands_write_a_card_once_and_show_what_they_would_send(run, capsys) -> None:
    assert main(["push", str(run.path), "me/seven", "--dry-run"]) == 2
    assert main(["card", str(run.path)]) == 0
    assert main(["card", str(run.path)]) == 2
    capsys.readouterr()
    assert main(["push", str(run.path), "me/seven", "--dry-run"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [*TAKEN, "me/seven"]
