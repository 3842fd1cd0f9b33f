"""The advantages of every reader's rows, worked out by hand, from scripted replies through the real agent loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from training_loop import ScriptedServer, in_order, loop_of, recipe_of

from experiments.studies.readers.study import objectives
from memagent_lib.data import Example, Span
from memagent_lib.readers import READERS
from memagent_lib.rl import RunFolder
from memagent_lib.text import chunks

torch = pytest.importorskip("torch")
pytest.importorskip("verl")
pytest.importorskip("vllm")

SIZES = {"chunk_tokens": 24, "memory_tokens": 24, "answer_tokens": 8, "question_tokens": 16}
FACT = "The red door has code 4711."
FILLER = "A small boat drifts past the old mill. "


def example(tokenizer, chunk: int, number: int) -> Example:
    """A document of ``number`` chunks, whose fact lies in one of them."""
    budget = SIZES["chunk_tokens"]
    for before in range(40):
        document = FILLER * before + FACT + " " + FILLER * 40
        parts = chunks(document, tokenizer, budget)
        start = document.index(FACT)
        fact = Span(start, start + len(FACT))
        if parts[chunk].start <= fact.start and fact.end <= parts[chunk].end:
            text = document[: parts[number - 1].end]
            assert len(chunks(text, tokenizer, budget)) == number
            fields = {"question": "door code?", "answers": ("4711",), "rule": "match_part", "evidence": (fact,)}
            return Example(id="a", task="toy", document=text, **fields)
    raise AssertionError("no sentence of the filler leaves room for the fact in one chunk")


class Rows:
    """The rows of a prompt's rollouts as the transfer queue returns them to the trainer, and what it puts back."""

    def __init__(self):
        self.rows, self.advantages = {}, {}

    def kv_batch_get(self, keys, partition_id, select_fields):
        columns = {name: [self.rows[key][name] for key in keys] for name in select_fields}
        nested = lambda values: torch.nested.as_nested_tensor(values, layout=torch.jagged)  # noqa: E731
        return {name: nested(column) if torch.is_tensor(column[0]) else column for name, column in columns.items()}

    def kv_batch_put(self, keys, partition_id, fields):
        for key, row in zip(keys, fields["advantages"].unbind(), strict=True):
            assert len(set(row.tolist())) == 1, "all tokens of a row have one advantage"
            self.advantages[key] = row[0].item()


@pytest.fixture
def outputs(tmp_path, model_folder, tokenizer):
    """A function that returns the recipe of a rollout with scripted replies, and the rollout's rows."""
    runs = itertools.count()

    async def rollout(reader: str, task: Example, reply: Callable[[str], str], on_bad_memory="take", **tables):
        recipe = recipe_of(model_folder, SIZES, reader, {"on_bad_memory": on_bad_memory}, **tables)
        loop = loop_of(tmp_path / f"run {next(runs)}", ScriptedServer(tokenizer, reply), recipe)
        row = task.to_record() | {"raw_prompt": task.to_record()["prompt"], "uid": "p"}
        return recipe, await loop.run({"temperature": 1.0}, **row, global_steps=1, session_id=0)

    return rollout


