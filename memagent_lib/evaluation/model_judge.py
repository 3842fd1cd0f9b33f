"""A judge that is a model: from a question, the accepted answers and a reply, it decides whether the reply is right.

Its prompt is a file (:mod:`memagent_lib.evaluation.judge_prompts`). Every distinct reply is judged once, and verdicts
are saved beside the readings, so a repeated evaluation does not pay for them again. The examples' own rules still
decide the score; this judge adds a second opinion, and says how often the two agree. It is no rule
(:mod:`memagent_lib.scoring`), so no recipe can train on it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib import paths
from memagent_lib.agent import Agent, Observer, TurnStore, gather, open_agent, run_sync
from memagent_lib.backends import Backend, BackendError
from memagent_lib.evaluation.judge_prompts import PARTS, longmemeval_kind, longmemeval_question, words_of
from memagent_lib.evaluation.results import Result, counted_once
from memagent_lib.journal import Journal, digest
from memagent_lib.prompts import Budget, BudgetError, Encoder, Template
from memagent_lib.readers import blind
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Prompt, Reply

ANSWER_TOKENS = 1024  # a verdict is one word, but a model may think first
SEAM_TOKENS = 16
LONGMEMEVAL_TOKENS = 10
"""How much of a reply LongMemEval reads, because its judge may write no more."""
_ALL_NEEDED = ("items", "match_all")  # rules for questions whose accepted answers are all needed
_NEWER = ("tokenizer", "server")  # the entries of an identity that older versions did not have
_VERDICTS = {"correct": 1.0, "incorrect": 0.0}
_NAMED = re.compile(r"\b(?:not )?(?:in)?correct\b")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on one reply: ``value`` is 1 or 0, or ``None`` if the judge did not decide.

    ``reply`` is the judge's own reply, or the error that it ended in.
    """

    value: float | None
    reply: str
    prompt_tokens: int = 0
    reply_tokens: int = 0


