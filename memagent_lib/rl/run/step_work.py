"""Count the work of a training step before it is done: rows and tokens in the worst case, and uses of each example."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from memagent_lib.agent import run_sync
from memagent_lib.backends import Scripted
from memagent_lib.data import count, stream, stream_records
from memagent_lib.driver import drive
from memagent_lib.prompts import Encoder
from memagent_lib.readers import reader_named
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.curriculum import numbered, shares_of
from memagent_lib.rl.run.data_check import require_examples
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind

ASSUMED_CHUNKS = 7  # of the published 28K-token documents, where the data is not on this machine
SAMPLED_EXAMPLES = 64


@dataclass(frozen=True)
class Work:
    """The work of one step in the worst case: every memory is full and every reply reaches its limit."""

    rollouts: int
    turns: float
    prompt_tokens: float
    reply_tokens: float
    reply_share: float
    """The largest share of reply tokens in any kind of row, because a micro-batch may consist of that kind alone."""
    longest_row: int
    chunks_from: str

    @property
    def rows(self) -> float:
        return self.rollouts * self.turns

    @property
    def trained_tokens(self) -> float:
        return self.prompt_tokens + self.reply_tokens

    @classmethod
    def of(cls, recipe: Recipe, encoder: Encoder) -> Work:
        chunks, source = chunks_per_document(recipe, encoder)
        rollouts = recipe.prompts * recipe.rollouts
        turns = turns_by_kind(recipe, encoder, chunks)
        prompts = {kind: encoder.prompt_limit(kind, memories) for kind, memories in recipe.reading.shows.items()}
        replies = {kind: encoder.reply_limit(kind) for kind in prompts}
        return cls(
            rollouts=rollouts,
            turns=sum(turns.values()),
            prompt_tokens=rollouts * sum(n * prompts[kind] for kind, n in turns.items()),
            reply_tokens=rollouts * sum(n * replies[kind] for kind, n in turns.items()),
            reply_share=max(replies[kind] / (prompts[kind] + replies[kind]) for kind in turns),
            longest_row=encoder.window,
            chunks_from=source,
        )


def turns_by_kind(recipe: Recipe, encoder: Encoder, chunks: float) -> dict[Kind, float]:
    """Return how many turns of each kind the recipe's reader takes for a document of ``chunks`` chunks.

    The turns are counted by letting the reader read empty chunks with a scripted model.
    """
    whole = max(1, round(chunks))
    session = reader_named(recipe.reading.reader)("", [Chunk(i, "", i, i, 0) for i in range(whole)])
    # To every reader, a dash is a memory without a command.
    trace = run_sync(drive(session, encoder, Scripted(lambda prompt: "-")))
    turns = Counter(turn.prompt.kind for turn in trace.turns)
    # A prompt that only a search leads to can follow every chunk.
    requested = {kind: whole for kind in recipe.reading.shows if kind.reads and kind not in turns}
    return {kind: n * chunks / whole if kind.reads else n for kind, n in (turns | requested).items()}


def chunks_per_document(recipe: Recipe, encoder: Encoder) -> tuple[float, str]:
    """Return the mean number of chunks per document over a run's steps, and a note on the source of the number.

    The first examples of each file are counted. If a file is missing, the published number is assumed.
    """
    missing = [path for path in recipe.data.files if not Path(path).is_file()]
    if missing:
        return ASSUMED_CHUNKS, f"assumed: no data at {missing[0]}"
    for path in recipe.data.files:
        require_examples(path)
    size = recipe.reading.chunk_tokens
    weighted = 0.0
    seen = 0
    for stage in recipe.stages:
        each = max(1, SAMPLED_EXAMPLES // len(stage.files))
        documents = [example.document for path in stage.files for example in islice(stream(path), each)]
        counts = [-(-len(encoder.tokenizer.encode(document)) // size) for document in documents]
        weighted += stage.steps * sum(counts) / len(counts)
        seen += len(counts)
    return weighted / recipe.steps, f"from the first {seen} examples"


def stage_lines(recipe: Recipe) -> Iterator[str]:
    """Yield a line per stage: its steps, its files, and, if the files exist here, how often each example is drawn.

    A last line counts the stages that the run does not reach, if there are any.
    """
    first = 1
    for stage in recipe.stages:
        prompts = stage.steps * recipe.prompts
        last = first + stage.steps - 1
        where = f"steps {first:,} to {last:,}: {prompts:,} prompts of {', '.join(map(_short, stage.files))}"
        if all(Path(path).is_file() for path in stage.files):
            uses = uses_of(stage.files, recipe.data.mix, prompts)
            least = f"{min(uses):.1f}"
            most = f"{max(uses):.1f}"
            often = least if least == most else f"{least} to {most}"
            where += f", {len(uses):,} examples, {often} each"
        yield f"stage       {where}"
        first = last + 1
    unreached = recipe.data.stages[len(recipe.stages) :]
    if unreached:
        yield f"stage       {len(unreached)} not reached: the run has {recipe.steps:,} steps"


def uses_of(files: Sequence[str], mix: str, prompts: int) -> list[float]:
    """Return how often each example of ``files`` is drawn on average. A file listed twice counts twice."""
    counts = {file: count(file) for file in files}
    rows = numbered(counts, (record["data_source"] for file in counts for record in stream_records(file)))
    shares = shares_of([rows[file] for file in files], mix)
    uses: dict[int, float] = defaultdict(float)
    for share in shares:
        for row in share:
            uses[row] += prompts / len(shares) / len(share)
    return list(uses.values())


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-2:])
