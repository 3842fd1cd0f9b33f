"""Measure how files are read: time per token at several lengths, and a file of a gigabyte.

A scripted model takes no time, so its rows show only our own cost: decoding, chunking, prompts, journal, provenance.
"""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from experiments.studies.speed.material import QUESTION, prose
from experiments.studies.speed.processes import peak_memory
from experiments.studies.speed.results import Measured, Ratio
from memagent_lib.agent import Agent
from memagent_lib.documents import read_files
from memagent_lib.prompts import Budget, Encoder, Request, Template
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Reply

if TYPE_CHECKING:
    from experiments.studies.speed.read import ReadBench
    from experiments.studies.speed.turns import Bench

PUBLISHED = Budget()
FLAT_FROM_TOKENS = 64_000
SKIPPED_WORDS = 40
MEMORY_WORDS = 400
RETAINED_WORDS = 360
_WORD = re.compile(r"\S+")


class _EnoughError(Exception):
    """Ends a reading once its time is up."""


def write_text(path: Path, seed: int, chars: int) -> Path:
    """Write about ``chars`` characters of prose. After the first 8 million, the text repeats."""
    blocks = cycle(_up_to(prose(seed), min(chars, 8_000_000)))
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(_up_to(blocks, chars))
    return path


def _up_to(blocks: Iterator[str], chars: int) -> Iterator[str]:
    while chars > 0:
        block = next(blocks)
        yield block
        chars -= len(block)


class Copier:
    """A model that takes no time. Its memory is always full; each turn replaces a tenth of it by words of the chunk."""

    window = 1 << 30

    async def complete(self, request: Request) -> Reply:
        before, _, memory = request.text.rpartition("<memory>")
        retained = memory.partition("</memory>")[0].split()[-RETAINED_WORDS:]
        last = SKIPPED_WORDS + MEMORY_WORDS - len(retained)
        fresh = (word.group() for word in islice(_WORD.finditer(before), SKIPPED_WORDS, last))
        return Reply(" ".join((*retained, *fresh)), prompt_tokens=len(request.ids))

    async def close(self) -> None:
        return None


def length(bench: Bench) -> Measured:
    """measure time per token against the document's length, with the engine and with a scripted model"""
    s = bench.settings
    rows = []
    block = next(prose(0))
    per_char = bench.tokenizer.count(block) / len(block)
    encoder = bench.encoder(memory_tokens=s.short_memory_tokens)
    plan = [("engine", bench.engine, encoder, s.engine_lengths)]
    plan.append(("scripted", None, Encoder(bench.tokenizer, Template.load("chunk_first"), PUBLISHED), s.lengths))
    with tempfile.TemporaryDirectory() as folder:
        for name, engine, words, lengths in plan:
            for tokens in lengths:
                path = write_text(Path(folder) / f"{tokens}.txt", s.seed, int(tokens / per_char))
                agent = Agent(words, engine or Copier())
                journal = Path(folder) / f"{name}-{tokens}.jsonl"
                cpu = time.process_time()
                reading = read_files(agent, [path], [QUESTION], journal=journal)
                cpu = time.process_time() - cpu
                read = sum(turn.prompt.chunk.tokens for turn in reading.trace.reads)
                size = {"model": name, "document_tokens": read, "turns": len(reading.trace.turns)}
                took = {"seconds": reading.seconds, "cpu_seconds": cpu, "tokens_per_second": read / reading.seconds}
                rows.append(size | took)
    both = ("seconds", "cpu_seconds")
    ratios = [_flatness(rows, name, column) for name, *_, lengths in plan if lengths for column in both]
    speeds = (f"{row['model']} {row['document_tokens']:,}: {row['tokens_per_second']:,.0f}" for row in rows)
    return Measured(ratios, rows, f"tokens per second: {'; '.join(speeds)}")


def _flatness(rows: list[dict[str, Any]], model: str, column: str) -> Ratio:
    """Return the ratio of the slowest time per token to the fastest, at lengths of 64K tokens or more.

    At shorter lengths, the time to start up dominates.
    """
    mine = [row for row in rows if row["model"] == model]
    # The lengths are met only approximately.
    counted = [row for row in mine if row["document_tokens"] >= 0.9 * FLAT_FROM_TOKENS] or mine
    costs = [row[column] / row["document_tokens"] for row in counted]
    first, last = (f"{row['document_tokens'] / 1e6:.3g}M" for row in (counted[0], counted[-1]))
    time_of = "wall" if column == "seconds" else "processor"
    what = f"{time_of} time per token, slowest over fastest, {first} to {last} tokens, {model}"
    return Ratio("length", what, (max(costs) / min(costs),), at_most=1.1)


def huge(bench: Bench) -> Measured:
    """read a huge file with the published budget and full memories: time to the first turn, and memory"""
    s = bench.settings
    with tempfile.TemporaryDirectory() as folder:
        path = write_text(Path(folder) / "huge.txt", s.seed, round(s.huge_mb * 1e6))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:  # memory of its own
            row = process.submit(_huge_alone, str(bench.folder), path, s).result()
    whole = f"{row['read_mb']:,.0f} of {row['file_mb']:,.0f} MB read"
    whole_mb = row["peak_mb"] + row["growth_mb_per_gb"] * (row["file_mb"] - row["read_mb"]) / 1000
    growing = "the same for the whole file, if memory continues to grow so"
    ratios = [
        Ratio("huge file", "time to the first turn", (row["first_turn_s"],), at_most=5, unit=" s"),
        Ratio("huge file", f"peak memory above the model, {whole}", (row["peak_mb"],), at_most=600, unit=" MB"),
        Ratio("huge file", growing, (whole_mb,), at_most=600, unit=" MB"),
    ]
    note = f"{row['mb_per_s']:.2f} MB/s on one core; memory grows by {row['growth_mb_per_gb']:.0f} MB per GB read"
    return Measured(ratios, [row], note)


def _memory_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


def _huge_alone(model: str, path: Path, s: ReadBench) -> dict[str, float]:
    encoder = Encoder(Tokenizer.load(model), Template.load("chunk_first"), PUBLISHED)
    encoder.tokenizer.count("The first use fills caches that later ones share.")
    before = _memory_mb()
    reads = []
    started = time.perf_counter()

    def seen(turn: Any) -> None:
        if turn.prompt.chunk is not None:
            seconds = time.perf_counter() - started
            reads.append((seconds, turn.prompt.chunk.end / 1e6, _memory_mb() - before))
            if seconds > s.huge_seconds:
                raise _EnoughError

    with tempfile.TemporaryDirectory() as folder, peak_memory() as peak_mb, suppress(_EnoughError):
        read_files(Agent(encoder, Copier()), [path], [QUESTION], journal=Path(folder) / "journal.jsonl", on_turn=seen)
    middle = reads[len(reads) // 2]
    last = reads[-1]
    return {
        "file_mb": path.stat().st_size / 1e6,
        "read_mb": last[1],
        "first_turn_s": reads[0][0],
        "mb_per_s": last[1] / last[0],
        "peak_mb": max(peak_mb() - before, last[2]),
        "growth_mb_per_gb": 1000 * (last[2] - middle[2]) / max(1e-9, last[1] - middle[1]),
    }