@pytest.fixture
def advantages(outputs, monkeypatch, tmp_path):
    """A function that returns each rollout's advantages by turn, and the metrics of each rollout."""
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from memagent_lib.rl import trainer as module

    monkeypatch.setattr(PPOTrainerSync, "_compute_advantage", lambda self, batch, metrics: batch)

    async def compute(reader, task, *rollouts, rewards=(), credit="shared", on_bad_memory="take"):
        queue = Rows()
        monkeypatch.setattr(module, "tq", queue)
        found, metrics = [], []
        for number, reply in enumerate(rollouts):
            tables = {"rewards": dict(rewards), "train": {"credit": credit}}
            recipe, made = await outputs(reader, task, reply, on_bad_memory, **tables)
            for turn, output in enumerate(made):
                scores = torch.zeros(len(output.response_ids))
                scores[-1] = made[-1].reward_score
                queue.rows[f"p_{number}_{turn}"] = {
                    "rm_scores": scores,
                    "response_mask": torch.tensor(output.response_mask),
                    "extra_fields": output.extra_fields,
                    "num_turns": output.num_turns,
                    "data_source": task.task,
                }
            metrics.append(made[-1].extra_fields["reward_extra_info"])
        trainer = object.__new__(module.MemAgentTrainer)
        trainer.recipe = recipe
        trainer.folder, trainer.global_steps = RunFolder(tmp_path), 1
        trainer.config = SimpleNamespace(
            algorithm=SimpleNamespace(
                norm_adv_by_std_in_grpo=False, rollout_correction=SimpleNamespace(bypass_mode=True)
            )
        )
        keys = sorted(queue.rows)
        batch = KVBatchMeta(keys=keys, tags=[{} for _ in keys], partition_id="train")
        assert trainer._rollout_metrics(batch)["rows/produced"] == len(keys), "the trainer misses no row"
        trainer._compute_advantage(batch, {})
        for number in range(len(rollouts)):
            found.append([queue.advantages[key] for key in keys if key.startswith(f"p_{number}_")])
        return found, metrics

    return compute


async def test_overwrite_gives_every_turn_the_final_advantage(tokenizer, advantages):
    right = in_order("-", "code 4711", "code 4711", "4711")
    found, _ = await advantages("overwrite", example(tokenizer, 1, 3), right, in_order("-", "-", "-", "no"))
    assert found == [[0.5] * 4, [-0.5] * 4]


# The objectives of the study of readers.
GRU_MEM = objectives()["gated"]


