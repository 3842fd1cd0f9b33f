"""The no-context filter: find the questions that a model answers without the document.

Such questions measure knowledge, not memory. As in MemAgent (paper, section 4.1; ``filter.py``), every model answers
every question several times without a document. A question is known if any reply has an accepted answer, in a box or
anywhere in its text. Unlike in MemAgent, it must be there as whole words, because ``no`` is in every "I do not know".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from memagent_lib.agent import Agent, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data.pools import Question
from memagent_lib.driver import UnfinishedThought, gather
from memagent_lib.prompts import BudgetError
from memagent_lib.scoring import score

SIDE_BY_SIDE = 64  # requests at the same time, as in `memagent evaluate`


def known_without_document(
    questions: Sequence[Question], agents: Sequence[Agent], samples: int = 2
) -> list[bool | None]:
    """For each question, return whether any agent answers it without the document in any of ``samples`` tries.

    The result is ``None`` if no reply answers the question and at least one request failed, was over its budget, or
    ended in an unfinished thought. The agents must use the reader ``blind``. An agent's samples differ only at a
    temperature above 0. Raises ``UnfinishedThought`` if more than half of all replies are unfinished thoughts.
    """
    if not agents:
        raise ValueError("the no-context filter needs at least one agent, got none")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    for agent in agents:
        if agent.reader.name != "blind":
            raise ValueError(f"the agents must not see the document: use the reader 'blind', got {agent.reader.name!r}")
    return run_sync(_verdicts(questions, agents, samples))


def knows(reply: str, answers: Sequence[str]) -> bool:
    """Return whether a reply has an accepted answer, in a box or as words of its text.

    If an accepted answer is the letter of an option, return whether the reply chooses the option.
    """
    # Whatever judge the data set has: the filter finds what a model knows, not how it is scored.
    if score("boxed", reply, answers).value:
        return True
    if any(re.fullmatch("[A-Z]", answer) for answer in answers):  # "a" is a word of nearly every reply
        return score("choice", reply, answers).value > 0
    return any(_has_words(reply.lower(), answer.lower()) for answer in answers)


def _has_words(text: str, words: str) -> bool:
    # Only Latin letters and digits are borders, because many scripts do not separate words.
    return re.search(rf"(?<![a-z0-9]){re.escape(words)}(?![a-z0-9])", text) is not None


async def _verdicts(questions: Sequence[Question], agents: Sequence[Agent], samples: int) -> list[bool | None]:
    slots = asyncio.Semaphore(SIDE_BY_SIDE)

    unfinished = 0

    async def known_to(agent: Agent, question: Question) -> bool | None:
        nonlocal unfinished
        async with slots:
            # A failed request is no verdict, and another sample may still decide.
            try:
                trace = await agent.aread("", question.question)
            except UnfinishedThought:
                unfinished += 1
                return None
            except (BackendError, BudgetError):  # a question over its budget gets no reply either
                return None
        return knows(trace.answer, question.answers)

    async def verdict(question: Question) -> bool | None:
        found = await gather(known_to(agent, question) for agent in agents for _ in range(samples))
        if True in found:  # one correct reply settles it, even if other requests failed
            return True
        return None if None in found else False

    found = await gather(map(verdict, questions))
    requests = len(questions) * len(agents) * samples
    if unfinished > requests / 2:
        raise UnfinishedThought(
            f"{unfinished:,} of {requests:,} replies without the document were unfinished thoughts, so most questions "
            "cannot be judged; switch thinking off (--chat-template enable_thinking=false), or give it room "
            "(--thinking-tokens)"
        )
    return found
