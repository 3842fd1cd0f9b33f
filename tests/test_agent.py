"""The driver: prefetch, cancelling, streaming, and what a reading of a huge file costs."""

import asyncio
import threading
import tracemalloc

import pytest

from memagent_lib.agent import Agent, Lookahead, Watch, chunks_after, gather, run_sync
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.prompts import Completion, Encoder, Template
from memagent_lib.text import Chunk, chunk_stream, chunks
from memagent_lib.trace import Kind, Prompt

SENTENCE = "A small boat drifts past the old mill. "
DOCUMENT = SENTENCE * 40


class Slow:
    """A backend that records what is under way at the same time."""

    def __init__(self, wait_s: float = 0.0, fail_prefetch: bool = False, prefetch_s: float | None = None):
        self.window, self.wait_s, self.fail_prefetch = 1 << 30, wait_s, fail_prefetch
        self.prefetch_s = wait_s if prefetch_s is None else prefetch_s
        self.events: list[tuple[str, int]] = []
        self.requests = []

    async def complete(self, request):
        number = len(self.requests)
        self.requests.append(request)
        self.events.append(("ask", number))
        try:
            await asyncio.sleep(self.prefetch_s if request.max_tokens == 1 else self.wait_s)
        except asyncio.CancelledError:
            self.events.append(("cancelled", number))
            raise
        self.events.append(("answered", number))
        if request.max_tokens == 1 and self.fail_prefetch:
            raise BackendError("no")
        return Completion(f"note {len(request.ids)}")

    async def close(self):
        return None


def reads(backend: Slow) -> list:
    return [r for r in backend.requests if r.max_tokens > 1]


@pytest.mark.parametrize("fails", [False, True])
def test_prefetch_changes_no_prompt_and_no_reply_even_when_it_fails(encoder, fails):
    plain, ahead = Slow(), Slow(fail_prefetch=fails)
    first = Agent(encoder, plain).read(DOCUMENT, "q")
    second = Agent(encoder, ahead, prefetch=True).read(DOCUMENT, "q")
    assert second == first
    assert [r.ids for r in reads(ahead)] == [r.ids for r in plain.requests]
    assert len(ahead.requests) - len(plain.requests) == len(first.reads) - 1


def test_what_is_prefetched_is_the_beginning_of_the_next_prompt_and_holds_its_chunk(encoder):
    backend = Slow()
    Agent(encoder, backend, prefetch=True).read(DOCUMENT, "q")
    prefetches = [r for r in backend.requests if r.max_tokens == 1]
    for begun, turn in zip(prefetches, reads(backend)[1:], strict=False):
        assert turn.ids[: len(begun.ids)] == begun.ids
        assert len(begun.ids) > 0.6 * len(turn.ids)


def test_a_prefetch_runs_beside_the_turn_before_and_ends_before_its_own(encoder):
    backend = Slow(wait_s=0.01)
    Agent(encoder, backend, prefetch=True).read(SENTENCE * 12, "q")
    order = [(what, backend.requests[number].max_tokens == 1) for what, number in backend.events]
    first_turn_ends = order.index(("answered", False))
    assert ("ask", True) in order[:first_turn_ends]
    for number, request in enumerate(backend.requests):
        if request.max_tokens == 1:
            later = [
                n
                for n, r in enumerate(backend.requests)
                if n > number and r.max_tokens > 1 and r.ids[: len(request.ids)] == request.ids
            ]
            assert backend.events.index(("answered", number)) < backend.events.index(("ask", later[0]))


def test_a_long_prefix_is_prefetched_in_growing_slices_until_the_memory_is_there(encoder):
    backend = Slow(wait_s=0.15, prefetch_s=0.0)
    backend.slice_tokens = 16
    Agent(encoder, backend, prefetch=True).read(SENTENCE * 8, "q")
    second = reads(backend)[1]
    slices = [r.ids for r in backend.requests if r.max_tokens == 1 and second.ids[: len(r.ids)] == r.ids]
    assert [len(ids) for ids in slices[:-1]] == list(range(16, 16 * len(slices), 16)) and len(slices) > 2
    late = Slow(wait_s=0.0, prefetch_s=0.1)
    late.slice_tokens = 16
    Agent(encoder, late, prefetch=True).read(SENTENCE * 8, "q")
    assert len(late.requests) < len(backend.requests), "a slice that would hold the turn up is not begun"


def test_a_template_with_the_memory_first_is_never_prefetched(tokenizer, encoder):
    backend = Slow()
    memory_first = Encoder(tokenizer, Template.load("memory_first"), encoder.budget)
    Agent(memory_first, backend, prefetch=True).read(SENTENCE * 12, "q")
    assert all(r.max_tokens > 1 for r in backend.requests)


async def test_a_cancelled_reading_leaves_no_request_and_no_task_behind(encoder):
    backend = Slow(wait_s=30)
    work = asyncio.create_task(Agent(encoder, backend, prefetch=True).aread(DOCUMENT, "q"))
    while len(backend.requests) < 2:
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.sleep(0.05)
    assert [what for what, _ in backend.events].count("cancelled") == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_when_one_fails_the_others_are_cancelled_before_the_error_is_seen():
    ended = []

    async def one(number):
        try:
            await asyncio.sleep(0 if number == 2 else 30)
            raise BackendError("two")
        finally:
            ended.append(number)

    with pytest.raises(BackendError, match="two"):
        await gather(one(i) for i in range(5))
    assert sorted(ended) == [0, 1, 2, 3, 4]


