"""Documents are as long as requested: never longer, and not a unit of filler shorter than need be."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent_lib.data import (
    TASKS,
    DocumentPlan,
    ExampleKey,
    Filler,
    Length,
    Meter,
    Statement,
    insert,
    make,
    noise,
    prose,
)
from memagent_lib.data.layout import lengths, plans
from memagent_lib.data.tasks import world
from memagent_lib.data.tasks.words import drawn
from memagent_lib.text import chunks

OFFLINE = [name for name, preset in TASKS.items() if not preset.needs]
UNIT = {"multihop": 300, "prose": 300, "comparison": 300, "keychain": 330, "niah_multikey_3": 120}
"""The smallest unit of filler that is always to be had of a task, in the test tokenizer's tokens; 60 for all others."""


LEAST = {"multihop_3": 5600, "multihop_4": 7600, "comparison_4": 4600, "keychain": 6600}
"""Lengths that hold all chains of these tasks, in the test tokenizer's tokens."""


def unit(name: str) -> int:
    return next((size for start, size in UNIT.items() if name.startswith(start)), 60)


@pytest.mark.parametrize("name", [n for n in OFFLINE if n != "needle"])
@pytest.mark.parametrize("tokens", [3100, 12_345])
def test_a_document_fills_its_tokens_to_98_percent_or_one_unit(name, tokens, tokenizer):
    tokens = max(tokens, LEAST.get(name, 0))
    for example in make(name, 3, 8, tokenizer, length_tokens=tokens):
        counted = tokenizer.count(example.document)
        assert example.metadata["tokens"] == counted
        assert min(0.98 * tokens, tokens - unit(name)) <= counted <= tokens


@pytest.mark.parametrize("name", OFFLINE)
@pytest.mark.parametrize(("number", "size"), [(1, 3300), (5, 900)])
def test_a_document_fills_its_chunks_and_no_more(name, number, size, tokenizer):
    size = max(size, LEAST.get(name, 0) // number + 300)
    for example in make(name, 2, 8, tokenizer, chunks=number, chunk_tokens=size):
        assert len(chunks(example.document, tokenizer, size)) == number
        assert (example.metadata["chunks"], example.metadata["chunk_tokens"]) == (number, size)


@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_2", "cwe", "fwe", "qa1", "multihop_2"])
def test_a_document_whose_length_is_estimated_stays_within_it(name, tokenizer, monkeypatch):
    monkeypatch.setattr(plans, "COUNTED_TOKENS", 4096)
    monkeypatch.setattr(lengths, "BLOCK_CHARS", 10_000)
    for tokens in (20_000, 61_000):
        (example,) = make(name, 1, 2, tokenizer, length_tokens=tokens)
        assert 0.98 * tokens <= tokenizer.count(example.document) <= tokens


def test_the_question_of_a_seed_is_the_same_at_every_length(tokenizer):
    for name in ("niah_multikey_2", "vt", "multihop_3", "comparison", "qa3", "updates", "ordering"):
        short, long = (list(make(name, 4, 6, tokenizer, length_tokens=tokens)) for tokens in (5600, 9000))
        assert [(e.question, e.answers) for e in short] == [(e.question, e.answers) for e in long]
        assert all(a.document != b.document for a, b in zip(short, long, strict=True))
    assert world(1, 0, 1).documents == world(1, 0, 9000).documents[: len(world(1, 0, 1).documents)]


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_a_needle_is_at_the_requested_and_recorded_depth(depth, tokenizer):
    for name in ("niah_single_1", "niah_multikey_2"):
        (example,) = make(name, 1, 4, tokenizer, length_tokens=6000, depth=depth)
        ((start, end),) = example.evidence
        assert abs(start / len(example.document) - depth * (1 - (end - start) / len(example.document))) < 0.02
        assert example.metadata["depths"] == [round(start / len(example.document), 4)]


def test_depths_and_gold_places_are_spread_over_the_document(tokenizer):
    needles = [e.metadata["depths"][0] for e in make("niah_single_1", 120, 1, tokenizer, length_tokens=1500)]
    gold = [
        p / e.metadata["documents"]
        for e in make("multihop_2", 60, 1, tokenizer, documents=40)
        for p in e.metadata["gold_places"]
    ]
    for depths in (needles, gold):
        for quarter in range(4):
            assert 0.15 < sum(quarter / 4 <= d < (quarter + 1) / 4 for d in depths) / len(depths) < 0.36


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("niah_single_1", {"length_tokens": 10}),
        ("vt", {"length_tokens": 60}),
        ("multihop_3", {"length_tokens": 100}),
        ("cwe", {"length_tokens": 50}),
        ("qa1", {"length_tokens": 20}),
        ("keychain", {"length_tokens": 900}),
        ("niah_single_1", {"chunks": 1, "chunk_tokens": 12}),
    ],
)
def test_too_short_a_length_is_an_error_with_the_numbers(name, size, tokenizer):
    with pytest.raises(
        ValueError, match=rf"task '{name}'.*(need|needs) [\d,]+ (tokens|chunks).* were requested; request"
    ):
        list(make(name, 1, 1, tokenizer, **size))


