"""Pages that need no kernel and no network.

They display a document with its evidence; one reading, or two of the same example side by side, without script; or the
inspector with the widget's own script and its data. This module does not depend on runs or on the widget.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from memagent_lib.data import Example
from memagent_lib.evaluation import Result
from memagent_lib.inspector.readings import FATES, Readings
from memagent_lib.pages import Page, render

SAVE_TEXT = Path(__file__).with_name("save_text.js").read_text("utf-8")
"""The JavaScript function that saves a text as a file."""
SCRIPT = SAVE_TEXT + "".join(
    Path(__file__).with_name(name).read_text("utf-8") for name in ("inspector.js", "readings_table.js")
)
"""The inspector and its table of readings as one JavaScript module."""
ROOM_MB = 8.0
MOST_COMPRESSION = 10
"""What base64 of gzip leaves of the texts of readings is more than a tenth."""
_FATE_OF_LETTER = {fate.letter: fate for fate in FATES}
_WORST_LAST = "namhl"
"""The letters of fates as inspector.js orders them for bars of several turns."""
_MARGIN_CHARS = 160
_TIMELINE_WIDTH = 600
_BARS_BOTTOM = 26
_TALLEST_BAR = 22
_MOST_BARS_WITH_GAPS = 120


def introduction(entries: Sequence[Mapping[str, Any]], question: str = "", baseline: str = "") -> Page:
    """Return what was asked of which models, on which data, in three sentences, and the terms of the numbers.

    ``entries`` are result rows or entries of readings as mappings; ``question`` is one of the questions,
    and ``baseline`` the policy that the others are compared with.
    """
    names = ("task", "policy", "chunks", "document", "file")
    found = {name: dict.fromkeys(entry.get(name) or None for entry in entries) for name in names}
    # A table has a number that is not one where it has no length.
    known = {name: [value for value in values if value and value == value] for name, values in found.items()}
    return Page("", render("inspector/introduction.html", question=question, baseline=baseline, **known))


def document(example: Example, most_chars: int = 4000) -> Page:
    """Return an example's question and document with the evidence marked.

    If the document is longer than ``most_chars``, only the part around the first evidence is displayed.
    """
    text = example.document
    spans = sorted(example.evidence)
    # Around the first evidence; without any, from the beginning.
    middle = spans[0].start if spans else 0
    start = max(0, min(middle - most_chars // 2, len(text) - most_chars))
    excerpt = _excerpt(text, start, start + most_chars, spans)
    body = render("inspector/document.html", example=_about(example, len(text)), excerpt=excerpt)
    return Page(example.id, body)


def still(readings: Readings, state: Mapping[str, Any], live: str = "") -> Page:
    """Return the inspector's initial view as a page without script.

    A chunk that both readings have read appears once. ``live`` is the line of code that makes the page interactive
    again.
    """
    keys = readings.displayed(state)
    turns = [readings.notable(key) for key in keys]
    if state.get("turn") is not None:
        turns[0] = sorted({*turns[0], min(max(state["turn"], 0), len(readings.results[keys[0]].trace.turns) - 1)})
    if len({len(readings.results[key].trace.turns) for key in keys}) == 1:  # the turns of both can stand side by side
        turns = [sorted(set().union(*turns))] * len(keys)
    sides = [_side(readings, key, chosen) for key, chosen in zip(keys, turns, strict=True)]
    chunks = [[turn["chunk"] for turn in side["turns"]] for side in sides]
    same_chunks = all(read == chunks[0] for read in chunks)
    together = [sides] if same_chunks else [[side] for side in sides]
    groups = [(group, list(zip(*(side["turns"] for side in group), strict=True))) for group in together]
    first = readings.results[keys[0]]
    about = _about(first.example, first.characters)
    body = render("inspector/reading.html", example=about, groups=groups, live=live, fates=FATES)
    return Page(first.example.id, body)


def to_html(readings: Readings | Mapping[str, Iterable[Result]], room_mb: float = ROOM_MB, **opening: Any) -> Page:
    """Return the inspector as a page that needs no kernel and no network.

    Readings are included, compressed, until ``room_mb`` is full, starting with those of the example displayed first.
    The others are listed and marked. ``opening`` has the options of :func:`show`.
    """
    if not isinstance(readings, Readings):
        readings = Readings(readings)
    state = readings.opening(**opening)
    first = readings.results[state["key"]].example
    catalog = [entry | {"pack": None} for entry in readings.catalog()]
    questions: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in sorted(catalog, key=lambda entry: entry["example"] != first.id):
        questions[entry["example"], entry["document"], entry["question"]].append(entry)
    room = room_mb * 1e6
    packs: list[str] = []
    for entries in questions.values():
        keys = [entry["key"] for entry in entries]
        # To compress thousands that cannot fit would take minutes.
        if sum(map(readings.size, keys)) > MOST_COMPRESSION * room:
            continue
        # As inspector.js opens it; without a time, so that the same readings make the same page.
        pack = b64encode(gzip.compress(json.dumps(readings.pack(keys)).encode(), mtime=0)).decode()
        room -= len(pack)
        if room < 0:
            break
        for entry in entries:
            entry["pack"] = len(packs)
        packs.append(pack)
    data = {"catalog": catalog, "state": state, "room": f"{room_mb:g} MB", "packs": packs}
    # "</script>" inside a string would end the script element, and so would one inside a document's text.
    script = Markup(SCRIPT.replace("</", "<\\/"))
    escaped = Markup(json.dumps(data).replace("<", "\\u003c"))
    closed = sum(entry["pack"] is None for entry in catalog)
    counts = {"closed": closed, "all": len(catalog), "room": data["room"]}
    head = Markup(introduction(catalog, first.question).body)
    title = first.id if len(questions) == 1 else f"{len(catalog):,} readings"
    return Page(title, render("inspector/interactive.html", head=head, data=escaped, script=script, **counts))


def marked(text: str, spans: Sequence[Sequence[int]]) -> list[tuple[str, bool]]:
    """Cut a text at the ends of the spans; return each piece and whether it lies in a span.

    Spans may overlap and may reach beyond the text.
    """
    inside = [(max(0, start), min(end, len(text))) for start, end in spans if start < len(text) and end > 0]
    edges = sorted({0, len(text), *(edge for span in inside for edge in span)})
    return [(text[a:b], any(start <= a < end for start, end in inside)) for a, b in pairwise(edges)]


def _excerpt(text: str, start: int, end: int, spans: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return ``text[start:end]`` in pieces (:func:`marked`), and whether there is text before and after it."""
    pieces = marked(text[start:end], [(a - start, b - start) for a, b in spans])
    return {"pieces": pieces, "before": start > 0, "after": end < len(text)}


