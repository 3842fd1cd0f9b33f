from __future__ import annotations

import re
from pathlib import Path

import pytest

from memagent_lib.diagnostics import Fate
from memagent_lib.workbench.inspector import compare, document, page, pick
from memagent_lib.workbench.inspector.story import changes, notable, story


def test_the_fate_of_a_fact_is_told_turn_by_turn(kept, lost) -> None:
    assert [s.fate for s in story(kept)] == [Fate.AHEAD, Fate.HELD, Fate.HELD, Fate.HELD, Fate.HELD]
    assert [s.fate for s in story(lost)] == [Fate.AHEAD, Fate.HELD, Fate.LOST, Fate.LOST, Fate.LOST]


def test_evidence_is_found_in_the_chunk_that_holds_it(kept) -> None:
    marked = [[s.turn.prompt.chunk.text[a:b] for a, b in s.evidence] for s in story(kept) if s.turn.prompt.chunk]
    assert marked[0] == marked[2] == marked[3] == []
    assert marked[1] == ["The code of the bold owl is 4711."]


def test_changes_put_together_are_both_memories() -> None:
    before, after = "The code of the bold owl is 4711.", "The code of the shy owl is 9, I think."
    pieces = changes(before, after)
    assert "".join(p.text for p in pieces if p.change != "new") == before
    assert "".join(p.text for p in pieces if p.change != "gone") == after
    assert [p.text for p in pieces if p.change == "gone"] == ["bold", "4711"]


def test_the_notable_turns_hold_evidence_change_and_end(lost) -> None:
    assert [s.index for s in notable(story(lost))] == [0, 1, 2, 3, 4]
    assert [s.index for s in notable(story(lost), most=4)] == [1, 2, 3, 4]


def test_text_of_documents_and_memories_is_never_markup(lost, kept) -> None:
    shown = compare(lost, lost).body
    said = re.sub("<del>.*?</del>|</?ins>", "", shown)
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in said
    assert "&lt;b&gt;" in said


def test_the_pair_picked_is_one_that_was_lost_on_the_left_and_right_on_the_right(kept, lost) -> None:
    from dataclasses import replace

    lost_twin = replace(lost, example=replace(lost.example, id="twin"))
    kept_twin = replace(kept, example=replace(kept.example, id="twin"))
    assert pick([kept, lost_twin], [kept_twin, kept]) == (lost_twin, kept_twin)
    with pytest.raises(ValueError, match="no example in common"):
        pick([kept], [lost])
    with pytest.raises(ValueError, match="one example are compared, got 'kept' and 'lost'"):
        compare(kept, lost)


def test_a_page_stands_alone(kept, tmp_path: Path) -> None:
    text = page(kept, "trained").save(tmp_path / "deep" / "page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "http" not in text
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["page.html"]


def test_a_document_is_shown_with_its_needle_marked(kept) -> None:
    assert "<mark>The code of the bold owl is 4711.</mark>" in document(kept.example).body
    assert "<mark>The code of the bold owl is 4711.</mark>" in document(kept.example, most_chars=80).body
