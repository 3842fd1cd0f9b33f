"""One real run of verl and vLLM on a bare CPU: three steps, documents of very different lengths, a policy to load."""

import random
from contextlib import suppress

import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

from memagent_lib.data import Example, Span, save
from memagent_lib.rl import Recipe, TrainingRun, TrainingState, attach, launch
from memagent_lib.text import Tokenizer, chunks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS, MINI_BATCHES, CHUNK_TOKENS = 3, 2, 24
REPLIES = {"memory_tokens": 8, "answer_tokens": 6, "question_tokens": 8}
VERL = {
    "trainer.total_training_steps": STEPS,
    "trainer.test_freq": STEPS,
    "trainer.val_before_train": False,
    "data.train_batch_size": 4,
    "actor_rollout_ref.rollout.n": 3,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4 // MINI_BATCHES,
    "actor_rollout_ref.actor.optim.lr": 1e-2,
    "actor_rollout_ref.actor.entropy_coeff": 0.01,
    "actor_rollout_ref.actor.kl_loss_coef": 1e-3,
}


def make_policy(folder, tokenizer: Tokenizer, seed: int = 0) -> None:
    """A random model whose predictions are far from uniform: stale weights in the rollouts could not go unseen."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    ids = {"vocab_size": len(tokenizer.hf), "eos_token_id": end, "bos_token_id": None, "pad_token_id": 0}
    config = Qwen2Config(max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.3, **sizes, **ids)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)


def examples(tokenizer: Tokenizer, lengths: list[int]) -> list[Example]:
    """One example per length in chunks, in order; any single letter is right, so some random answers are."""
    rng, made = random.Random(0), []
    for number, length in enumerate(lengths):
        words = ["code"]
        while len(chunks(" ".join(words), tokenizer, CHUNK_TOKENS)) < length or len(words) < 4:
            words.append(
                rng.choice(["the", "otter", "is", "on", "hill", "and", "the", "old", "mill", "drifts", "past"])
            )
        letters = tuple("bcdefghijklmnopqrstuvwxyz0123456789")
        fields = {
            "question": "code?",
            "document": " ".join(words),
            "answers": letters,
            "rule": "match_part",
            "evidence": (Span(0, 4),),
        }
        made.append(Example(id=str(number), task="toy", **fields))
    return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tokenizer) -> TrainingRun:
    home = tmp_path_factory.mktemp("training")
    make_policy(home / "policy", tokenizer)
    make_policy(home / "other", tokenizer, seed=1)
    own = Tokenizer.load(home / "policy")
    stages = []
    for name, lengths in (("short", [1, 1, 1, 1]), ("long", [6, 5, 6, 6]), ("both", [1, 6, 2, 3])):
        save(examples(own, lengths), home / f"{name}.parquet")
        stages.append({"files": str(home / f"{name}.parquet"), "steps": 1})
    save(examples(own, [2]), home / "eval.parquet")
    config = Recipe.from_tables(
        {
            "model": {
                "path": str(home / "policy"),
                "device": "cpu",
                "average_with": str(home / "other"),
                "average_share": 0.25,
            },
            "data": {"stages": stages, "eval": str(home / "eval.parquet")},
            "reading": {"template": "short", "chunk_tokens": CHUNK_TOKENS, **REPLIES},
            "verl": VERL,
        }
    )
    run = launch(config, home / "run")
    listening(run)
    run.wait()
    return run


LISTENING: set[tuple[str, str]] = set()
RAY = {"raylet", "gcs_server", "ray::DashboardAgent", "ray::RuntimeEnvAgent"}


def listening(run: TrainingRun) -> None:
    """Note, after the first step, which programs of the run listen on which addresses."""
    import psutil

    for status in run.follow():
        if status.step:
            break
    for process in psutil.Process(status.pid).children(recursive=True):
        with suppress(psutil.Error):
            found = {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
            LISTENING.update((process.name(), address) for address in found)


def column(run: TrainingRun, name: str) -> list[float]:
    return [row["metrics"][name] for row in run.folder.rows()]


def test_the_run_finished_and_says_so_everywhere(finished):
    import mlflow

    status = attach(finished.folder.path).status()
    assert (status.state, status.step, status.error) == (TrainingState.FINISHED, STEPS, "")
    store = mlflow.MlflowClient(tracking_uri=f"sqlite:///{finished.folder.path.parent / 'mlflow.db'}")
    entry = store.get_run(status.mlflow_run)
    assert entry.info.status == "FINISHED"
    assert [m.step for m in store.get_metric_history(status.mlflow_run, "rollout/acc")] == [1, 2, 3]
    assert entry.data.params["verl.actor_rollout_ref.rollout.n"] == "3"
    assert sorted(seen.dataset.name for seen in entry.inputs.dataset_inputs) == [
        "both.parquet",
        "eval.parquet",
        "long.parquet",
        "short.parquet",
    ]
    assert entry.data.tags["model"] == str(finished.folder.model)
    assert len(entry.data.tags["start_weights"].split(", ")) == 2


def test_no_prefix_outlived_its_weights(finished):
    assert "Failed to reset prefix cache" not in finished.folder.log.read_text()


def test_no_process_is_left(finished):
    import psutil

    mine = str(finished.folder.path)
    ours = [p for p in psutil.process_iter(["cmdline"]) if any(mine in word for word in p.info["cmdline"] or ())]
    assert psutil.wait_procs(ours, timeout=60)[1] == []  # the status is finished a moment before its writer ends


def test_a_run_listens_on_loopback_only(finished):
    ray = {(name, address) for name, address in LISTENING if name in RAY}
    assert {name for name, _ in ray} == RAY
    assert {address for _, address in LISTENING} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, sorted(LISTENING)


def test_the_reward_is_the_mean_over_rollouts_not_over_rows(finished):
    for name in ("critic/score/mean", "critic/rewards/mean"):
        assert column(finished, name) == column(finished, "rollout/acc")
    assert column(finished, "rollout/acc/toy") == column(finished, "rollout/acc")
    assert finished.status().reward == column(finished, "rollout/acc")[-1]


def test_rows_produced_are_rows_carried_are_rows_trained(finished):
    produced = column(finished, "rows/produced")
    assert produced == column(finished, "rows/carried") == column(finished, "rows/trained")
    assert produced[0] == 4 * 3 * 2  # one chunk and the answer
    assert produced[1] > 2 * produced[0]
    assert [
        (n + padding) % MINI_BATCHES for n, padding in zip(produced, column(finished, "rows/padding"), strict=True)
    ] == [0, 0, 0]


def test_document_length_does_not_change_the_optimizer_steps(finished):
    assert column(finished, "optimizer/steps") == [MINI_BATCHES] * STEPS


def test_every_rollout_used_the_weights_of_the_update_before_it(finished):
    assert min(column(finished, "rollout/actor_correlation")) > 0.999
    assert max(column(finished, "rollout/actor_difference")) < 1e-3


def test_the_trained_policy_loads_and_has_moved(finished):
    import torch
    from transformers import AutoModelForCausalLM

    home, last = finished.folder.path.parent, finished.folder.latest_checkpoint()
    before, other, after, made = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
        for path in (home / "policy", home / "other", last.huggingface, finished.folder.model)
    )
    for name, weight in made.items():
        torch.testing.assert_close(weight, 0.75 * after[name] + 0.25 * other[name])
    assert before.keys() == after.keys()
    moved = [(before[name] - after[name]).abs().max().item() for name in before]
    assert min(moved) > 1e-3
    assert torch.isfinite(torch.tensor(moved)).all()
    one, other = Tokenizer.load(home / "policy"), Tokenizer.load(finished.folder.model)
    assert one.chat("The code of the otter is 4821.\n") == other.chat("The code of the otter is 4821.\n")


def test_the_credit_of_traced_rollouts_is_that_of_the_rows_trained(finished):
    traced = [result for _, rollouts in finished.folder.rollouts() for result in rollouts]
    assert len(traced) == STEPS * VERL["actor_rollout_ref.rollout.n"]
    for result in traced:
        credit = result.example.metadata["credit"]
        replies = [reply for turn in result.trace.turns for reply in turn.attempts]
        assert credit.tokens == [reply.reply_tokens for reply in replies]
        assert credit.reward in credit.group
        mean = sum(credit.group) / len(credit.group)
        assert credit.advantages == pytest.approx([credit.reward - mean] * len(replies))
