from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

from memagent_lib.evaluation import Result
from memagent_lib.inspector import Readings, document, show, to_html
from memagent_lib.inspector.readings import word_changes
from memagent_lib.inspector.static_pages import _turn, still
from memagent_lib.pages import Page


def page(*results: Result) -> Page:
    """The still page of readings of one example by policies a, b, ..."""
    readings = Readings({name: [result] for name, result in zip("ab", results, strict=False)})
    return still(readings, readings.opening(policy="a"))


def test_word_changes_put_together_are_both_memories() -> None:
    before, after = "The code of the bold owl is 4711.", "The code of the shy owl is 9, I think."
    pieces = word_changes(before, after)
    assert "".join(text for text, change in pieces if change != "new") == before
    assert "".join(text for text, change in pieces if change != "gone") == after
    assert [text for text, change in pieces if change == "gone"] == ["bold", "4711"]


def test_turns_that_do_not_matter_are_left_out_and_counted(long_reading) -> None:
    body = page(long_reading(turns=40, noted=10, lost=20, cut=30)).body
    assert [int(n) for n in re.findall(r"turn (\d+): chunk", body)] == [1, 11, 21, 31, 40]
    assert [int(n) for n in re.findall(r"(\d+) turns? left out", body)] == [9, 9, 9, 8]
    assert body.count("<rect") == 41


def test_text_of_documents_and_memories_is_never_markup(lost) -> None:
    body = page(lost, lost).body
    text = re.sub("<del>.*?</del>|</?ins>", "", body)
    assert "<script" not in body
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;b&gt;" in text


def test_a_documents_needle_is_marked(kept) -> None:
    assert "<mark>The code of the bold owl is 4711.</mark>" in document(kept.example).body
    assert "<mark>The code of the bold owl is 4711.</mark>" in document(kept.example, most_chars=80).body


def test_a_turn_displays_its_evidence_in_any_order() -> None:
    spans = [[1900, 1910], [10, 20]]  # of a chain, whose first fact may stand last
    turn = _turn({"chunk": {"text": "a" * 2000}, "evidence": spans, "letter": "n", "turn": 0})
    assert "".join(piece for piece, is_evidence in turn["excerpt"]["pieces"] if is_evidence) == "a" * 20


def test_an_executed_copy_gets_a_still_page(kept, lost, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    still = show({"before": [kept, lost], "after": [replace(lost, trace=kept.trace, score=kept.score)]})
    assert isinstance(still, Page) and "<script" not in still.body
    assert re.findall(r"<h4>(\w+) <b class=\"ma-(\w+)\"", still.body) == [("before", "wrong"), ("after", "right")]
    assert still.body.count("<mark>The code of the bold owl is 4711.</mark>") == 1  # the chunk that both have read
    assert re.findall(r"turn (\d): chunk", still.body) == ["1", "2", "3", "4"]
    assert "run the cells of this notebook again" in still.body


def test_an_interactive_page_never_contains_a_documents_markup(kept, lost) -> None:
    body = to_html({"before": [kept, lost]}, example="lost").body
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', body, re.S)[1]
    pack, _ = json.loads(data)["packs"]
    assert "<" not in data and b"<b>bold</b>" in gzip.decompress(b64decode(pack))


def test_a_page_counts_and_marks_the_readings_that_do_not_fit(kept, lost) -> None:
    def closed(room_mb: float) -> dict[str, bool]:
        body = to_html({"before": [kept, lost]}, room_mb=room_mb, example="lost").body
        data = json.loads(re.search(r'id="data">(.*?)</script>', body, re.S)[1])
        sizes.append(sum(map(len, data["packs"])))
        marked = {entry["example"]: entry["pack"] is None for entry in data["catalog"]}
        assert ("readings are listed and do not open" in body) == any(marked.values())
        return marked

    sizes: list[int] = []
    assert closed(8) == {"lost": False, "kept": False}
    assert closed(sizes[0] / 1e6) == {"lost": False, "kept": False}, "room counts what the page takes"
    assert closed((sizes[0] - 1) / 1e6) == {"lost": False, "kept": True}
    assert sizes[-1] < sizes[0]
