"""verl's agent loop for readers: the reader that evaluation drives is driven here, and every turn becomes a training row.

The answer is scored inside the loop, because verl's reward managers see replies cut at a mask of another turn's length.
Knows verl's loop and the library's readers; knows no trainer. verl builds one loop object per rollout from the keyword
arguments in the file that ``rollout.agent.agent_loop_config_path`` names (written by :mod:`memagent_lib.rl.config`).
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.workers.rollout.replica import TokenOutput

from memagent_lib.agent import drive
from memagent_lib.data import Example
from memagent_lib.evaluation import Result
from memagent_lib.prompts import Budget, Completion, Encoder, Request, Template
from memagent_lib.readers import reader_named
from memagent_lib.rl.run.folder import keep_rollout
from memagent_lib.scoring import score
from memagent_lib.text import END_OF_THINKING, Chunk, Tokenizer, chunks
from memagent_lib.trace import Turn

FAILURE_FILE = "failure.txt"
CACHED_DOCUMENTS = 256


class RolloutError(RuntimeError):
    """A rollout that could not be finished. It is never scored: training on a made-up zero would punish the policy for our fault."""


class VerlBackend:
    """verl's rollout servers behind the interface that every driver of readers uses, for one rollout."""

    def __init__(self, server: Any, tokenizer: Tokenizer, sampling: dict[str, Any], session: str, window: int):
        self.server, self.tokenizer, self.sampling, self.session, self.window = (
            server,
            tokenizer,
            sampling,
            session,
            window,
        )
        self.special_ids = frozenset(tokenizer.hf.all_special_ids)
        self._outputs: dict[int, TokenOutput] = {}

    async def complete(self, request: Request) -> Completion:
        """One turn. An engine that gives up is a :class:`RolloutError`; a reply cut at its limit says ``length``."""
        sampling = {**self.sampling, "max_tokens": request.max_tokens}
        output = await self.server.generate(
            request_id=self.session, prompt_ids=list(request.ids), sampling_params=sampling
        )
        ids = tuple(output.token_ids)
        if output.stop_reason not in ("completed", None) or not ids:
            raise RolloutError(f"the engine ended a turn with {output.stop_reason!r} after {len(ids)} tokens")
        self._outputs[id(ids)] = output
        # verl says "completed" for both: a full reply that does not end in a special token was cut.
        cut = len(ids) >= request.max_tokens and ids[-1] not in self.special_ids
        cached = output.extra_fields.get("num_cached_tokens") or 0
        text = self.tokenizer.decode(ids)
        if self.tokenizer.still_thinking(text):
            text += END_OF_THINKING  # an error in evaluation; here the empty reply is the policy's, and its score tells
        return Completion(text, "length" if cut else "stop", len(request.ids), len(ids), cached, ids)

    def output(self, turn: Turn) -> TokenOutput:
        """What the server said in this turn; the turn holds the very tuple of ids that came from it."""
        return self._outputs[id(turn.reply.token_ids)]

    async def close(self) -> None:
        return None


class Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker, which stores every column of the data with every row that it sends to training, without the document:
    nothing reads it there, and a rollout of a long one has many rows."""

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **row: Any) -> None:
        await super()._agent_loop_postprocess(output, validate, **{**row, "document": ""})


class Manager(AgentLoopManagerTQ):
    """verl's manager with workers of ours."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.agent_loop_workers_class = ray.remote(Worker)


