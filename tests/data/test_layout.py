"""Documents are as long as requested, and positions and spans of statements are true, whatever stands around them."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent_lib.data import (
    DocumentPlan,
    ExampleKey,
    Filler,
    Length,
    Meter,
    Statement,
    fill_chunks,
    insert,
    layout,
    make,
    noise,
    plans,
    prose,
)
from memagent_lib.data.tasks.words import drawn
from memagent_lib.text import chunks

UNITS = [f"Unit {i} of the filler." for i in range(40)]
STOCK = ("A cat sat.", "Rain fell on the long grey road to town.", "So it goes, and goes, and goes.")


@given(
    depths=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    fillers=st.lists(st.text("ab", min_size=1, max_size=9), max_size=12),
    numbered=st.booleans(),
)
def test_insert_reports_true_positions_keeps_order_and_loses_no_filler(depths, fillers, numbered):
    statements = [Statement(f"<{i}>" * (1 + i), depth) for i, depth in enumerate(depths)]
    texts = [statement.text for statement in statements]
    separator = "\n\n" if numbered else "|"
    text, spans, positions = insert(fillers, statements, separator, numbered)
    assert [text[start:end] for start, end in spans] == texts
    parts = text.split(separator)
    if numbered:
        assert [part.partition("\n")[0] for part in parts] == [f"Document {i + 1}:" for i in range(len(parts))]
        parts = [part.partition("\n")[2] for part in parts]
    assert [parts[position] for position in positions] == texts
    assert [part for part in parts if part not in texts] == list(fillers)
    by_depth = [i for i, _ in sorted(enumerate(depths), key=lambda pair: pair[1])]
    assert [part for part in parts if part in texts] == [texts[i] for i in by_depth]


@settings(max_examples=8, deadline=None)
@given(depth=st.floats(0, 1, exclude_max=True), number=st.integers(1, 5), size=st.integers(20, 60))
def test_filled_chunks_end_with_the_statements_last_token(tokenizer, depth, number, size):
    units = UNITS * 4
    statement = Statement("The needle is here.", depth)
    length = Length(chunks=number, chunk_tokens=size)
    found = fill_chunks(lambda n: insert(units, [statement], " ", among=n), len(units), length, tokenizer)
    start, end = found.spans[0]
    assert found.text[start:end] == statement.text
    assert len(chunks(found.text, tokenizer, size)) == number
    rest = found.text[:start] + found.text[end:].lstrip()
    assert " ".join(units).startswith(rest.rstrip())


@settings(max_examples=10, deadline=None)
@given(tokens=st.integers(60, 900), seed=st.integers(0, 99))
def test_a_document_misses_its_length_by_one_unit_at_most(tokens, seed, tokenizer):
    for filler in (noise(), prose(seed), drawn(lambda rng: rng.choice(STOCK), seed), Filler(lambda: iter(STOCK * 60))):
        plan = DocumentPlan(
            question="q?", answers=("a",), statements=(Statement("Hi.", 0.5),), filler=filler, separator=" "
        )
        text = plan.example(ExampleKey("x", seed, 0, Length(tokens=tokens)), Meter(tokenizer)).document
        units = list(islice(filler.units(), 200))
        n = next(n for n in range(200) if insert(units[:n], plan.statements, " ").text == text)
        more = insert(units[: n + 1], plan.statements, " ").text
        assert tokenizer.count(text) <= tokens
        assert tokens < tokenizer.count(more) + max(tokenizer.count(f" {unit}") for unit in units[: n + 1])


@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_2", "cwe", "fwe", "vt", "multihop_2"])
def test_a_length_that_is_counted_or_estimated_is_met_to_two_percent(name, tokenizer, monkeypatch):
    (example,) = make(name, 1, 8, tokenizer, length_tokens=12_345)
    assert example.metadata["tokens"] == tokenizer.count(example.document)
    monkeypatch.setattr(plans, "COUNTED_TOKENS", 4096)
    monkeypatch.setattr(layout, "BLOCK_CHARS", 10_000)
    for tokens in (20_000, 61_000):
        (example,) = make(name, 1, 2, tokenizer, length_tokens=tokens)
        assert 0.98 * tokens <= tokenizer.count(example.document) <= tokens


def test_the_question_of_a_seed_is_the_same_at_every_length(tokenizer):
    for name in ("niah_multikey_2", "vt", "multihop_3", "comparison", "updates", "ordering"):
        short, long = (list(make(name, 4, 6, tokenizer, length_tokens=tokens)) for tokens in (5600, 9000))
        assert [(e.question, e.answers) for e in short] == [(e.question, e.answers) for e in long]
        assert all(a.document != b.document for a, b in zip(short, long, strict=True))
