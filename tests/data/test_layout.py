"""The layout engine by itself: positions and spans of statements are true, whatever stands around them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent_lib.data import Length, Statement, fill_chunks, free_positions, insert, make, replace_units
from memagent_lib.data.layout import join, numbered_documents
from memagent_lib.text import chunks

UNITS = [f"Unit {i} of the filler." for i in range(40)]


def test_parts_are_joined_and_found_behind_their_headings():
    text, spans, positions = join(["one", "three", "five"], [2, 0], "\n\n", numbered=True)
    assert text == numbered_documents(["one", "three", "five"])
    assert text == "Document 1:\none\n\nDocument 2:\nthree\n\nDocument 3:\nfive"
    assert [text[start:end] for start, end in spans] == ["five", "one"]
    assert positions == [2, 0]


def test_statements_are_inserted_among_the_first_units_only():
    text, (span,), (position,) = insert(UNITS, [Statement("Here.", 1.0)], " ", among=3)
    assert position == 3
    assert text.startswith("Unit 0 of the filler. Unit 1 of the filler. Unit 2 of the filler. Here. Unit 3")
    assert text[slice(*span)] == "Here."


def test_statements_of_equal_depth_stay_in_order():
    statements = [Statement(name, 0.5) for name in ("b", "a", "c")]
    text, _, positions = insert(["x", "y"], statements, "|")
    assert text == "x|b|a|c|y"
    assert positions == [1, 2, 3]


@given(depths=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8), ordered=st.booleans())
def test_free_positions_never_meet_and_rise_where_ordered(depths, ordered):
    used = {2, 3}
    depths = sorted(depths) if ordered else depths
    found = free_positions(depths, 10, used, ordered)
    assert len({*found, 2, 3}) == len(depths) + 2
    assert used == {*found, 2, 3}
    assert all(position >= int(depth * 10) for position, depth in zip(found, depths, strict=True))
    if ordered:
        assert found == sorted(found)


def test_a_position_that_is_taken_moves_to_the_next_free_one():
    assert free_positions([0.5, 0.5, 0.0], 4, {3}) == [2, 4, 0]


def test_units_are_replaced_at_their_positions():
    layout = replace_units(["a", "b", "c", "d"], {1: "ONE", 3: "three"}, [3, 1], " ")
    assert layout.text == "a ONE c three"
    assert [layout.text[start:end] for start, end in layout.spans] == ["three", "ONE"]
    assert layout.positions == [3, 1]


@settings(max_examples=20, deadline=None)
@given(depth=st.floats(0, 1, exclude_max=True), number=st.integers(1, 5), size=st.integers(20, 60))
def test_filled_chunks_end_with_the_statements_last_token(tokenizer, depth, number, size):
    units = UNITS * 4
    length = Length(chunks=number, chunk_tokens=size)
    statement = Statement("The needle is here.", depth)
    layout = fill_chunks(lambda n: insert(units, [statement], " ", among=n), len(units), length, tokenizer)
    assert layout.text[slice(*layout.spans[0])] == statement.text
    assert len(chunks(layout.text, tokenizer, size)) == number
    start, end = layout.spans[0]
    rest = layout.text[:start] + layout.text[end:].lstrip()
    assert " ".join(units).startswith(rest.rstrip())


def test_statements_that_no_chunk_can_take_are_an_error(tokenizer):
    with pytest.raises(ValueError, match=r"task 'needle': 1x5 is too short for 1 statements; request more or longer"):
        list(make("needle", 1, 1, tokenizer, chunks=1, chunk_tokens=5))
