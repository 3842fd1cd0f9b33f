"""verl's agent loop for readers: the agent that evaluation opens is opened here, and every turn becomes a training row.

The answer is scored inside the loop, because verl's reward managers see replies cut at a mask of another turn's length.
Knows verl's loop; knows no trainer. verl builds one loop per rollout from the keyword arguments in the file that
``rollout.agent.agent_loop_config_path`` names (:func:`memagent_lib.rl.verl.verl_settings.write_agent_file`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput
from vllm.sampling_params import RequestOutputKind

from memagent_lib.agent import Agent, drive, open_agent
from memagent_lib.data import Example
from memagent_lib.evaluation import Result
from memagent_lib.paths import read_lines
from memagent_lib.prompts import Budget, Request
from memagent_lib.rl.advantages import Overlong, length_penalty
from memagent_lib.rl.run_folder import RunFolder, save_rollout
from memagent_lib.scoring import score
from memagent_lib.text import Chunk, Tokenizer, chunks
from memagent_lib.tokenizer import END_OF_THINKING
from memagent_lib.trace import Reply, Trace, Turn

FAILURES = "failures.jsonl"
TRIES = 2
CACHED_DOCUMENTS = 256
STEP = "step_reward"
UNKNOWN, MAY_BE_UNKNOWN = -1.0, ("capture", "retention")
# A turn is used when it is finished, and its text is decoded here: vLLM need not make an output of every token.
WHOLE_REPLIES = {"detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}


class RolloutError(RuntimeError):
    """A rollout that could not be finished. A made-up score of zero would punish the policy for our fault."""


def seed_of(*names: object) -> int:
    """31 bits that follow from ``names`` alone, in every process."""
    digest = hashlib.sha256(json.dumps([str(name) for name in names]).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass
class VerlBackend:
    """verl's rollout servers behind the interface of every other engine, for one rollout.

    Every sampled turn has a seed of its own, from ``seeds`` (what names the rollout) and the turn's number. Rollouts
    of one ``session`` meet in one server's prefix cache.
    """

    server: Any
    tokenizer: Tokenizer
    window: int
    sampling: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    seeds: tuple[object, ...] = ()
    turns: int = 0
    finished: Callable[[], None] = lambda: None
    outputs: dict[int, TokenOutput] = field(default_factory=dict)

    async def complete(self, request: Request) -> Reply:
        """One turn. An engine that gives up is a :class:`RolloutError`; a reply cut at its limit says ``length``."""
        sampling = {**self.sampling, **WHOLE_REPLIES, "max_tokens": request.max_tokens}
        if sampling.get("temperature"):
            sampling["seed"] = seed_of(*self.seeds, self.turns)
        self.turns += 1
        output = await self.server.generate(
            request_id=self.session, prompt_ids=list(request.ids), sampling_params=sampling
        )
        ids = tuple(output.token_ids)
        if output.stop_reason not in ("completed", None) or not ids:
            raise RolloutError(f"the engine ended a turn with {output.stop_reason!r} after {len(ids)} tokens")
        self.outputs[id(ids)] = output
        self.finished()
        # verl says "completed" for both: a full reply that does not end in a special token was cut.
        cut = len(ids) >= request.max_tokens and ids[-1] not in self.tokenizer.hf.all_special_ids
        cached = output.extra_fields.get("num_cached_tokens") or 0
        text = self.tokenizer.decode(ids)
        if self.tokenizer.still_thinking(text):
            text += END_OF_THINKING  # an error in evaluation; here the empty reply is the policy's, and its score tells
        log_probs = tuple(output.log_probs or ())
        finish_reason = "length" if cut else "stop"
        return Reply(text, finish_reason, len(request.ids), len(ids), cached, token_ids=ids, log_probs=log_probs)

    def output(self, turn: Turn) -> TokenOutput:
        """What the server said in this turn; the turn holds the very tuple of ids that came from it."""
        return self.outputs[id(turn.reply.token_ids)]

    async def close(self) -> None:
        return None


class MemAgentLoop(AgentLoopBase):
    """Reads one document with one agent; :meth:`run` returns one output per turn, the score on the last."""

    def __init__(  # not calling AgentLoopBase: it would build a chat tokenizer per rollout, and no reader has a chat
        self,
        server_manager: Any,
        tokenizer: Any,
        reader: str,
        template: str,
        budget: dict[str, int],
        window: int,
        seed: int = 0,
        overlong: str = "keep",
        overlong_buffer: float = 0.25,
        overlong_weight: float = 0.5,
        trace_folder: str | None = None,
        traces_per_step: int = 0,
        **unused_by_readers: Any,
    ):
        self.agent = _agent(server_manager, tokenizer, reader, template, Budget(**budget), window)
        self.seed, self.overlong = seed, Overlong(overlong)
        self.overlong_buffer, self.overlong_weight = overlong_buffer, overlong_weight
        self.traces = Path(trace_folder) if trace_folder else None
        self.traces_per_step = traces_per_step

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Read, answer and score one row of the data. A failure is noted and tried once more, with the same seeds."""
        for attempt in range(1, TRIES + 1):
            try:
                outputs = await self._run(sampling_params, row)
            except Exception:
                self._note_failure(row, attempt)
                if attempt == TRIES:
                    raise
            else:
                outputs[-1].extra_fields["reward_extra_info"]["retried"] = float(attempt - 1)
                return outputs
        raise AssertionError("the last attempt returns or raises")

    def _note_failure(self, row: dict[str, Any], attempt: int) -> None:
        if not self.traces:
            return
        example = (row.get("extra_info") or {}).get("id", row.get("index"))
        facts = {"step": int(row.get("global_steps", 0)), "example": str(example), "attempt": attempt}
        line = json.dumps(facts | {"rollout": int(row.get("session_id", 0)), "error": traceback.format_exc()})
        with (self.traces / FAILURES).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    async def _run(self, sampling: dict[str, Any], row: dict[str, Any]) -> list[AgentLoopOutput]:
        started, example = time.monotonic(), Example.from_record({**row, "prompt": row["raw_prompt"]})
        uid, step, rollout = str(row.get("uid", "")), int(row.get("global_steps", 0)), int(row.get("session_id", 0))
        seeds = (self.seed, step, example.id, uid, rollout)
        own = {"sampling": sampling, "session": uid, "seeds": seeds, "outputs": {}, "finished": self._beat}
        agent = replace(self.agent, backend=replace(self.agent.backend, **own))
        encoder = agent.encoder
        pieces = await asyncio.to_thread(_chunks, example.document, encoder.tokenizer, encoder.budget.chunk_tokens)
        trace = await drive(agent.reader(example.question, pieces), encoder, agent.backend)
        verdict = score(example.rule, trace.answer, example.answers)
        result = Result(example, trace.reader, time.monotonic() - started, trace, verdict)
        if not rollout:
            self._keep(result, step, greedy=not sampling.get("temperature"))
        said = [agent.backend.output(turn) for turn in trace.turns]
        facts = rollout_facts(result) | {"reward": self._reward(trace, verdict.value)}
        outputs = _outputs(trace.turns, said, facts, result)
        return _without_cut_replies(outputs, trace) if self.overlong is Overlong.MASK else outputs

    def _beat(self) -> None:
        if self.traces:
            RunFolder(self.traces.parent).beat()

    def _reward(self, trace: Trace, value: float) -> float:
        """What is trained on: the score, less the penalty for replies near their limits where that is wanted."""
        if self.overlong is not Overlong.PENALTY:
            return float(value)
        limit = self.agent.encoder.reply_limit
        replies = [(turn.reply.reply_tokens, limit(turn.prompt.kind)) for turn in trace.turns]
        penalties = [length_penalty(tokens, most, self.overlong_buffer) for tokens, most in replies]
        return value + self.overlong_weight * sum(penalties) / len(penalties)

    def _keep(self, result: Result, step: int, greedy: bool) -> None:
        """Keep the first few rollouts of each step."""
        if not self.traces or not _keeps_traces or _written[step, greedy] >= self.traces_per_step:
            return
        _written[step, greedy] += 1
        save_rollout(self.traces, result, step, greedy)


