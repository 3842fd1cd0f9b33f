"""verl's agent loop for readers: one loop reads one document, and every reply becomes a training row.

The loop opens the same agent as evaluation, so training and evaluation use the same prompts. It also scores the answer
itself, because verl's reward managers would see it truncated to the length of another turn's reply. verl builds one
loop per rollout, from the recipe in the run's folder, and :class:`RolloutWorker` sends its rows. The loop does not
depend on the trainer.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ
from vllm.sampling_params import RequestOutputKind

from memagent_lib.agent import Agent, open_agent
from memagent_lib.backends import RETRY_TEMPERATURE, end_tokens
from memagent_lib.data import Example
from memagent_lib.driver import drive
from memagent_lib.evaluation import COLUMNS, Result
from memagent_lib.journal import digest
from memagent_lib.paths import write_atomically
from memagent_lib.plugins import plugin_name
from memagent_lib.prompts import Request
from memagent_lib.rl.advantages import Overlong, is_traced, length_penalty, prompt_number
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.rewards import Reward, reward_named, rewards_of, turn_position
from memagent_lib.rl.run_folder import RunFolder, save_rollout
from memagent_lib.scoring import score
from memagent_lib.text import Tokenizer, chunks
from memagent_lib.trace import Reply, Trace

CACHED_DOCUMENTS = 256
TURN_REWARDS = "turn_rewards"
POSITION = "position"
# A turn is used only when it is finished, and its text is decoded here, so vLLM need not output every token.
WHOLE_REPLIES = {"detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
ROW_COLUMNS = ("uid", "session_id", "global_steps", "data_source", "reward_model")  # those that verl reads later
# Columns of an evaluation's rows that are metrics of a rollout too.
COUNTS = ("turns", "cut_memories", "cut_answers", "bad_memories", "prompt_tokens", "reply_tokens", "cached_tokens")


class RolloutError(RuntimeError):
    """A rollout could not be finished. A score of 0 would punish the policy for a fault that is not its own."""


def seed_of(*names: object) -> int:
    """Return a 31-bit seed that depends only on ``names``, so it is the same in every process."""
    return int(digest(json.dumps([str(name) for name in names]))[:8], 16) >> 1


@dataclass
class VerlBackend:
    """Completes the turns of one rollout on verl's rollout servers.

    Every sampled turn has its own seed, derived from ``seeds`` (what identifies the rollout) and the turn's number.
    Rollouts with the same ``session`` go to the same server and share its prefix cache. A reply ends at one of the
    tokens ``ends``.
    """

    server: Any
    tokenizer: Tokenizer
    window: int
    ends: tuple[int, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    seeds: tuple[object, ...] = ()
    turns: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """verl's notes on the rollout, such as the steps whose weights it used. A later turn replaces an earlier one's."""

    async def complete(self, request: Request) -> Reply:
        """Complete one turn. A reply that is truncated at its limit has the finish reason ``length``.

        Raises :class:`RolloutError` if the engine aborts the turn or returns no token.
        """
        sampling = {
            **self.sampling,
            **WHOLE_REPLIES,
            "max_tokens": request.max_tokens,
            "stop_token_ids": list(self.ends),
        }
        # Without a temperature, the second attempt would repeat the first.
        if request.attempt and not sampling.get("temperature"):
            sampling["temperature"] = RETRY_TEMPERATURE
        if sampling.get("temperature"):
            sampling["seed"] = seed_of(*self.seeds, self.turns)
        self.turns += 1
        output = await self.server.generate(
            request_id=self.session, prompt_ids=list(request.ids), sampling_params=sampling
        )
        ids = tuple(output.token_ids)
        if output.stop_reason not in ("completed", None) or not ids:
            raise RolloutError(f"the engine ended a turn with {output.stop_reason!r} after {len(ids)} tokens")
        self.extra_fields |= output.extra_fields
        # verl reports "completed" for truncated replies too: those of full length that do not end in an end token.
        ended = ids[-1] in self.ends
        cut = len(ids) >= request.max_tokens and not ended
        text = self.tokenizer.decode(ids[:-1] if ended else ids)
        if not self.tokenizer.thoughts.split(text).finished:
            # Evaluation raises an error here. In training it is the policy's own empty reply, and is scored as one.
            text = self.tokenizer.thoughts.close(text)
        return Reply(
            text,
            finish_reason="length" if cut else "stop",
            prompt_tokens=len(request.ids),
            reply_tokens=len(ids),
            cached_tokens=output.extra_fields.get("num_cached_tokens") or 0,
            token_ids=ids,
            log_probs=tuple(output.log_probs or ()),
        )

    async def close(self) -> None:
        return None


class MemAgentLoop(AgentLoopBase):
    """Reads one document with one agent. :meth:`run` returns an output per reply; the last one carries the reward."""

    def __init__(self, server_manager: Any, folder: str, **unused_by_readers: Any):
        # Does not call AgentLoopBase, which would build a chat tokenizer for every rollout.
        self.folder = RunFolder(Path(folder))
        self.recipe, self.agent, self.rewards = _opened(server_manager, self.folder.path)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Read, answer and score one row of the data. A row that fails is tried once more, with the same seeds.

        verl passes no failure on, so the second one is written to the run's folder, for the trainer's message.
        """
        try:
            return await self._run(sampling_params, row)
        except Exception:  # of any kind: one that leaves this loop discards the prompt's other rollouts
            print(f"step {row.get('global_steps')}, prompt {row.get('uid')}: a rollout failed", flush=True)
            traceback.print_exc()
        try:
            return await self._run(sampling_params, row)
        except Exception as failure:
            write_atomically(self.folder.error, f"{row['extra_info']['id']!r}: {type(failure).__name__}: {failure}")
            raise

    async def _run(self, sampling: dict[str, Any], row: dict[str, Any]) -> list[AgentLoopOutput]:
        started = time.monotonic()
        # verl renames the column.
        example = Example.from_record({**row, "prompt": row["raw_prompt"]})
        uid = str(row.get("uid", ""))
        step = int(row.get("global_steps", 0))
        rollout = int(row.get("session_id", 0))
        number = prompt_number(uid)
        prompt = "" if number is None else uid  # verl names the prompts of a validation at random
        backend = replace(
            self.agent.backend,
            sampling=sampling,
            session=uid,
            seeds=(self.recipe.train.seed, step, example.id, prompt, rollout),
            extra_fields={},  # a copy would share that of all rollouts
        )
        encoder = self.agent.encoder
        parts = _chunked(example.document, encoder.tokenizer, encoder.budget.chunk_tokens)
        session = self.agent.reader(example.question, parts)
        trace = await drive(session, encoder, backend, on_bad_memory=self.recipe.reading.on_bad_memory)
        verdict = score(example.rule, trace.answer, example.answers)
        result = Result(example, trace.reader, time.monotonic() - started, trace, verdict)
        if is_traced(uid):
            save_rollout(self.folder.traces, result, step, f"{uid}_{rollout}")
        of_turns, of_end = rewards_of(result, self.rewards)
        reward = self._reward(trace, verdict.value)
        reward += sum(self.recipe.reward_weights[name] * value for name, value in of_end.items() if value is not None)
        commands = command_metrics(result, self.agent.reader.commands)
        named = {plugin_name(name): value for name, value in of_end.items()}
        measured = named | rollout_metrics(result) | commands | {"reward": reward}
        return _outputs(result, measured, backend.extra_fields, of_turns, self.recipe.train.overlong is Overlong.MASK)

    def _reward(self, trace: Trace, value: float) -> float:
        """Return the reward: the score, less the penalty for replies near their limits if the recipe has one."""
        train = self.recipe.train
        penalised = train.overlong is Overlong.PENALTY or (train.overlong is Overlong.PENALTY_IF_RIGHT and value > 0)
        if not penalised:
            return float(value)
        limit = self.agent.encoder.reply_limit
        penalties = [
            length_penalty(reply.reply_tokens, limit(turn.prompt.kind), train.overlong_buffer)
            for turn in trace.turns
            for reply in turn.attempts
        ]
        return value + train.overlong_weight * sum(penalties) / len(penalties)


