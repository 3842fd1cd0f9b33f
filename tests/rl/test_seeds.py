"""Every sampled turn has a seed from run seed, step, example, rollout and turn: invariant 10 of the design."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl")
pytest.importorskip("vllm")

from training_loop import loop_of, recipe_of

from memagent_lib.data import Example
from memagent_lib.prompts import Request
from memagent_lib.rl.verl.cpu_platform import answer_for_vllm

BUDGET = {"chunk_tokens": 24, "memory_tokens": 8, "answer_tokens": 6, "question_tokens": 8}


class Server:
    """A rollout server that records its requests, and gives all of them the same reply."""

    def __init__(self, reply: list[int]):
        self.reply = reply
        self.requests = []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.requests.append(sampling_params)
        return SimpleNamespace(
            token_ids=self.reply, log_probs=[0.0] * len(self.reply), stop_reason="completed", extra_fields={}
        )


@pytest.fixture
def read(tmp_path, model_folder):
    """A function that returns the rows of one rollout, by a loop whose recipe has ``train``."""
    runs = itertools.count()

    async def rollout(server: Server, name="a", number=2, step=7, temperature=1.0, uid="", answer="x", **train):
        recipe = recipe_of(model_folder, BUDGET, train=train)
        loop = loop_of(tmp_path / f"run {next(runs)}", server, recipe)
        fields = {"question": "code?", "document": "the mill drifts " * 20, "answers": (answer,), "rule": "match_part"}
        record = Example(id=name, task="toy", **fields).to_record()
        row = record | {"raw_prompt": record["prompt"], "uid": uid or f"s{step}p0"}
        return await loop.run({"temperature": temperature}, **row, global_steps=step, session_id=number)

    return rollout


@pytest.fixture
def seeds(read, tokenizer):
    """A function that returns the seeds of one rollout's turns."""

    async def of(**rollout):
        server = Server(list(tokenizer.encode("code")))
        await read(server, **rollout)
        return [request.get("seed") for request in server.requests]

    return of


async def test_every_turn_has_its_own_seed_and_the_same_again(seeds):
    first = await seeds()
    assert len(first) > 2
    assert len(set(first)) == len(first)
    assert await seeds() == first
    others = [{"seed": 1}, {"step": 2}, {"name": "b"}, {"number": 1}]
    drawn = [seed for other in others for seed in await seeds(**other)]
    assert not set(first) & set(drawn)
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= seed < 1 << 31 for seed in first + drawn)


async def test_a_validation_draws_the_same_replies_again(seeds):
    """verl gives its prompts a random name each time."""
    again = [await seeds(uid=str(uuid.uuid4())) for _ in range(2)]
    assert again[0] == again[1]
    assert set(again[0]).isdisjoint(await seeds(uid=str(uuid.uuid4()), step=2))


async def test_greedy_reading_needs_no_seed(seeds):
    assert set(await seeds(temperature=0.0)) == {None}


async def test_rollouts_end_where_replies_of_evaluation_end(tokenizer):
    from memagent_lib.rl.agent_loop import VerlBackend

    reply = tokenizer.encode("code")
    end = tokenizer.encode("!")[0]
    backend = VerlBackend(Server([*reply, end]), tokenizer, window=64, ends=(end, 2))
    request = Request((5, 6), "", max_tokens=len(reply) + 1)
    ended = await backend.complete(request)
    assert (ended.text, ended.finish_reason) == (tokenizer.decode(reply), "stop")
    assert ended.token_ids == (*reply, end)
    assert backend.server.requests[0]["stop_token_ids"] == [end, 2]
    cut = await replace(backend, ends=(2,)).complete(request)
    assert (cut.text, cut.finish_reason) == (tokenizer.decode([*reply, end]), "length")


class Failing(Server):
    """A server that fails for its first ``failures`` requests."""

    def __init__(self, reply: list[int], failures: int):
        super().__init__(reply)
        self.failures = failures

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the engine is away")
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)


async def test_a_failed_rollout_is_tried_again_with_the_same_seeds(read, tokenizer):
    reply = list(tokenizer.encode("code"))
    whole = Server(reply)
    again = Failing(reply, 1)
    once, twice = [await read(each) for each in (whole, again)]
    assert len(once) == len(twice) > 2
    assert [request["seed"] for request in again.requests] == [request["seed"] for request in whole.requests]


async def test_a_rollout_that_fails_twice_is_an_error_and_names_its_example(read, tokenizer, capsys, tmp_path):
    with pytest.raises(ConnectionError, match="the engine is away"):
        await read(Failing(list(tokenizer.encode("code")), 2), name="a17")
    assert "step 7" in capsys.readouterr().out
    assert (tmp_path / "run 0" / "error.txt").read_text() == "'a17': ConnectionError: the engine is away"


@pytest.fixture
def rows_of_cut_replies(read, tokenizer):
    """A rollout whose every reply has 6 tokens: answers are cut at their limit of 6, memories of at most 8 are not."""
    reply = [tokenizer.encode("code")[0]] * BUDGET["answer_tokens"]
    return partial(read, Server(reply))


async def test_a_cut_reply_is_trained_on_or_leaves_the_loss(rows_of_cut_replies):
    trained = await rows_of_cut_replies()
    assert [sum(row.response_mask) for row in trained] == [6] * len(trained)
    assert trained[-1].reward_score == 0.0
    masked = await rows_of_cut_replies(overlong="mask")
    assert [sum(row.response_mask) for row in masked] == [6] * (len(trained) - 1) + [0]


async def test_the_penalty_is_the_mean_over_turns_by_its_weight(rows_of_cut_replies):
    rows = await rows_of_cut_replies(overlong="penalty", overlong_buffer=0.5, overlong_weight=0.4)
    # Of a limit of 8 the buffer begins at 4, and 6 tokens are half through it; the answer is at its limit.
    memories = len(rows) - 1
    penalty = 0.4 * (-0.5 * memories - 1) / (memories + 1)
    assert rows[-1].reward_score == pytest.approx(penalty)


async def test_wrong_rollouts_may_go_without_the_penalty(rows_of_cut_replies, tokenizer):
    overlong = {"overlong": "penalty_if_right", "overlong_buffer": 0.5, "overlong_weight": 0.4}
    wrong = await rows_of_cut_replies(**overlong)
    assert wrong[-1].reward_score == 0.0
    word = tokenizer.decode([tokenizer.encode("code")[0]] * 6)
    right = await rows_of_cut_replies(answer=word, **overlong)
    memories = len(right) - 1
    assert right[-1].reward_score == pytest.approx(1 + 0.4 * (-0.5 * memories - 1) / (memories + 1))


def test_on_a_cpu_seeded_requests_draw_what_vllms_own_sampler_draws():
    answer_for_vllm()
    from memagent_lib.rl.verl.cpu_rollouts import SeededSampler

    def draw(sampler):
        seeded = {row: torch.Generator().manual_seed(row) for row in range(40)}
        return sampler("processed_logprobs")(torch.arange(20_000.0).sin().view(40, 500), seeded, None, None)

    assert all(map(torch.equal, draw(SeededSampler), draw(SeededSampler.__base__)))
