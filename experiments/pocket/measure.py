"""Accuracy of a policy per task and length: ``python -m experiments.pocket.measure MODEL --out FILE.csv``.

Documents are made on the fly from a seed that no training uses. Rows are added to the file; what it already holds is
not read again.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memagent_lib.agent import open_agent
from memagent_lib.data import Example, make
from memagent_lib.evaluation import Result, evaluate, wilson
from memagent_lib.prompts import Budget
from memagent_lib.text import Tokenizer

TEST_SEED = 9001
"""Seed of every test document; training uses seeds below 2000."""
READS = Budget(chunk_tokens=96, memory_tokens=48, answer_tokens=48, question_tokens=32)
TASKS = ("needle", "multivalue", "multikey", "bridge", "update", "chain")
COLUMNS = ("model", "task", "chunks", "n", "failed", "score", "low", "high", "all_right", "in_memory", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number: a task at a length, over ``n`` documents."""

    task: str
    chunks: int
    n: int

    def examples(self, tokenizer: Tokenizer, seed: int) -> list[Example]:
        return list(
            make(f"pocket_{self.task}", self.n, seed, tokenizer, chunks=self.chunks, chunk_tokens=READS.chunk_tokens)
        )


def row(model: str, point: Point, results: Sequence[Result], seconds: float) -> dict[str, object]:
    """A line of the table: mean score with its Wilson interval, and the share with all answers in the last memory."""
    scored = [result for result in results if result.score]
    rate = wilson(sum(result.score.value for result in scored), len(scored))
    held = [all(answer in (result.trace.final_memory or "") for answer in result.example.answers) for result in scored]
    return {
        "model": model,
        "task": point.task,
        "chunks": point.chunks,
        "n": len(scored),
        "failed": len(results) - len(scored),
        "score": round(rate.value, 4),
        "low": round(rate.low, 4),
        "high": round(rate.high, 4),
        "all_right": round(sum(result.score.value == 1 for result in scored) / max(1, len(scored)), 4),
        "in_memory": round(sum(held) / max(1, len(held)), 4),
        "seconds": round(seconds, 1),
    }


def measure(
    model: str, points: Sequence[Point], out: Path, *, name: str, seed: int = TEST_SEED, threads: int = 1
) -> None:
    """Evaluate greedily and append one row per point to ``out``, printing it."""
    known = set()
    if out.exists():
        with out.open(encoding="utf-8") as file:
            known = {
                (line["model"], line["task"], int(line["chunks"]), int(line["n"])) for line in csv.DictReader(file)
            }
    todo = [point for point in points if (name, point.task, point.chunks, point.n) not in known]
    if not todo:
        return
    agent = open_agent(model, budget=READS, threads=threads)
    try:
        for point in todo:
            examples, started = point.examples(agent.encoder.tokenizer, seed), time.monotonic()
            results = evaluate(agent, examples, concurrency=256, progress=False)
            line = row(name, point, results, time.monotonic() - started)
            new = not out.exists()
            with out.open("a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if new:
                    writer.writeheader()
                writer.writerow(line)
            print(line, flush=True)
    finally:
        agent.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.pocket.measure", description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="what the table calls the model; its folder's name unless given")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--chunks", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument(
        "--n", nargs="+", type=int, default=[100], help="documents at each length, or one number for all"
    )
    parser.add_argument("--seed", type=int, default=TEST_SEED)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    counts = a.n * len(a.chunks) if len(a.n) == 1 else a.n
    points = [Point(task=task, chunks=c, n=n) for c, n in zip(a.chunks, counts, strict=True) for task in a.tasks]
    measure(a.model, points, a.out, name=a.name or Path(a.model).name, seed=a.seed, threads=a.threads)


if __name__ == "__main__":
    main()
