"""The engine in the event loop: a reply does not depend on what is batched with it, and a request ends alone."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

pytestmark = pytest.mark.slow
SETTINGS = {"max_model_len": 128, "max_num_seqs": 16, "block_size": 32, "dtype": "float32", "enforce_eager": True}


@pytest.fixture(scope="module")
def policy(tmp_path_factory, tokenizer):
    from experiments.studies.speed.material import random_policy

    words, folder = (tmp_path_factory.mktemp(name) for name in ("words", "policy"))
    tokenizer.hf.save_pretrained(words)
    random_policy(words, folder, width=64, layers=1, window=128)
    return folder


@pytest.fixture(scope="module")
def engine(policy):
    import torch
    from vllm import AsyncEngineArgs

    from memagent_lib.backends import LoopEngine

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setattr(torch, "set_num_threads", torch.set_num_threads)  # vLLM's worker puts its own there
        made = LoopEngine(AsyncEngineArgs(model=str(policy), **SETTINGS).create_engine_config())
        yield made
        made.shutdown()


def asked(number: int) -> tuple[dict, object]:
    from vllm import SamplingParams

    from memagent_lib.rl.agent_loop import WHOLE_REPLIES

    ids = [5 + (number * 7 + at) % 40 for at in range(10 + number)]
    params = SamplingParams(max_tokens=4 + number, seed=number, logprobs=0, ignore_eos=True, **WHOLE_REPLIES)
    return {"prompt_token_ids": ids}, params


async def reply(engine, number: int, name: str = "") -> tuple[list[int], list[float]]:
    prompt, params = asked(number)
    async for final in engine.generate(prompt=prompt, sampling_params=params, request_id=f"{name}{number}"):
        said = final.outputs[0]
        return list(said.token_ids), [p[t].logprob for p, t in zip(said.logprobs, said.token_ids, strict=True)]
    raise AssertionError("no output")


async def test_parallel_replies_equal_those_one_after_the_other(engine):
    together = await asyncio.gather(*(reply(engine, number) for number in range(12)))
    assert [len(ids) for ids, _ in together] == [4 + number for number in range(12)]
    for number, (ids, logs) in enumerate(together):
        alone = await reply(engine, number, "alone")
        assert alone[0] == ids
        assert alone[1] == pytest.approx(logs, abs=1e-5)


async def test_cancelled_and_refused_requests_disturb_no_other(engine):
    from vllm.exceptions import VLLMValidationError

    other = asyncio.create_task(reply(engine, 11, "other"))
    withdrawn = asyncio.create_task(reply(engine, 10, "withdrawn"))
    await asyncio.sleep(0)
    withdrawn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await withdrawn
    with pytest.raises(VLLMValidationError, match="context length is 128"):
        await anext(engine.generate({"prompt_token_ids": [5] * 500}, asked(1)[1], "too-long"))
    assert len((await other)[0]) == 15
    await engine.wait_for_requests_to_drain()
    assert not engine.engine.has_unfinished_requests(), "nothing goes on that nobody waits for"


async def test_a_failing_step_fails_its_requests_and_removes_them(engine, monkeypatch):
    before, core = await reply(engine, 9, "before"), engine.engine.engine_core.engine_core

    def fails(*unused, **unused_too):
        raise RuntimeError("broken once")

    with monkeypatch.context() as patch:
        patch.setattr(core.model_executor, "execute_model", fails)
        ended = await asyncio.gather(*(reply(engine, n, "failing") for n in range(6)), return_exceptions=True)
    assert [str(end) for end in ended] == ["broken once"] * 6
    assert not engine.engine.has_unfinished_requests()
    await engine.reset_prefix_cache()  # it is refused while anything holds a part of the cache
    assert await reply(engine, 9, "after") == before