async def test_gates_are_rewarded_by_turn_and_the_exit_once(tokenizer, advantages):
    found, metrics = await advantages(
        "gated",
        example(tokenizer, 1, 3),
        in_order("KEEP", "DONE\ncode 4711", "4711"),  # keeps and updates rightly, ends with the evidence
        in_order("mill", "KEEP", "KEEP", "no"),  # updates and keeps wrongly, then keeps rightly; reads on
        in_order("DONE", "no"),  # ends before the evidence; DONE is no KEEP
        rewards=GRU_MEM,
    )
    assert [each["reward"] for each in metrics] == [1.0, -0.5, -0.75]
    mean = -0.25 / 3
    first, second, third = 0.9 * (1 - mean), 0.9 * (-0.5 - mean), 0.9 * (-0.75 - mean)
    # The first chunk's rewards are 1, -1, -1; the second's 1 and -1; only one rollout has a third chunk.
    assert found[0] == pytest.approx([first + 0.1 * 4 / 3, first + 0.1, first])
    assert found[1] == pytest.approx([second - 0.1 * 2 / 3, second - 0.1, second, second])
    assert found[2] == pytest.approx([third - 0.1 * 2 / 3, third])
    assert [(each["early_exit"], each["late_exit"]) for each in metrics] == [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
    assert [each["keep_share"] for each in metrics] == pytest.approx([1 / 2, 2 / 3, 0.0])


async def test_recall_is_rewarded_for_what_memory_and_call_gain(tokenizer, advantages):
    found, _ = await advantages(
        "recall",
        example(tokenizer, 0, 3),
        # Gains the answer, loses it, and gets it back beside the question: 1, -1, 1.
        in_order("code 4711", "mill", "mill\nRECALL: code", "4711"),
        in_order("mill", "mill", "mill\nRECALL: boat", "no"),  # nothing to gain, and nothing to recall
        rewards=objectives()["recall"],
    )
    assert found[0] == pytest.approx([0.4 + 0.1, 0.4 - 0.1, 0.4 + 0.1, 0.4])
    assert found[1] == pytest.approx([-0.4 - 0.1, -0.4 + 0.1, -0.4 - 0.1, -0.4])


async def test_a_search_is_a_turn_and_stopping_soon_pays(tokenizer, advantages):
    found, metrics = await advantages(
        "retrieving",
        example(tokenizer, 1, 3),
        in_order("-\nSEARCH: red door", "DONE\ncode 4711", "4711"),
        in_order("-", "code 4711", "code 4711", "4711"),
        in_order("-", "-", "-", "no"),
        rewards=objectives()["retrieving"],
    )
    assert [each["reward"] for each in metrics] == pytest.approx([1.6, 1.36, 0.0])
    mean = 2.96 / 3
    assert [len(rows) for rows in found] == [3, 4, 4]
    assert found[0] == pytest.approx([1.6 - mean] * 3)
    assert found[1] == pytest.approx([1.36 - mean] * 4)
    assert [each["search_share"] for each in metrics] == pytest.approx([0.5, 0.0, 0.0])


async def test_slots_share_the_advantage_of_the_answer(tokenizer, advantages):
    right = in_order("-", "code 4711", "c", "d", "e", "4711")
    found, _ = await advantages("multislot", example(tokenizer, 1, 5), right, in_order(*"-bcde", "no"))
    assert found == [[0.5] * 6, [-0.5] * 6]


async def test_merges_get_credit_like_the_turns_that_read(tokenizer, advantages):
    def answering(text: str) -> Callable[[str], str]:
        return lambda prompt: text if "Write the answer" in prompt else "code 4711"

    task = example(tokenizer, 1, 3)
    found, metrics = await advantages("map_merge", task, answering("4711"), answering("no"))
    assert found == [[0.5] * 6, [-0.5] * 6], "three reads, two merges and the answer"
    assert metrics[0]["turns"] == 6
    found, _ = await advantages("map_merge", task, answering("4711"), answering("no"), credit="split")
    assert found == [pytest.approx([0.5 / 6] * 6), pytest.approx([-0.5 / 6] * 6)]


async def test_validation_averages_what_is_known_alone(outputs, tokenizer):
    """Of three readings two captured the fact, and one of these kept it.

    The fourth example has no known evidence, and its answer was kept once it was noted.
    """
    from verl.trainer.ppo.v1 import PPOTrainerSync
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    task = example(tokenizer, 1, 3)
    readings = [
        (task, in_order("mill", "code 4711", "code 4711", "4711")),
        (task, in_order("mill", "code 4711", "mill", "no")),
        (task, in_order("mill", "mill", "mill", "no")),
        (replace(task, evidence=()), in_order("mill", "code 4711", "code 4711", "4711")),
    ]
    sent = [(await outputs("gated", *each, rewards={"late_exit": 0.0}))[1][-1].extra_fields for each in readings]
    arrived = list_of_dict_to_tensordict([{"extra_fields": fields} for fields in sent])["extra_fields"]
    measured = [fields["reward_extra_info"] for fields in arrived]
    columns = {name: [each[name] for each in measured] for name in measured[0]}
    found = PPOTrainerSync._val_metrics_update(None, ["toy"] * 4, list("abcd"), columns, [])
    names = ("acc", "capture", "retention", "late_exit")
    means = [value for name in names for key, value in found.items() if key.endswith(f"/toy/{name}/mean@1")]
    assert means == pytest.approx([2 / 4, 2 / 3, 2 / 3, 3 / 3])


def test_every_reader_with_a_memory_has_an_objective_here():
    tested = {"overwrite", "gated", "recall", "retrieving", "multislot", "map_merge"}
    assert {name for name, reader in READERS.items() if reader.has_memory} <= tested == set(objectives())


def test_verl_builds_the_loop_of_a_runs_recipe(model_folder, tmp_path, tokenizer):
    """The recipe reaches the rollout processes through the run's folder."""
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from memagent_lib.rl import RunFolder
    from memagent_lib.rl.verl.verl_settings import AGENT_FILE, write_agent_file

    folder = RunFolder(tmp_path / "eule \N{OWL} ü")
    rewards = {"rollout_weight": 0.9, "update": 0.1, "late_exit": -0.5}
    recipe = recipe_of(model_folder, SIZES, "gated", rewards=rewards)
    write_agent_file(folder)
    folder.write_recipe(recipe, "cpu")
    (entry,) = OmegaConf.load(folder.path / AGENT_FILE)
    loop = instantiate(entry, server_manager=None, tokenizer=tokenizer.hf)
    assert (loop.recipe, set(loop.rewards)) == (recipe, {"update", "late_exit"})
