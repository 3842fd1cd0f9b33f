"""Chunks are the document, whole characters, with their place (design, invariant 1); a stream is cut like a string."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent_lib.text import chunk_stream, chunks

TEXTS = st.text(st.characters(codec="utf-8"), max_size=400)
SENTENCE = "A small boat drifts past the old mill. "


@given(text=TEXTS, size=st.integers(1, 40), cut=st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_chunks_concatenated_are_the_document_however_streamed(tokenizer, text, size, cut):
    whole = chunks(text, tokenizer, size)
    assert "".join(c.text for c in whole) == text
    assert all(text[c.start : c.end] == c.text for c in whole)
    assert [c.index for c in whole] == list(range(len(whole)))
    assert list(chunk_stream([text[:cut], text[cut:]], tokenizer, size)) == whole


@given(text=TEXTS, size=st.integers(6, 40))
@settings(max_examples=200, deadline=None)
def test_a_chunk_never_holds_more_tokens_than_its_budget(tokenizer, text, size):
    for chunk in chunks(text, tokenizer, size):
        assert chunk.tokens == tokenizer.count(chunk.text) <= size


def test_a_character_of_more_tokens_than_the_budget_stays_whole(tokenizer):
    assert tokenizer.count("\U0001f989") == 4
    parts = chunks("a\U0001f989b", tokenizer, 2)
    assert [c.text for c in parts] == ["a", "\U0001f989", "b"]
    assert [c.tokens for c in parts] == [1, 4, 1]


def test_a_chunk_ends_at_a_sentence_end_in_its_last_quarter(tokenizer):
    text = "Rain taps on the roof all night. " * 40
    for chunk in chunks(text, tokenizer, 64)[:-1]:
        assert chunk.text.rstrip().endswith(".")


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

    peak(40)  # with what is made once and remains
    assert peak(160) < 1.2 * peak(40)


@pytest.mark.parametrize("line", ["x" * 400_000, "東京" * 100_000, "0123456789" * 40_000, "=" * 400_000])
def test_one_endless_line_without_a_space_is_cut_exactly(tokenizer, line):
    made = chunks(line, tokenizer, 500)
    assert "".join(c.text for c in made) == line
    assert max(c.tokens for c in made) <= 500
