"""Have a policy read with its notes corrected to exact copies, as lessons for ``memagent sft``.

Reinforcement learning teaches a small model whom to note, and unteaches it to copy what is said of them. Here the
policy's own note decides about whom; the words after the name become those of the statement that names them, in the
chunk or in the old memory, and is most like the note. A note about somebody whom neither names is dropped; without any
other, the memory stays as it was. Nothing in this looks at the question or the answer. The final answer is the data's
where the memory has the evidence, and else "unknown", as the blind teacher of the warm start has it.

``python -m experiments.studies.prose.own_notes MODEL DATA.parquet... --out FOLDER``; then ``data.traces=[FOLDER]``.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path

from memagent_lib.agent import open_agent
from memagent_lib.backends import Backend, Sampling
from memagent_lib.data import Example, load
from memagent_lib.evaluation import evaluate
from memagent_lib.prompts import Request
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Reply

HERE = Path(__file__).parent
STATEMENTS = tomllib.loads((HERE / "warm_start.toml").read_text(encoding="utf-8"))["sft"]["statements"]
EMPTY = "(none)"  # what wording.toml writes for an empty memory, and how its prompts are laid out
_READS = re.compile(r"Text: (?P<chunk>.*)\n\nQuestion: .*\n\nNotes: (?P<memory>.*)", re.DOTALL)
_ANSWERS = re.compile(r"Question: (?P<question>.*)\n\nNotes: (?P<memory>.*)", re.DOTALL)
PERSON = "[A-Z][a-z]+ [A-Z][a-z]+"
_NOTE = re.compile(rf"{PERSON}: .*?(?=\s{PERSON}: |$)", re.DOTALL)


def corrected(reply: str, memory: str, chunk: str, linked: bool = False) -> list[str]:
    """Return the notes of a reply as exact copies, each once; without one, those of the old ``memory``.

    With ``linked``, statements that name somebody whom these notes name are noted too.
    """
    old = _NOTE.findall(memory)
    there = [*(note.partition(": ")[2] for note in old), *(match.group() for match in re.finditer(STATEMENTS, chunk))]
    copies = {}
    for note in _NOTE.findall(reply):
        about, _, words = note.partition(": ")
        of_them = [statement for statement in there if _names(statement, about)]
        if of_them:
            most_like = max(of_them, key=lambda statement: SequenceMatcher(None, statement, words).ratio())
            copies.setdefault(most_like, f"{about}: {most_like}")
    if linked:
        for about in dict.fromkeys(re.findall(PERSON, " ".join(copies))):
            for statement in there:
                if _names(statement, about):
                    copies.setdefault(statement, f"{about}: {statement}")
    return [*copies.values()] or old


def _names(statement: str, person: str) -> bool:
    return re.search(rf"\b{person}\b", statement) is not None


@dataclass
class OwnNotes:
    """A backend whose replies are those of ``backend``, corrected. ``examples`` are by their question."""

    backend: Backend
    tokenizer: Tokenizer
    examples: Mapping[str, Example]
    linked: bool = False
    replies: Counter[str] = field(default_factory=Counter)

    @property
    def window(self) -> int:
        return self.backend.window

    @property
    def sampling(self) -> Sampling:
        return self.backend.sampling

    async def complete(self, request: Request) -> Reply:
        reply = await self.backend.complete(request)
        reads = _READS.search(request.text)
        text = self._memory(reads, reply.text, request.max_tokens) if reads else self._answer(request.text)
        self.replies["as it was" if text == reply.text.strip() else "corrected"] += 1
        return replace(reply, text=text, finish_reason="stop")

    def _memory(self, reads: re.Match[str], reply: str, limit: int) -> str:
        """Return the corrected memory, without its last notes where it and its end token would be over the limit."""
        notes = corrected(reply, reads["memory"], reads["chunk"], self.linked)
        while notes and self.tokenizer.count(" ".join(notes)) >= limit:
            notes.pop()
        return " ".join(notes) or EMPTY

    def _answer(self, prompt: str) -> str:
        asked = _ANSWERS.search(prompt)
        example = self.examples[asked["question"]]
        evidence = [example.document[start:end].strip() for start, end in example.evidence]
        is_known = all(statement in asked["memory"] for statement in evidence)
        return f"\\boxed{{{example.answers[0] if is_known else 'unknown'}}}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.prose.own_notes", description=__doc__)
    parser.add_argument("model", help="the policy that reads")
    parser.add_argument("data", nargs="+", help="files of examples; of those with the same question, one is read")
    parser.add_argument("--out", required=True, help="the folder of results")
    parser.add_argument("--passes", type=int, default=1, help="all once greedily, then at temperature 1 what is wrong")
    parser.add_argument("--memory-tokens", type=int, default=0, help="the limit of memories (default: the policy's)")
    parser.add_argument("--linked", action="store_true", help="note statements that name somebody in a note, too")
    options = parser.parse_args()
    limit = {"memory_tokens": options.memory_tokens} if options.memory_tokens else None
    agent = open_agent(options.model, "vllm", budget=limit)
    wrong = {example.question: example for file in options.data for example in load(file)}
    for seed in range(1, options.passes + 1):
        backend = agent.backend.drawing(Sampling(temperature=float(seed > 1), seed=seed))
        policy = OwnNotes(backend, agent.encoder.tokenizer, wrong, options.linked)
        results = evaluate(replace(agent, backend=policy), wrong.values(), folder=Path(options.out) / "readings")
        wrong = {result.example.question: result.example for result in results if not result.correct}
        right = len(results) - len(wrong)
        print(f"pass {seed}: {right:,} of {len(results):,} readings are right; {dict(policy.replies)}")
    agent.close()


if __name__ == "__main__":
    main()
