"""One page of each kind, made by scripted agents: what commands write and a person then opens, prints or sends."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.data import make, save
from memagent_lib.documents import read_files
from memagent_lib.evaluation import EvaluationPlan
from memagent_lib.inspector import EvaluationReport, leaderboard_page, to_html
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.tracking import Experiment, evaluate_files, leaderboard, load_readings

LENGTHS = (1, 2, 4)
EXAMPLES = 10
LEASE = "The lease begins in March. The rent is 950 euros. מחיר החנייה הוא 40 אירו. <b>No pets</b> & no “noise” 🎺. "
ONE_WORD = "x" * 180
HOUSE = "The house has nine rooms. The garden is shared. " + "x" * 90 + " "


def reads(text: str, forgets: float) -> str:
    """Reply as a reader of needles that forgets what it has noted at a share of the turns."""
    key = re.search(r"code of the (\w+ \w+)\?", text).group(1)
    found = re.search(rf"[Cc]ode of the {key} is (\d+)\.", text)
    if found and crc32(text.encode()) % 100 < 100 * forgets:
        found = None
    if "Write the answer" in text:
        return f"\\boxed{{{found.group(1)}}}" if found else "\\boxed{unknown}"
    return f"The code of the {key} is {found.group(1)}." if found else "nothing yet"


def made_pages(tokenizer: Tokenizer, store: Path, folder: Path) -> dict[str, Path]:
    """Write a page of each kind into ``folder`` and return their paths by kind. ``store`` has the evaluations' runs."""
    experiment = Experiment.open(store)
    _evaluations(tokenizer, experiment, folder)
    grid = EvaluationReport.of(folder / "grid", store, "trained, memory 60, temperature 0")
    readers = EvaluationReport.of(folder / "readers", store)
    readings = load_readings(experiment, grid.rows)
    two = {name: readings[name] for name in sorted(readings)[:2]}
    two[ONE_WORD] = load_readings(experiment, readers.rows)[ONE_WORD]
    pages = {
        "grid": grid.page(),
        "readers": readers.page(),
        "leaderboard": leaderboard_page(leaderboard(experiment)),
        "inspector": to_html(two),
    }
    saved = {kind: page.save(folder / f"{kind}.html") for kind, page in pages.items()}
    return saved | {"read": _reading(tokenizer, folder)}


def _evaluations(tokenizer: Tokenizer, experiment: Experiment, folder: Path) -> None:
    """Evaluate a grid of two settings for two policies, and three readers of one policy."""
    files = []
    for chunks in LENGTHS:
        files.append(folder / f"needles_{chunks}.parquet")
        save(make("needle", EXAMPLES, 5, tokenizer, chunks=chunks, chunk_tokens=200), files[-1])
    share = {"warm start": 0.4, "trained": 0.1}
    for policy, forgets in share.items():
        for memory_tokens in (20, 60):
            for temperature in (0.0, 0.7):
                agent = _agent(tokenizer, lambda text, share=forgets: reads(text, share), memory_tokens)
                _evaluate(experiment, agent, files, folder / "grid", policy, temperature)
    agent = _agent(tokenizer, lambda text: reads(text, 0.1), 60)
    _evaluate(experiment, agent, files, folder / "readers", "trained", 0.0, ["overwrite", "gated", "blind"])
    _evaluate(experiment, agent, files, folder / "readers", ONE_WORD, 0.0)


def _agent(tokenizer: Tokenizer, reply: Callable[[str], str], memory_tokens: int) -> Agent:
    budget = Budget(chunk_tokens=200, memory_tokens=memory_tokens, answer_tokens=16, question_tokens=64)
    return Agent(Encoder(tokenizer, Template.load("short"), budget), Scripted(reply), reader_named("overwrite"))


def _evaluate(
    experiment: Experiment,
    agent: Agent,
    files: list[Path],
    folder: Path,
    policy: str,
    temperature: float,
    readers: list[str] | None = None,
) -> None:
    plan = EvaluationPlan(files, readers=readers or ["overwrite"])
    out = folder / policy
    with experiment.run(f"evaluate {policy}", {"policy": policy}) as tracked:
        _, rows = evaluate_files(tracked, agent, plan, out, policy=policy)
    # A scripted agent has no sampling of its own.
    rows.assign(temperature=temperature).to_parquet(folder / f"{tracked.id}.parquet")


def _reading(tokenizer: Tokenizer, folder: Path) -> Path:
    """Read two files of one's own for two questions, and write the page."""
    (folder / "lease of 2024.txt").write_text(HOUSE * 3 + LEASE + HOUSE * 4, encoding="utf-8")
    (folder / "סיכום.txt").write_text("The contract ends in May. " + HOUSE * 5, encoding="utf-8")

    def notes(text: str) -> str:
        rent = re.search(r"rent is \d+ euros", text)
        parking = re.search("מחיר החנייה הוא 40 אירו", text)
        known = "; ".join(found.group(0) for found in (rent, parking) if found)
        if "Write the answer" in text and "rent" in text.split("Write the answer")[0]:
            return f"\\boxed{{{known or 'unknown'}}}"
        return known or "nothing yet, but “I” think of 🎺"

    agent = _agent(tokenizer, notes, 60)
    files = [folder / "lease of 2024.txt", folder / "סיכום.txt"]
    reading = read_files(agent, files, ["What is the rent?", "When does the contract end?"])
    return reading.to_html(folder / "read.html")