def test_an_interrupt_cancels_the_work():
    started, cancelled = threading.Event(), threading.Event()

    async def work():
        started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupted(coroutine):
        running = asyncio.run_coroutine_threadsafe

        def submit(*given):
            future = running(*given)

            def result(timeout=None):
                started.wait(5)
                raise KeyboardInterrupt

            future.result = result
            return future

        asyncio.run_coroutine_threadsafe = submit
        try:
            run_sync(coroutine)
        finally:
            asyncio.run_coroutine_threadsafe = running

    with pytest.raises(KeyboardInterrupt):
        interrupted(work())
    assert cancelled.wait(5)


def test_tokenising_happens_off_the_event_loop(encoder):
    threads = set()

    class Listening(type(encoder)):
        def encode(self, prompt):
            threads.add(threading.current_thread().name)
            return super().encode(prompt)

    listening = Listening(encoder.tokenizer, encoder.template, encoder.budget)

    def blocks():
        threads.add(threading.current_thread().name)
        yield DOCUMENT

    Agent(listening, Scripted(len_of)).read(blocks(), "q")
    assert all(name.startswith("memagent-tokens") for name in threads)


def len_of(text: str) -> str:
    return f"{len(text)}"


def test_a_look_ahead_changes_neither_the_chunks_nor_their_order():
    made = [Chunk(i, "x", i, i + 1, 1) for i in range(5)]
    ahead = Lookahead(iter(made))
    seen = []
    for _ in range(5):
        assert ahead.peek() == ahead.peek() == made[len(seen)]
        seen.append(next(ahead))
    assert seen == made
    assert ahead.peek() is None
    assert list(ahead) == []


def test_chunks_that_follow_a_reading_are_numbered_and_placed_after_it(encoder):
    earlier = Agent(encoder, Scripted(len_of)).read(DOCUMENT, "q")
    more = list(chunks_after(earlier, chunks(DOCUMENT, encoder.tokenizer, 48)))
    assert [c.index for c in more] == list(range(len(earlier.reads), len(earlier.reads) + len(more)))
    assert (more[0].start, more[-1].end) == (len(DOCUMENT), 2 * len(DOCUMENT))


def test_lean_drops_ids_and_chunk_texts_after_the_turn_was_seen(encoder):
    seen = []
    trace = Agent(encoder, Scripted(len_of)).read(
        DOCUMENT, "q", watch=Watch(lean=True, on_turn=lambda t: seen.append(t.prompt.chunk and t.prompt.chunk.text))
    )
    assert "".join(filter(None, seen)) == DOCUMENT
    assert {t.prompt.chunk.text for t in trace.reads} == {""}
    assert not any(t.reply.prompt_ids for t in trace.turns)


# Streaming.


def test_a_long_stream_costs_no_more_memory_than_a_short_one(tokenizer, monkeypatch):
    monkeypatch.setattr("memagent_lib.text.BLOCK_CHARS", 1 << 13)

    def blocks(n):
        for i in range(n):
            yield f"Note {i}: " + SENTENCE * 100

    def peak(n) -> int:
        tracemalloc.start()
        assert sum(len(c.text) for c in chunk_stream(blocks(n), tokenizer, 128)) > 3900 * n
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(160) < 1.2 * peak(40)


def test_a_document_in_one_string_is_never_tokenised_whole(tokenizer, monkeypatch):
    monkeypatch.setattr("memagent_lib.text.BLOCK_CHARS", 1 << 13)
    longest, starts = 0, tokenizer.starts

    def watched(text):
        nonlocal longest
        longest = max(longest, len(text))
        return starts(text)

    monkeypatch.setattr(tokenizer, "starts", watched)
    text = "x" * 300_000
    assert "".join(c.text for c in chunk_stream([text], tokenizer, 128)) == text
    assert longest < 4 * (1 << 13)


def test_the_first_chunk_of_a_stream_needs_only_its_beginning(tokenizer):
    given = 0

    def blocks():
        nonlocal given
        while True:
            given += 1
            yield SENTENCE * 1700

    first = next(chunk_stream(blocks(), tokenizer, 512))
    assert first.index == 0
    assert given < 10


@pytest.mark.parametrize("line", ["x" * 400_000, "東京" * 100_000, "0123456789" * 40_000, "=" * 400_000])
def test_one_endless_line_without_a_space_is_cut_exactly(tokenizer, line):
    made = chunks(line, tokenizer, 500)
    assert "".join(c.text for c in made) == line
    assert max(c.tokens for c in made) <= 500


def test_a_prompt_of_every_kind_begins_with_its_shared_prefix(encoder):
    chunk = chunks(DOCUMENT, encoder.tokenizer, 48)[0]
    for kind in (Kind.READ, Kind.GATE, Kind.RECALL):
        prefix = encoder.shared_prefix(kind, "why?", chunk)
        for memory in ("", "boat", "1 2 3", "東京"):
            assert encoder.encode(Prompt(kind, "why?", memory, chunk)).ids[: len(prefix)] == prefix