def rollout_metrics(result: Result) -> dict[str, float | None]:
    """Return the metrics of a rollout by name; ``None`` for one that does not apply, which verl's means leave out."""
    trace = result.trace
    memories = sum(turn.prompt.kind.writes_memory for turn in trace.turns)
    memory_tokens = [reply.reply_tokens for turn in trace.reads for reply in turn.attempts]
    metrics = {name: COLUMNS[name].value(result) for name in (*COUNTS, "capture", "retention")} | {
        "acc": result.score.value,
        "memory_tokens": sum(memory_tokens) / max(1, len(memory_tokens)),
        "cut_share": trace.cut_memories / max(1, memories),
    }
    return {name: None if value is None else float(value) for name, value in metrics.items()}


def command_metrics(result: Result, commands: Collection[str]) -> dict[str, float]:
    """Return the share of a rollout's read turns with each of the ``commands``."""
    reads = result.trace.reads
    used = Counter(turn.reply.command for turn in reads)
    return {f"{command}_share": used[command] / max(1, len(reads)) for command in sorted(commands)}


def _outputs(
    result: Result,
    measured: dict[str, float | None],
    extra_fields: dict[str, Any],
    of_turns: dict[str, list[float | None]],
    mask_cut: bool,
) -> list[AgentLoopOutput]:
    """Return one row per reply; the last carries the reward and the rollout's metrics.

    Every row carries its turn's own rewards, by name. With ``mask_cut`` truncated replies are left out of the loss.

    A reply that was turned away as no memory is a row too, with the same credit as any other: the policy wrote it, and
    what became of the rollout is its consequence. With ``keep`` it is the turn's only row, so the policy learns whether
    leaving the memory unchanged in this way pays. With ``retry`` both attempts are rows.
    """
    turns = result.trace.turns
    replies = sum(len(turn.attempts) for turn in turns)
    own = [{name: values[number] for name, values in of_turns.items()} for number in range(len(turns))]
    outputs = [
        AgentLoopOutput(
            prompt_ids=list(reply.prompt_ids),
            response_ids=list(reply.token_ids),
            response_mask=[0 if mask_cut and reply.cut else 1] * len(reply.token_ids),
            response_logprobs=list(reply.log_probs) or None,
            num_turns=replies,  # the trainer compares it with the rows that arrive
            metrics=AgentLoopMetrics(generate_sequences=result.seconds),
            extra_fields=extra_fields | {TURN_REWARDS: rewards, POSITION: turn_position(turn)},
        )
        for turn, rewards in zip(turns, own, strict=True)
        for reply in turn.attempts
    ]
    outputs[-1].reward_score = measured["reward"]
    outputs[-1].extra_fields["reward_extra_info"] = measured
    return outputs