@dataclass(frozen=True)
class Judgement:
    """The verdicts of a model judge on results, in their order; ``None`` for a reading that failed.

    ``judges`` names the judge of each result, and whether its prompt is one of LongMemEval's. ``requested`` counts the
    distinct replies, ``cached`` how many of their verdicts had been saved before.
    """

    judge: str
    prompt_hash: str
    verdicts: tuple[Verdict | None, ...]
    judges: tuple[str, ...]
    requested: int
    cached: int
    prompt_tokens: int
    reply_tokens: int

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that this judgement adds to the rows of the results."""
        return {
            "model_judge": list(self.judges),
            "model_verdict": [verdict and verdict.value for verdict in self.verdicts],
            "model_judge_reply": [verdict and verdict.reply for verdict in self.verdicts],
        }

    def metrics(self, results: Sequence[Result]) -> dict[str, float]:
        """Return the numbers of this judgement, those of its verdicts for each reader (``overwrite/right``).

        ``agreement`` is the share of verdicts that the rule confirms. Over several readers it would say little, because
        both judges find the answers of a reader without the document wrong. A question in several files counts once.
        """
        numbers: dict[str, float] = {}
        for reader, verdicts in self._by_reader(results).items():
            decided = [
                (result.correct, verdict.value >= 1) for result, verdict in verdicts if verdict.value is not None
            ]
            numbers[f"{reader}/decided"] = len(decided)
            numbers[f"{reader}/undecided"] = len(verdicts) - len(decided)
            if decided:
                numbers[f"{reader}/right"] = sum(right for _, right in decided)
                numbers[f"{reader}/agreement"] = sum(by_rule == right for by_rule, right in decided) / len(decided)
        return numbers | {
            "requested": self.requested,
            "cached": self.cached,
            "prompt_tokens": self.prompt_tokens,
            "reply_tokens": self.reply_tokens,
        }

    def _by_reader(self, results: Sequence[Result]) -> dict[str, list[tuple[Result, Verdict]]]:
        by_reader: dict[str, list[tuple[Result, Verdict]]] = {}
        for result, verdict in compress(zip(results, self.verdicts, strict=True), counted_once(results)):
            if verdict:
                by_reader.setdefault(result.reader, []).append((result, verdict))
        return by_reader

    def summary(self, results: Sequence[Result]) -> str:
        """Return one line: what was judged, how often the rule agrees, and what it cost."""
        numbers = self.metrics(results)
        parts = []
        for reader in self._by_reader(results):
            part = f"{reader}: no verdict"
            if decided := numbers[f"{reader}/decided"]:
                right, agreement = numbers[f"{reader}/right"], numbers[f"{reader}/agreement"]
                part = f"{reader}: {right:,} of {decided:,} right, the rule agrees on {100 * agreement:.1f} %"
            if undecided := numbers[f"{reader}/undecided"]:
                part += f", {undecided:,} undecided"
            parts.append(part)
        parts.append(f"{self.requested:,} distinct replies, {self.cached:,} verdicts saved before")
        parts.append(f"{self.prompt_tokens:,} prompt and {self.reply_tokens:,} reply tokens")
        return f"model judge {self.judge}: " + "; ".join(parts)


class ModelJudge:
    """A model that judges replies. ``words`` is the text of its prompt, with ``{question}``, ``{answers}``,
    ``{needed}`` (whether one or all of the answers are needed) and ``{reply}``.

    ``longmemeval`` has the prompts for questions of LongMemEval by kind; without them, ``words`` serves all examples.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        tokenizer: Tokenizer,
        words: str,
        weights: str = "",
        longmemeval: Mapping[str, str] | None = None,
    ):
        unused = [part for part in PARTS if f"{{{part}}}" not in words]
        if unused:
            raise ValueError(f"the judge's prompt does not use {', '.join(f'{{{part}}}' for part in unused)}")
        room = backend.window - tokenizer.chat_tokens - ANSWER_TOKENS - SEAM_TOKENS
        longmemeval = dict(longmemeval or {})
        least = max(tokenizer.count(text) for text in (words, *longmemeval.values()))
        if room < least:
            raise ValueError(
                f"the judge's window is {backend.window:,} tokens; its prompt takes {least:,} without a reply and its "
                f"verdict up to {ANSWER_TOKENS:,}; choose a judge with a larger window"
            )
        self.name = name
        self.prompt_hash = digest("\0".join([words, *longmemeval.values()]))[:16]
        self._words = words
        self._longmemeval = longmemeval
        # Only ``blind`` is used; a template has to word the other kinds too.
        template = Template(
            name="judge",
            empty_memory="none",
            read="{question}{memory}{chunk}",
            answer="{question}{memory}",
            direct="{question}{chunk}",
            blind="{question}",
        )
        budget = Budget(question_tokens=room, answer_tokens=ANSWER_TOKENS)
        encoder = Encoder(tokenizer, template, budget, blind.prompts)
        self._agent = Agent(encoder, backend, blind, weights or name, tokenizer_digest=tokenizer.digest)

    def judge(self, results: Sequence[Result], folder: str | Path | None = None, concurrency: int = 64) -> Judgement:
        """Judge the answers of results. With a ``folder``, verdicts are saved there and found there again."""
        prompts = [result.trace and self._prompt(result) for result in results]
        distinct = [prompt for prompt in dict.fromkeys(prompts) if prompt]
        with self._journal(folder) if folder else nullcontext() as store:
            saved = _Saved(store.reading()) if store else None
            found = dict(zip(distinct, run_sync(self._verdicts(distinct, saved, concurrency)), strict=True))
        return Judgement(
            judge=self.name,
            prompt_hash=self.prompt_hash,
            verdicts=tuple(found.get(prompt) for prompt in prompts),
            judges=tuple(self._judge_of(result) for result in results),
            requested=len(distinct),
            cached=saved.hits if saved else 0,
            prompt_tokens=sum(verdict.prompt_tokens for verdict in found.values()),
            reply_tokens=sum(verdict.reply_tokens for verdict in found.values()),
        )

    def _journal(self, folder: str | Path) -> Journal:
        identity = self._agent.identity | {"prompt": self.prompt_hash}
        # Files of older versions are named without the tokenizer, and without the server's model and API.
        files = [_verdicts_file(folder, identity, without) for without in ((), _NEWER[:1], _NEWER)]
        return Journal(next(filter(Path.exists, files), files[0]), identity)

    def prompt(self, result: Result) -> str:
        """Return the prompt for a result's answer."""
        return self._prompt(result).text

    def _prompt(self, result: Result) -> _Prompt:
        example = result.example
        words = self._longmemeval.get(longmemeval_kind(example))
        all_needed = example.rule.partition(":")[0] in _ALL_NEEDED
        texts = {
            "question": example.question if words is None else longmemeval_question(example),
            "answers": "\n".join(example.answers),
            "needed": "all of them are needed" if all_needed else "any one of them is enough",
            "reply": result.trace.answer,
        }
        # One pass, because a reply may contain a placeholder.
        text = re.sub(r"\{(question|answers|needed|reply)\}", lambda part: texts[part[1]], words or self._words)
        return _Prompt(text.strip("\n") if words else text, yes_or_no=words is not None)

    def _judge_of(self, result: Result) -> str:
        if longmemeval_kind(result.example) in self._longmemeval:
            return f"{self.name} (LongMemEval)"
        return self.name

    def close(self) -> None:
        self._agent.close()

    async def _verdicts(self, prompts: Sequence[_Prompt], saved: _Saved | None, concurrency: int) -> list[Verdict]:
        slots = asyncio.Semaphore(concurrency)

        async def verdict(prompt: _Prompt) -> Verdict:
            async with slots:
                try:
                    trace = await self._agent.aread("", prompt.text, observer=Observer(store=saved))
                except (BackendError, BudgetError) as failure:  # one reply without a verdict stops no other
                    return Verdict(None, f"{type(failure).__name__}: {failure}")
            value = self._yes_in(trace.answer) if prompt.yes_or_no else verdict_in(trace.answer)
            return Verdict(value, trace.answer, trace.prompt_tokens, trace.reply_tokens)

        return await gather(map(verdict, prompts))

    def _yes_in(self, reply: str) -> float:
        """Return LongMemEval's verdict: 1 if the beginning of the reply contains ``yes``, else 0."""
        tokenizer = self._agent.encoder.tokenizer
        # A judge that may write more begins with the same tokens, because it replies greedily.
        return float("yes" in tokenizer.decode(tokenizer.encode(reply)[:LONGMEMEVAL_TOKENS]).lower())


