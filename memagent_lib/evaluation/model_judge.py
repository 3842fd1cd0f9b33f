"""A judge that is a model: from a question, the accepted answers and a reply, it decides whether the reply is right.

Every distinct reply is judged once, and verdicts are saved beside the readings, so a repeated evaluation does not pay
for them again. The examples' own rules still decide the score; this judge adds a second opinion, and says how often the
two agree. It is not a rule (:mod:`memagent_lib.scoring`), so no recipe can train on it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent_lib.agent import Agent, open_agent, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data import Example
from memagent_lib.driver import Observer, gather
from memagent_lib.errors import one_line
from memagent_lib.evaluation.results import Result
from memagent_lib.journal import Journal, ReadingTurns, digest
from memagent_lib.paths import absolute
from memagent_lib.plugins import is_plugin, load_plugin, plugin_hash
from memagent_lib.prompts import Budget, BudgetError, Encoder, Template
from memagent_lib.readers import blind
from memagent_lib.scoring import judge_name

PROMPT_FILE = Path(__file__).parent / "judge_prompt.txt"
ANSWER_TOKENS = 1024  # a verdict is one word, but a model may think first
SEAM_TOKENS = 16
_ALL_NEEDED = ("items", "match_all")  # rules for questions whose accepted answers are all needed
_VERDICTS = {"correct": 1.0, "incorrect": 0.0, "yes": 1.0, "no": 0.0}
_LAST_LINE = re.compile(
    r"[\s*_#>-]*(?:(?:final )?verdict[\s*_]*:[\s*_]*)?[\"'`(\[]*(correct|incorrect|yes|no)[\s*_.。!\"'`)\]]*"
)


def verdict_in(reply: str) -> float | None:
    """Return the verdict in a judge's reply: 1 for CORRECT or YES, 0 for INCORRECT or NO, or ``None`` if it is unclear.

    The last line has to be the verdict alone, or the reply JSON with one key, ``correct`` or ``verdict``.
    """
    lines = reply.strip().splitlines()
    try:
        ((key, value),) = json.loads(reply, object_pairs_hook=tuple)
    except (ValueError, TypeError, RecursionError):
        found = _LAST_LINE.fullmatch(lines[-1].casefold()) if lines else None
        return _VERDICTS[found[1]] if found else None
    if key == "correct" and isinstance(value, bool):
        return float(value)
    return _VERDICTS.get(str(value).casefold()) if key == "verdict" else None


class ModelJudge:
    """A model that judges replies. ``prompt`` returns its prompt for an example and the reply to judge.

    ``prompt_hash`` names the prompt in the file of saved verdicts. Of the ``agent``, the judge takes the model.
    """

    def __init__(self, name: str, agent: Agent, prompt: Callable[[Example, str], str], prompt_hash: str):
        self.name = name
        self.prompt = prompt
        self.prompt_hash = prompt_hash
        # Only ``blind`` is used; a template has to word the other kinds too.
        words = dict(read="{question}{memory}{chunk}", answer="{question}{memory}", direct="{question}{chunk}")
        template = Template(name="judge", empty_memory="none", blind="{question}", **words)
        tokenizer = agent.encoder.tokenizer
        room = agent.backend.window - tokenizer.chat_tokens - ANSWER_TOKENS - SEAM_TOKENS
        encoder = Encoder(tokenizer, template, Budget(question_tokens=room, answer_tokens=ANSWER_TOKENS), blind.prompts)
        self._agent = replace(agent, encoder=encoder, reader=blind)

    def judge(
        self, results: Sequence[Result], folder: str | Path | None = None, concurrency: int = 64
    ) -> dict[str, Any]:
        """Judge the answers of results; return the columns that this adds to their rows.

        A failed reading has no verdict, and neither has an answer on which the judge's reply is unclear. With a
        ``folder``, verdicts are saved there and found there again.
        """
        prompts = [self.prompt(result.example, result.trace.answer) if result.trace else None for result in results]
        distinct = [prompt for prompt in dict.fromkeys(prompts) if prompt]
        identity = self._agent.identity | {"prompt": self.prompt_hash}
        # A file for each judge and prompt, so that none finds another's verdicts.
        hashed = digest(json.dumps(identity, sort_keys=True, default=str))[:8]
        with Journal(absolute(folder) / f"judge-{hashed}.jsonl", identity) if folder else nullcontext() as journal:
            store = journal.reading() if journal else None
            replies = dict(zip(distinct, run_sync(self._replies(distinct, store, concurrency)), strict=True))
        found = [replies.get(prompt) for prompt in prompts]
        verdicts = [None if reply is None else verdict_in(reply) for reply in found]
        return {"model_judge": self.name, "model_verdict": verdicts, "model_judge_reply": found}

    def close(self) -> None:
        self._agent.close()

    async def _replies(self, prompts: Sequence[str], store: ReadingTurns | None, concurrency: int) -> list[str]:
        slots = asyncio.Semaphore(concurrency)

        async def reply(prompt: str) -> str:
            async with slots:
                try:
                    trace = await self._agent.aread("", prompt, observer=Observer(store=store))
                except (BackendError, BudgetError) as failure:  # one reply without a verdict stops no other
                    return f"{type(failure).__name__}: {one_line(failure)}"
            return f"{trace.answer}\n(cut at its limit)" if trace.turns[-1].reply.cut else trace.answer

        return await gather(map(reply, prompts))


def worded(words: str) -> Callable[[Example, str], str]:
    """Return the prompts of a text with ``{question}``, ``{answers}``, ``{needed}`` and ``{reply}``.

    ``needed`` is whether one or all of the answers are needed.
    """
    missing = [part for part in ("{question}", "{answers}", "{reply}") if part not in words]
    if missing:
        raise ValueError(f"the judge's prompt does not use {', '.join(missing)}")

    def prompt(example: Example, reply: str) -> str:
        all_needed = judge_name(example.rule) in _ALL_NEEDED
        texts = {
            "question": example.question,
            "answers": "\n".join(example.answers),
            "needed": "all of them are needed" if all_needed else "any one of them is enough",
            "reply": reply,
        }
        # One pass, because a reply may contain a placeholder.
        return re.sub(r"\{(question|answers|needed|reply)\}", lambda part: texts[part[1]], words)

    return prompt


def open_judge(model: str, backend: str = "vllm", *, prompt: str | Path = "", **options: Any) -> ModelJudge:
    """Open a model as a judge. ``options`` are those of :func:`~memagent_lib.agent.open_agent` for its backend.

    ``prompt`` is a text file (:func:`worded`), or ``FILE.py:NAME``: a function that takes an example and a reply and
    returns the prompt. The judge of a prompt of its own is named after it, ``wise (longmemeval)``.
    """
    name = f"{model} ({Path(str(prompt).partition(':')[0]).stem})" if prompt else model
    if is_plugin(str(prompt)):
        worded_by, prompt_hash = load_plugin(str(prompt)), plugin_hash(str(prompt))
    else:
        words = Path(prompt or PROMPT_FILE).read_text(encoding="utf-8-sig")
        worded_by, prompt_hash = worded(words), digest(words)[:16]
    smallest = Budget(chunk_tokens=1, memory_tokens=1, answer_tokens=1, question_tokens=1)  # the judge sets its own
    agent = open_agent(model, backend, reader=blind, template="short", budget=smallest, **options)
    return ModelJudge(name, agent, worded_by, prompt_hash)
