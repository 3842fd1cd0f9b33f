"""Reading speed, each idea beside the way without it: one engine, one run, the same seeds; ratios, not seconds, are the result.

The engine is vLLM with random weights, because speed does not depend on what a model knows. Sizes are the published ones
scaled down: chunk to memory as 5,000 to 1,024.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.backends import Backend, Completion, Request, Sampling, open_backend
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import Reading, overwrite
from memagent_lib.reading import Agent, drive, run_sync, together
from memagent_lib.text import Tokenizer, chunk_stream, chunks, fit
from memagent_lib.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED_RATIO = 5000 / 1024
QUESTION = "Which of the codes above belongs to the violet otter, and where was it last seen?"
_WORDS = [
    "amber",
    "boat",
    "bridge",
    "chimney",
    "clock",
    "code",
    "copper",
    "door",
    "ferry",
    "garden",
    "harbour",
    "hill",
    "kite",
    "lamp",
    "mill",
    "north",
    "otter",
    "owl",
    "paper",
    "rain",
    "river",
    "road",
    "roof",
    "snow",
    "stair",
    "stone",
    "street",
    "table",
    "tower",
    "train",
    "tree",
    "violet",
    "wall",
    "water",
    "wheel",
    "window",
    "winter",
    "wood",
    "yard",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBench:
    """What is measured: sizes in tokens, ``group`` rollouts of one document, ``concurrent`` readings of different ones."""

    chunk_tokens: int = 1000
    chunks: int = 4
    group: int = 16
    concurrent: int = 64
    rounds: int = 2
    long_chunks: int = 12
    lengths: tuple[int, ...] = (16_000, 64_000, 256_000)
    width: int = 512
    layers: int = 8
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < (0 if field.name == "seed" else 1):
                raise ValueError(f"{field.name} must be at least 1, got {value}")

    @property
    def memory_tokens(self) -> int:
        return max(8, round(self.chunk_tokens / PUBLISHED_RATIO))


def bench_read(
    tokenizer: str | Path, settings: ReadBench | None = None, parts: Iterable[str] = (), report: Callable[[str], None] = print
) -> dict[str, Any]:
    """The frames of the ``parts`` asked for (all of :data:`PARTS` by default), by name. ``tokenizer`` is a folder with one."""
    s, wanted = settings or ReadBench(), list(parts) or list(PARTS)
    if unknown := set(wanted) - set(PARTS):
        raise ValueError(f"no part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(tokenizer), Path(folder), s)
        options = {} if s.threads is None else {"threads": s.threads}
        engine = open_backend("vllm", folder, Sampling(temperature=1.0), **options)
        try:
            bench = _Bench(s, Tokenizer.load(folder), engine)
            frames = {}
            for name in wanted:
                report(f"measuring {name}: {PARTS[name].__doc__}")
                frames[name] = run_sync(PARTS[name](bench))
                report(frames[name].to_string(index=False))
            return frames
        finally:
            run_sync(engine.close())


def random_model(tokenizer: Path, folder: Path, s: ReadBench) -> None:
    """A Qwen2 model with random weights and this tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    words = AutoTokenizer.from_pretrained(tokenizer)
    window = 8 * (s.chunk_tokens + s.memory_tokens) + 1024
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=s.width,
        intermediate_size=3 * s.width,
        num_hidden_layers=s.layers,
        num_attention_heads=max(1, s.width // 64),
        num_key_value_heads=max(1, s.width // 128),
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(s.seed)
        Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    words.save_pretrained(folder)


class _Bench:
    """One engine, and documents for it."""

    def __init__(self, settings: ReadBench, tokenizer: Tokenizer, engine: Any):
        self.s, self.tokenizer, self.engine = settings, tokenizer, engine

    def encoder(self, template: str = "chunk_first", memory_tokens: int | None = None) -> Encoder:
        memory = memory_tokens or self.s.memory_tokens
        budget = Budget(chunk_tokens=self.s.chunk_tokens, memory_tokens=memory, answer_tokens=16, question_tokens=64)
        return Encoder(self.tokenizer, Template.load(template), budget)

    def document(self, pieces: int, seed: int) -> str:
        """Text of exactly ``pieces`` chunks, different for every seed."""
        text = "".join(_sentences(self.s.seed * 1000 + seed, pieces * self.s.chunk_tokens // 4))
        ends = [c.end for c in chunks(text, self.tokenizer, self.s.chunk_tokens)]
        return text[: ends[min(pieces, len(ends)) - 1]]

    async def timed(self, work: Callable[[], Awaitable[list[Trace]]]) -> tuple[float, list[Trace]]:
        """Seconds, and what came of it, from a cold prefix cache."""
        await self.engine.forget_prefixes()
        started = time.perf_counter()
        traces = await work()
        return time.perf_counter() - started, traces


async def order(bench: _Bench) -> pd.DataFrame:
    """a group of rollouts with the memory before the chunk, and with the chunk before the memory"""
    rows = []
    for share, memory in (("full", bench.s.memory_tokens), ("a third", max(4, bench.s.memory_tokens // 3))):
        for _ in range(bench.s.rounds):
            document = bench.document(bench.s.chunks, len(rows))
            for template in ("memory_first", "chunk_first"):
                agent = Agent(bench.encoder(template, memory), bench.engine)
                seconds, traces = await bench.timed(
                    lambda a=agent, d=document: together(a.aread(d, QUESTION) for _ in range(bench.s.group))
                )
                asked = sum(t.prompt_tokens for t in traces)
                cached = sum(turn.reply.cached_tokens for t in traces for turn in t.turns)
                facts = {"memories": share, "template": template, "prompt_tokens": asked, "prefilled": asked - cached}
                rows.append(facts | {"hit_rate": cached / asked, "seconds": seconds})
    return _with_ratios(rows, ["memories"], "template", "memory_first", ["prefilled", "seconds"])


async def overhead(bench: _Bench) -> pd.DataFrame:
    """our readings, and the bare engine given the very same prompts in the same order"""
    rows, encoder = [], bench.encoder()
    documents = [bench.document(bench.s.chunks, 100 + i) for i in range(bench.s.concurrent)]
    for _ in range(bench.s.rounds):
        recorded: list[list[Request]] = []

        def reading(document: str, recorded: list[list[Request]] = recorded) -> Awaitable[Trace]:
            recorder = _Fixed(bench.engine)
            recorded.append(recorder.requests)
            return Agent(encoder, recorder).aread(document, QUESTION)

        ours, _ = await bench.timed(lambda read=reading: together(map(read, documents)))
        bare, _ = await bench.timed(lambda asked=recorded: together(_replay(bench.engine, requests) for requests in asked))
        turns = sum(map(len, recorded))
        rows += [{"driver": "bare engine", "turns": turns, "seconds": bare}, {"driver": "memagent", "turns": turns, "seconds": ours}]
    return _with_ratios(rows, [], "driver", "bare engine", ["seconds"])


async def prefetch(bench: _Bench) -> pd.DataFrame:
    """one long document, its next chunk prefilled while the memory is written, and not"""
    rows = []
    for round_ in range(bench.s.rounds):
        document = bench.document(bench.s.long_chunks, 200 + round_)
        for ahead in (False, True):
            agent = Agent(bench.encoder(memory_tokens=max(8, bench.s.memory_tokens // 4)), bench.engine, prefetch=ahead)
            seconds, _ = await bench.timed(lambda a=agent, d=document: together([a.aread(d, QUESTION)]))
            rows.append({"prefetch": "on" if ahead else "off", "chunks": bench.s.long_chunks, "seconds": seconds})
    return _with_ratios(rows, [], "prefetch", "off", ["seconds"])


async def lock_step(bench: _Bench) -> pd.DataFrame:
    """readings that advance alone, and readings that wait for the slowest of each turn"""
    rows, encoder = [], bench.encoder()
    rng = random.Random(bench.s.seed)
    documents = [bench.document(rng.randint(1, 2 * bench.s.chunks), 300 + i) for i in range(bench.s.concurrent)]
    uneven = _Uneven(bench.engine, bench.s.seed)
    for _ in range(bench.s.rounds):

        def readings() -> Iterator[Reading]:
            return (overwrite(QUESTION, chunk_stream([d], bench.tokenizer, bench.s.chunk_tokens)) for d in documents)

        for driver, run in (("lock step", _all_in_step), ("memagent", _all_alone)):
            seconds, traces = await bench.timed(lambda run=run, make=readings: run(list(make()), encoder, uneven))
            rows.append({"driver": driver, "turns": sum(len(t.turns) for t in traces), "seconds": seconds})
    return _with_ratios(rows, [], "driver", "lock step", ["seconds"])


async def length(bench: _Bench) -> pd.DataFrame:
    """tokens per second, and time per token, against the length of one document"""
    import pandas as pd

    encoder, rows = bench.encoder(memory_tokens=max(8, bench.s.memory_tokens // 4)), []
    for tokens in bench.s.lengths:
        pieces = max(1, tokens // bench.s.chunk_tokens)
        text = _stream(bench.s.seed, fit(lambda n: bench.tokenizer.count("".join(_sentences(0, n))), 4000) * tokens // 4000)
        agent = Agent(encoder, bench.engine)
        seconds, (trace,) = await bench.timed(lambda a=agent, t=text: together([a.aread(t, QUESTION)]))
        read = sum(turn.prompt.chunk.tokens for turn in trace.reads)
        rows.append({"asked_tokens": tokens, "document_tokens": read, "turns": len(trace.turns), "seconds": seconds, "chunks": pieces})
    frame = pd.DataFrame(rows).drop(columns="chunks")
    frame["tokens_per_second"] = frame["document_tokens"] / frame["seconds"]
    per_token = frame["seconds"] / frame["document_tokens"]
    frame["time_per_token_ratio"] = per_token / per_token.iloc[0]
    return frame


PARTS: dict[str, Callable[[_Bench], Awaitable[Any]]] = {
    "order": order,
    "overhead": overhead,
    "prefetch": prefetch,
    "lock_step": lock_step,
    "length": length,
}


class _Fixed:
    """A backend that remembers what it was asked."""

    def __init__(self, backend: Backend):
        self.backend, self.window = backend, backend.window
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        return await self.backend.complete(request)

    async def close(self) -> None:
        return None


class _Uneven:
    """A backend whose replies have lengths of their own, a function of the prompt's length: real memories do not all end at once."""

    def __init__(self, backend: Backend, seed: int):
        self.backend, self.window, self.seed = backend, backend.window, seed

    async def complete(self, request: Request) -> Completion:
        limit = random.Random(hash((self.seed, len(request.ids), request.ids[-64:-32]))).randint(1, request.max_tokens)
        return await self.backend.complete(Request(request.ids, request.text, limit))

    async def close(self) -> None:
        return None


async def _replay(backend: Backend, requests: Sequence[Request]) -> None:
    for request in requests:
        await backend.complete(request)


async def _all_alone(readings: list[Reading], encoder: Encoder, backend: Backend) -> list[Trace]:
    return await together(drive(reading, encoder, backend) for reading in readings)


async def _all_in_step(readings: list[Reading], encoder: Encoder, backend: Backend) -> list[Trace]:
    """The driver that the reference has: every turn waits for the slowest reading of the turn before."""
    traces, waiting = [], [(reading, next(reading)) for reading in readings]
    while waiting:
        requests = [encoder.encode(prompt) for _, prompt in waiting]
        replies = await together(map(backend.complete, requests))
        going = []
        for (reading, prompt), request, reply in zip(waiting, requests, replies, strict=True):
            try:
                going.append((reading, reading.send(encoder.reply(prompt, request, reply))))
            except StopIteration as done:
                traces.append(done.value)
        waiting = going
    return traces


def _with_ratios(rows: list[dict[str, Any]], by: list[str], what: str, base: str, columns: list[str]) -> pd.DataFrame:
    """Means over the rounds, and how many times less each of ``columns`` is than in the row called ``base``."""
    import pandas as pd

    frame = pd.DataFrame(rows).groupby([*by, what], sort=False).mean().reset_index()
    for column in columns:
        bases = frame[frame[what] == base]
        lookup = bases.set_index(by)[column] if by else bases[column].iloc[0]
        frame[f"{column}_ratio"] = (frame[by[0]].map(lookup) if by else lookup) / frame[column]
    return frame


def _sentences(seed: int, n: int) -> Iterator[str]:
    for i in range(n):
        rng = random.Random(f"{seed} {i}")
        yield f"{' '.join(rng.choice(_WORDS) for _ in range(rng.randint(6, 14))).capitalize()} {rng.randrange(10_000)}. "


def _stream(seed: int, sentences: int) -> Iterator[str]:
    made = _sentences(seed, sentences)
    while block := "".join(sentence for _, sentence in zip(range(500), made, strict=False)):
        yield block