@lru_cache(maxsize=4)
def _opened(server: Any, folder: Path) -> tuple[Recipe, Agent, dict[str, Reward]]:
    """Open one agent for all rollouts of a process; each rollout then puts its own backend in it."""
    recipe, _ = RunFolder(folder).recipe()
    reading = recipe.reading
    encoder = recipe.encoder()
    tokenizer = encoder.tokenizer
    backend = VerlBackend(server, tokenizer, encoder.window, end_tokens(recipe.model.path, tokenizer))
    agent = open_agent(
        backend=backend, reader=reading.reader, template=reading.template, budget=reading.budget, tokenizer=tokenizer
    )
    return recipe, agent, {name: reward_named(name, reading.reader) for name in recipe.reward_weights}


# A document is cut once for all rollouts of a group, which request it at the same time.
_chunked = lru_cache(maxsize=CACHED_DOCUMENTS)(chunks)


class RolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker of agent loops, changed to send rows without the columns that nothing reads, such as the document.

    verl sends every row with all columns of the data.
    """

    async def _agent_loop_postprocess(self, outputs: list[AgentLoopOutput], validate: bool, **row: Any) -> None:
        columns = {name: row[name] for name in ROW_COLUMNS if name in row}
        await super()._agent_loop_postprocess(outputs, validate, **columns)


async def manager_of(config: Any, trainer: Any) -> AgentLoopManagerTQ:
    """Return verl's manager of agent loops, with :class:`RolloutWorker` as its worker."""
    manager = AgentLoopManagerTQ(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )
    manager.agent_loop_workers_class = ray.remote(RolloutWorker)
    await manager._init_agent_loop_workers()
    return manager