_written: Counter[tuple[int, bool]] = Counter()
_keeps_traces = True


def leave_traces_to_others() -> None:
    """Of several processes that make a run's rollouts, one keeps the first of each step."""
    global _keeps_traces
    _keeps_traces = False


def last_failure(traces: Path) -> str:
    """The last failure that rollouts noted, with its example's id and traceback."""
    if not (noted := read_lines(traces / FAILURES)):
        return "see the log above"
    last = noted[-1]
    return f"example {last['example']}, rollout {last['rollout']}, attempt {last['attempt']}:\n{last['error']}"


def rollout_facts(result: Result) -> dict[str, float]:
    """What is worth a curve, numbers only; :data:`UNKNOWN` for what does not apply."""
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
        "capture": UNKNOWN if told.capture is None else told.capture,
        "retention": UNKNOWN if told.retention is None else told.retention,
    }


def _outputs(
    turns: tuple[Turn, ...], said: list[TokenOutput], facts: dict[str, float], result: Result
) -> list[AgentLoopOutput]:
    outputs = [
        AgentLoopOutput(
            prompt_ids=list(turn.reply.prompt_ids),
            response_ids=list(turn.reply.token_ids),
            response_mask=[1] * len(turn.reply.token_ids),
            response_logprobs=list(turn.reply.log_probs) or None,
            num_turns=len(turns),
            metrics=AgentLoopMetrics(generate_sequences=result.seconds),
            extra_fields=output.extra_fields | {STEP: step},
        )
        for turn, output, step in zip(turns, said, result.diagnosis.steps, strict=True)
    ]
    outputs[-1].reward_score = facts["reward"]
    outputs[-1].extra_fields["reward_extra_info"] = facts
    return outputs


def _without_cut_replies(outputs: list[AgentLoopOutput], trace: Trace) -> list[AgentLoopOutput]:
    """The rows of replies that were cut carry no loss."""
    for output, turn in zip(outputs, trace.turns, strict=True):
        if turn.reply.cut:
            output.response_mask = [0] * len(output.response_mask)
    return outputs


@lru_cache(maxsize=4)
def _agent(server: Any, tokenizer: Any, reader: str, template: str, budget: Budget, window: int) -> Agent:
    """One for all rollouts of a process; each then puts a backend of its own in it."""
    own = Tokenizer(tokenizer)
    backend = VerlBackend(server, own, window)
    return open_agent(backend=backend, reader=reader, template=template, budget=budget, tokenizer=own)


def _chunks(document: str, tokenizer: Tokenizer, chunk_tokens: int) -> list[Chunk]:
    """Chunked once for all rollouts of a group, which ask at once."""
    with _chunking:
        return _chunked(document, tokenizer, chunk_tokens)


_chunking = threading.Lock()


@lru_cache(maxsize=CACHED_DOCUMENTS)
def _chunked(document: str, tokenizer: Tokenizer, chunk_tokens: int) -> list[Chunk]:
    return chunks(document, tokenizer, chunk_tokens)