def test_too_few_code_words_to_rank_are_an_error(tokenizer):
    with pytest.raises(ValueError, match=r"too few to separate the 3 most frequent|needs [\d,]+ tokens"):
        list(make("fwe", 1, 1, tokenizer, length_tokens=40))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "set exactly one of length_tokens, chunks and documents; got none"),
        ({"tokens": 5, "chunks": 1}, "got length_tokens and chunks"),
        ({"tokens": 0}, "length_tokens must be at least 1, got 0"),
        ({"chunks": -2}, "chunks must be at least 1, got -2"),
        ({"chunks": 2, "chunk_tokens": 0}, "chunk_tokens must be at least 1, got 0"),
    ],
)
def test_a_length_that_makes_no_sense_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        Length(**options)


def test_documents_are_counted_only_where_there_is_a_pool(tokenizer):
    with pytest.raises(ValueError, match="no pool of documents; set length_tokens or chunks"):
        list(make("vt", 1, 1, tokenizer, documents=5))


def plan(statements: list[Statement], filler: Filler | None = None, **more) -> DocumentPlan:
    return DocumentPlan(question="q?", answers=("a",), statements=tuple(statements), filler=filler or noise(), **more)


@given(
    depths=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    fillers=st.lists(st.text("ab", min_size=1, max_size=9), max_size=12),
    numbered=st.booleans(),
)
def test_insert_reports_true_positions_and_loses_no_filler(depths, fillers, numbered):
    statements = [Statement(f"<{i}>" * (1 + i), depth) for i, depth in enumerate(depths)]
    texts = [statement.text for statement in statements]
    text, spans, positions = insert(fillers, statements, "\n\n" if numbered else "|", numbered)
    assert [text[start:end] for start, end in spans] == texts
    parts = text.split("\n\n" if numbered else "|")
    if numbered:
        assert [part.partition("\n")[0] for part in parts] == [f"Document {i + 1}:" for i in range(len(parts))]
        parts = [part.partition("\n")[2] for part in parts]
    assert [parts[position] for position in positions] == texts
    assert [part for part in parts if part not in texts] == list(fillers)
    by_depth = [i for i, _ in sorted(enumerate(depths), key=lambda pair: pair[1])]
    assert [part for part in parts if part in texts] == [texts[i] for i in by_depth]


STOCK = ("A cat sat.", "Rain fell on the long grey road to town.", "So it goes, and goes, and goes.")


@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(60, 900), seed=st.integers(0, 99))
def test_a_document_misses_its_length_by_one_unit_at_most(tokens, seed, tokenizer):
    for filler in (noise(), prose(seed), drawn(lambda rng: rng.choice(STOCK), seed), Filler(lambda: iter(STOCK * 60))):
        made = plan([Statement("Hi.", 0.5)], filler, separator=" ")
        key = ExampleKey("x", seed, 0, Length(tokens=tokens))
        text = made.example(key, Meter(tokenizer)).document
        units = list(islice(filler.units(), 200))
        n = next(n for n in range(200) if insert(units[:n], made.statements, " ").text == text)
        more = insert(units[: n + 1], made.statements, " ").text
        assert tokenizer.count(text) <= tokens
        longest_unit = max(tokenizer.count(f" {unit}") for unit in units[: n + 1])
        assert tokens < tokenizer.count(more) + longest_unit


def test_filler_that_runs_out_is_an_error_with_the_fix(tokenizer):
    short = plan([Statement("Hi.", 0.5)], Filler(lambda: iter(STOCK), "the stock", "add to it"))
    with pytest.raises(ValueError, match=r"the stock has \d+ tokens and \d+ are needed; add to it"):
        short.example(ExampleKey("x", 0, 0, Length(tokens=900)), Meter(tokenizer))


def test_costs_in_prose_add_up_to_the_count_of_the_whole(tokenizer, monkeypatch):
    meter = Meter(tokenizer)
    parts = ["The mill stands.", "Rain fell, 12 days long.", "Nobody came.", "Document 7 is lost."] * 9
    for separator in (" ", "\n", "\n\n"):
        text = separator.join(["Once.", *parts])
        whole = tokenizer.count(text)
        assert whole == tokenizer.count("Once.") + sum(meter.cost(part, separator) for part in parts)
        monkeypatch.setattr(lengths, "BLOCK_CHARS", 50)
        assert meter.count(text) == whole


def test_a_plan_with_a_depth_outside_the_document_is_an_error():
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1.5"):
        plan([Statement("a", 1.5)])


def test_the_length_in_the_error_is_enough_for_all_examples(tokenizer) -> None:
    with pytest.raises(ValueError, match=r"alone need [0-9,]+ tokens and 400 were requested") as refused:
        list(make("multihop_2", 1, 0, tokenizer, length_tokens=400))
    enough = int(str(refused.value).partition("request at least ")[2].partition(", because")[0].replace(",", ""))
    assert len(list(make("multihop_2", 32, 0, tokenizer, length_tokens=enough))) == 32