class _Prompt(NamedTuple):
    """A judge's prompt; ``yes_or_no`` is whether its reply is read as LongMemEval reads it."""

    text: str
    yes_or_no: bool


class _Saved:
    """The saved verdicts, and how many of them were found."""

    def __init__(self, store: TurnStore):
        self._store = store
        self.hits = 0

    def find(self, prompt: Prompt) -> Reply | None:
        reply = self._store.find(prompt)
        self.hits += reply is not None
        return reply

    def append(self, prompt: Prompt, reply: Reply) -> None:
        self._store.append(prompt, reply)


def verdict_in(reply: str) -> float | None:
    """Return the verdict in a judge's reply: 1 (correct), 0 (incorrect), or ``None`` if it is unclear.

    A first line that is only a verdict decides, else a last one. Otherwise the whole reply must name exactly one.
    """
    lines = [" ".join(re.findall(r"\w+", line.casefold())) for line in reply.splitlines()]
    lines = [line for line in lines if line]
    for line in (*lines[:1], *lines[-1:]):
        if line in _VERDICTS:
            return _VERDICTS[line]
    named = set(_NAMED.findall(" ".join(lines)))
    return _VERDICTS.get(named.pop()) if len(named) == 1 else None


def open_judge(
    model: str,
    backend: str = "vllm",
    *,
    prompt: str | Path = "",
    **options: Any,
) -> ModelJudge:
    """Open a model as a judge. ``options`` are those of :func:`~memagent_lib.agent.open_agent` for its backend.

    ``prompt`` is a file with the judge's words, or LongMemEval's ``evaluate_qa.py``
    (:func:`~memagent_lib.evaluation.judge_prompts.words_of`).
    """
    words, longmemeval = words_of(prompt)
    smallest = Budget(chunk_tokens=1, memory_tokens=1, answer_tokens=1, question_tokens=1)  # the judge sets its own
    try:
        agent = open_agent(model, backend, reader=blind, template="short", budget=smallest, **options)
    except (OSError, ValueError) as failure:
        why = str(failure).replace("(--tokenizer)", "(--judge-tokenizer)")
        raise ValueError(f"the judge {model!r}: {why}") from failure
    try:
        return ModelJudge(model, agent.backend, agent.encoder.tokenizer, words, agent.weights, longmemeval)
    except ValueError:
        agent.close()
        raise


def _verdicts_file(folder: str | Path, identity: Mapping[str, Any], without: Collection[str]) -> Path:
    # A file for each judge and prompt, so that none finds another's verdicts.
    named = {name: value for name, value in identity.items() if name not in without}
    hashed = digest(json.dumps(named, sort_keys=True, default=str))[:8]
    return paths.absolute(folder) / f"judge-{hashed}.jsonl"
