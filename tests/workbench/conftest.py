"""A real MLflow store, made once and copied per test; traces from a scripted policy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from memagent_lib.data.examples import Example, Span
from memagent_lib.evaluate import Result
from memagent_lib.scoring import score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from memagent_lib.tracking import Ledger

    folder = tmp_path_factory.mktemp("store")
    Ledger.open(folder, "never used")
    return folder / "mlflow.db"


@pytest.fixture
def workspace(made_store: Path, tmp_path: Path) -> Path:
    """A folder whose ``mlflow.db`` exists: creating one takes MLflow seconds."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(made_store, folder / "mlflow.db")
    return folder


def reading(memories: list[str], answer: str, document: str, evidence: Span, accepted: str = "4711", name: str = "one") -> Result:
    """A result as the overwrite reader leaves it, one equal slice of the document per memory."""
    question = "What is the code of the bold owl?"
    size = -(-len(document) // len(memories))
    turns, memory = [], ""
    for index, said in enumerate(memories):
        start, end = index * size, min(len(document), (index + 1) * size)
        chunk = Chunk(index, document[start:end], start, end, 10)
        turns.append(Turn(Prompt(Kind.READ, question, memory, chunk), Reply(said, prompt_tokens=20, reply_tokens=len(said.split()))))
        memory = said
    turns.append(Turn(Prompt(Kind.ANSWER, question, memory), Reply(answer, prompt_tokens=9, reply_tokens=3)))
    facts = {"chunks": len(memories)}
    example = Example(id=name, task="needle", question=question, document=document, accepted=(accepted,), evidence=(evidence,), facts=facts)
    trace = Trace(question, tuple(turns))
    return Result(example, "overwrite", 0.5, trace, score("boxed", answer, (accepted,)))


NEEDLE = "The code of the bold owl is 4711."
FILLER = "Rain taps on the roof all night. "


@pytest.fixture
def kept() -> Result:
    document = FILLER * 2 + NEEDLE + " " + FILLER * 3
    start = document.index(NEEDLE)
    memories = ["nothing", NEEDLE, NEEDLE, NEEDLE]
    return reading(memories, "\\boxed{4711}", document, Span(start, start + len(NEEDLE)), name="kept")


@pytest.fixture
def lost() -> Result:
    document = FILLER * 2 + NEEDLE + " " + FILLER * 3
    start = document.index(NEEDLE)
    memories = ["nothing", NEEDLE, "The code of the <b>bold</b> mole is 9.", "nothing <script>alert(1)</script>"]
    return reading(memories, "\\boxed{9}", document, Span(start, start + len(NEEDLE)), name="lost")


@pytest.fixture
def long_reading() -> Callable[..., Result]:
    def make(turns: int, noted: int, lost: int, cut: int) -> Result:
        """A reading whose fact is read and noted at one turn and lost at another; one memory is cut at its limit."""
        size = 100
        document = "x" * (noted * size) + NEEDLE + "x" * ((turns - noted) * size - len(NEEDLE))
        memories = [NEEDLE if noted <= i < lost else f"memory {i}" for i in range(turns)]
        made = reading(memories, "\\boxed{9}", document, Span(noted * size, noted * size + len(NEEDLE)), name="long")
        steps = list(made.trace.turns)
        steps[cut] = replace(steps[cut], reply=replace(steps[cut].reply, finish_reason="length"))
        return replace(made, trace=Trace(made.trace.question, tuple(steps)))

    return make