def _about(example: Example, characters: int) -> dict[str, Any]:
    """Return the question, and a description of the example as a list of short texts, for the head of a page."""
    metadata = example.metadata
    words = {"chunks": "{} chunks", "depth": "depth {:.0%}", "hops": "{} hops"}
    known = [text.format(metadata[name]) for name, text in words.items() if name in metadata]
    line = [example.id, *known, f"{characters:,} characters", f"accepted: {' | '.join(example.answers)}"]
    return {"question": example.question, "about": line}


def _side(readings: Readings, key: str, turns: Sequence[int]) -> dict[str, Any]:
    """Return one reading for the template. Each chosen turn has the number of turns left out before it."""
    story = readings.story(key)
    chosen = [
        _turn(readings.detail(key, turn)) | {"skipped": turn - last - 1, "credit": story["credit"][turn : turn + 1]}
        for last, turn in pairwise((-1, *turns))
    ]
    return {"entry": readings.entry(key), "timeline": _timeline(story), "turns": chosen}


def _turn(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn for the template, with its evidence and some text around it, or else the beginning of its chunk."""
    text = detail["chunk"]["text"] if detail["chunk"] else ""
    evidence = sorted(detail["evidence"])
    start = 0
    end = _MARGIN_CHARS
    if text and evidence:
        start = max(0, evidence[0][0] - _MARGIN_CHARS)
        end = evidence[-1][1] + _MARGIN_CHARS
    css = _FATE_OF_LETTER[detail["letter"]].css
    excerpt = _excerpt(text, start, end, evidence)
    return {**detail, "number": detail["turn"] + 1, "css": css, "excerpt": excerpt}


def _timeline(story: Mapping[str, Any]) -> dict[str, Any]:
    """Return bars, and marks at the turns with evidence. A bar is a turn; of a long reading, it is several turns.

    A bar's colour is the fate of the evidence, the worst one of several turns, and its height the length of the longest
    reply.
    """
    n = len(story["fates"])
    longest = max(story["tokens"], default=1) or 1
    number = min(n, _TIMELINE_WIDTH)
    width = _TIMELINE_WIDTH / max(1, number)
    # With hundreds of bars a gap would be wider than its bar.
    gap = 1 if number <= _MOST_BARS_WITH_GAPS else 0
    cut = set(story["cut"])
    bad = set(story["bad"])
    bars = []
    for bar, (first, end) in enumerate(pairwise(n * at // number for at in range(number + 1))):
        turns = range(first, end)
        fate = _FATE_OF_LETTER[max(story["fates"][first:end], key=_WORST_LAST.index)]
        height = 4 + _TALLEST_BAR * max(story["tokens"][first:end]) / longest  # an empty reply is visible too
        title = f"turn {end}: {fate.words}" if len(turns) == 1 else f"turns {first + 1:,} to {end:,}: {fate.words}"
        if not cut.isdisjoint(turns):
            title += "; cut"
        if not bad.isdisjoint(turns):
            title += "; a reply was not a memory"
        box = {"x": bar * width, "y": _BARS_BOTTOM - height, "width": width - gap, "height": height}
        bars.append({"css": fate.css, "title": title, **box})
    marks = dict.fromkeys(f"{(turn + 0.5) * _TIMELINE_WIDTH / n:.1f}" for turn in story["evidence"])
    return {"bars": bars, "marks": list(marks), "turns": n, "width": _TIMELINE_WIDTH}