class MemAgentLoop(AgentLoopBase):
    """Reads one document with one reader; :meth:`run` returns one output per turn, the score on the last."""

    def __init__(  # not calling AgentLoopBase: it would build a chat tokenizer per rollout, and no reader has a chat
        self,
        server_manager: Any,
        tokenizer: Any,
        reader: str,
        template: str,
        budget: dict[str, int],
        trace_folder: str | None = None,
        traces_per_step: int = 0,
        **unused_by_readers: Any,
    ):
        self.server = server_manager
        self.encoder = _encoder(tokenizer, template, Budget(**budget))
        self.reader = reader_named(reader)
        self.traces = Path(trace_folder) if trace_folder else None
        self.traces_per_step = traces_per_step

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Read, answer and score one row of the data. Any failure is written to ``failure.txt`` and raised."""
        try:
            return await self._run(sampling_params, row)
        except Exception:
            if self.traces:
                (self.traces / FAILURE_FILE).write_text(traceback.format_exc(), encoding="utf-8")
            raise

    async def _run(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> list[AgentLoopOutput]:
        started, example = time.monotonic(), Example.from_record({**row, "prompt": row["raw_prompt"]})
        tokenizer, budget = self.encoder.tokenizer, self.encoder.budget
        pieces = await asyncio.to_thread(_chunks, example.document, tokenizer, budget.chunk_tokens)
        session = str(row.get("uid") or uuid4().hex)  # the rollouts of a group meet in one server's prefix cache
        backend = VerlBackend(self.server, tokenizer, sampling_params, session, self.encoder.window)
        trace = await drive(self.reader(example.question, pieces), self.encoder, backend)
        verdict = score(example.rule, trace.answer, example.answers)
        result = Result(example, trace.reader, time.monotonic() - started, trace, verdict)
        self._keep(result, sampling_params, row)
        rows = [(turn, backend.output(turn)) for turn in trace.turns]
        return _outputs(rows, rollout_facts(result), result.seconds)

    def _keep(self, result: Result, sampling: dict[str, Any], row: dict[str, Any]) -> None:
        """Keep the first few rollouts of each step."""
        step, greedy = int(row["global_steps"]), not sampling.get("temperature")
        if not self.traces or row.get("session_id") or _written[step, greedy] >= self.traces_per_step:
            return
        _written[step, greedy] += 1
        keep_rollout(self.traces, result, step, greedy)


_written: Counter[tuple[int, bool]] = Counter()


def rollout_facts(result: Result) -> dict[str, float]:
    """What is worth a curve, numbers only. -1 stands for what does not apply."""
    trace, told = result.trace, result.diagnosis
    memory_tokens = [turn.reply.reply_tokens for turn in trace.reads]
    return {
        "acc": float(result.score.value),
        "turns": float(len(trace.turns)),
        "memory_tokens": sum(memory_tokens) / max(1, len(memory_tokens)),
        "cut_memories": float(trace.cut_memories),
        "cut_answers": float(trace.turns[-1].reply.cut),
        "prompt_tokens": float(trace.prompt_tokens),
        "reply_tokens": float(trace.reply_tokens),
        "cached_tokens": float(sum(turn.reply.cached_tokens for turn in trace.turns)),
        "capture": _known(told.capture),
        "retention": _known(told.retention),
    }


def _known(share: float | None) -> float:
    return -1.0 if share is None else share


def _outputs(rows: list[tuple[Turn, TokenOutput]], facts: dict[str, float], seconds: float) -> list[AgentLoopOutput]:
    outputs = [
        AgentLoopOutput(
            prompt_ids=list(turn.reply.prompt_ids),
            response_ids=list(turn.reply.token_ids),
            response_mask=[1] * len(turn.reply.token_ids),
            response_logprobs=said.log_probs,
            num_turns=len(rows),
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            extra_fields=dict(said.extra_fields),
        )
        for turn, said in rows
    ]
    outputs[-1].reward_score = facts["acc"]
    outputs[-1].extra_fields["reward_extra_info"] = facts
    return outputs


@lru_cache(maxsize=4)
def _encoder(tokenizer: Any, template: str, budget: Budget) -> Encoder:
    return Encoder(Tokenizer(tokenizer), Template.load(template), budget)


@lru_cache(maxsize=CACHED_DOCUMENTS)
def _chunks(document: str, tokenizer: Tokenizer, chunk_tokens: int) -> list[Chunk]:
    """Chunked once for all rollouts of a group."""
    return chunks(document, tokenizer, chunk_tokens)
