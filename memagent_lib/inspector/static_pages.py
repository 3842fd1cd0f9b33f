"""Pages that need no kernel and no network: a document, one reading or two of the same example side by side without
script, and the inspector with the script of the widget and what it shows embedded beside it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from memagent_lib.data import Example
from memagent_lib.diagnostics import Fate
from memagent_lib.evaluation import Result
from memagent_lib.inspector.readings import LETTERS, Readings
from memagent_lib.pages import Page, render

SCRIPT = Path(__file__).parent / "inspector.js"
ROOM_MB = 8.0
FATES = {letter: fate.name.lower() if fate else "none" for fate, letter in LETTERS.items()}
FATE_WORDS = {fate.name.lower(): fate for fate in Fate}
_MARGIN_CHARS = 160
_LINE_WIDTH, _LINE_HEIGHT, _TALLEST = 600, 26, 22
_GAPS_UP_TO = 120  # bars; between more there is no room for gaps


def document(example: Example, most_chars: int = 4000) -> Page:
    """An example's question and document with its evidence marked; of a long document, the part around the evidence."""
    text, spans = example.document, sorted(example.evidence)
    middle = spans[0].start if spans else 0
    start = max(0, min(middle - most_chars // 2, len(text) - most_chars))
    end = min(len(text), start + most_chars)
    shown = marked(text[start:end], [(a - start, b - start) for a, b in spans])
    body = {"example": _about(example, len(text)), "pieces": shown, "before": start > 0, "after": end < len(text)}
    return Page(example.id, render("inspector/document.html", **body))


def still(readings: Readings, state: Mapping[str, Any], live: str = "") -> Page:
    """What the inspector opens with, without script; a chunk that both have read is shown once. ``live`` is the line of
    code that makes it interactive again.
    """
    keys = [state["key"]]
    if (other := readings.beside(readings.entry(keys[0]), state["beside"])) is not None:
        keys.append(other["key"])
    turns = [readings.notable(key) for key in keys]
    if len({len(readings.results[key].trace.turns) for key in keys}) == 1:  # turn beside turn
        turns = [sorted(set().union(*turns))] * len(keys)
    sides = [_side(readings, key, shown) for key, shown in zip(keys, turns, strict=True)]
    chunks = [[turn["chunk"] for turn in side["turns"]] for side in sides]
    together = [sides] if all(read == chunks[0] for read in chunks) else [[side] for side in sides]
    groups = [(group, list(zip(*(side["turns"] for side in group), strict=True))) for group in together]
    first = readings.results[keys[0]]
    about = _about(first.example, first.characters)
    body = render("inspector/reading.html", example=about, groups=groups, live=live, fate_words=FATE_WORDS)
    return Page(first.example.id, body)


def to_html(
    readings: Readings | Mapping[str, Iterable[Result]],
    room_mb: float = ROOM_MB,
    first_keys: Collection[str] = (),
    **opening: Any,
) -> Page:
    """The inspector as a page of its own that needs no kernel and no network. Readings go in whole, ``first_keys`` and
    those that it opens with first, until ``room_mb`` is full; where one had no room, the page says so.
    """
    readings = readings if isinstance(readings, Readings) else Readings(readings)
    state = readings.opening(**opening)
    first = readings.entry(state["key"])

    def later(key: str) -> bool:
        return key not in first_keys and readings.results[key].example.id != first["example"]

    keys = sorted(readings.results, key=later)
    kept = readings.embedded(keys, room_mb * 1e6)
    data = {"catalog": readings.catalog(), "state": state, "room": f"{room_mb:g} MB", **kept}
    whole = sum(len(kept["details"].get(key, ())) == len(readings.results[key].trace.turns) for key in keys)
    script = Markup(SCRIPT.read_text(encoding="utf-8").replace("</", "<\\/"))
    escaped = Markup(json.dumps(data).replace("<", "\\u003c"))
    counts = {"left_out": len(keys) - whole, "all": len(keys), "room": data["room"]}
    return Page(first["example"], render("inspector/interactive.html", data=escaped, script=script, **counts))


def marked(text: str, spans: Sequence[Sequence[int]]) -> list[tuple[str, bool]]:
    """A text in pieces, and of each whether it lies in one of the spans, which are in order."""
    inside = [(max(0, start), min(end, len(text))) for start, end in spans if start < len(text) and end > 0]
    edges = sorted({0, len(text), *(edge for span in inside for edge in span)})
    return [(text[a:b], any(start <= a < end for start, end in inside)) for a, b in pairwise(edges)]


def _about(example: Example, characters: int) -> dict[str, Any]:
    known = {"chunks": "{} chunks", "depth": "depth {:.0%}", "hops": "{} hops"}
    metadata = [told.format(example.metadata[name]) for name, told in known.items() if name in example.metadata]
    facts = [example.id, *metadata, f"{characters:,} characters", f"accepted: {' | '.join(example.answers)}"]
    return {"question": example.question, "facts": facts}


def _side(readings: Readings, key: str, turns: Sequence[int]) -> dict[str, Any]:
    shown = [_turn(readings.detail(key, turn)) | {"skipped": turn - last - 1} for last, turn in pairwise((-1, *turns))]
    return {"entry": readings.entry(key), "line": _timeline(readings.story(key)), "turns": shown}


def _turn(detail: Mapping[str, Any]) -> dict[str, Any]:
    """A turn for the template: evidence with some text around it, or the beginning of a chunk without any."""
    chunk, evidence = detail["chunk"], detail["evidence"]
    excerpt = {"pieces": [], "before": False, "after": False}
    if chunk and chunk["text"]:
        start = max(0, evidence[0][0] - _MARGIN_CHARS) if evidence else 0
        end = min(len(chunk["text"]), (evidence[-1][1] if evidence else 0) + _MARGIN_CHARS)
        pieces = marked(chunk["text"][start:end], [(a - start, b - start) for a, b in evidence])
        excerpt = {"pieces": pieces, "before": start > 0, "after": end < len(chunk["text"])}
    return {**detail, "number": detail["turn"] + 1, "css": FATES[detail["letter"]], "excerpt": excerpt}


def _timeline(story: Mapping[str, Any]) -> dict[str, Any]:
    """A bar per turn: the facts' fate its colour, the reply's length its height, a triangle where evidence is."""
    n, longest = len(story["fates"]), max(story["tokens"], default=1) or 1
    pitch = _LINE_WIDTH / max(1, n)
    bars = []
    for turn, (letter, tokens) in enumerate(zip(story["fates"], story["tokens"], strict=True)):
        height = 4 + _TALLEST * tokens / longest
        css = FATES[letter]
        told = f"turn {turn + 1}: {FATE_WORDS.get(css, 'no memory')}" + ("; cut" if turn in story["cut"] else "")
        width = pitch - 1 if n <= _GAPS_UP_TO else pitch
        place = {"x": turn * pitch, "y": _LINE_HEIGHT - height, "width": width, "height": height}
        bars.append({"css": css, "told": told, **{name: f"{value:.2f}" for name, value in place.items()}})
    marks = [f"{(turn + 0.5) * pitch:.1f}" for turn in story["evidence"]]
    return {"bars": bars, "marks": marks, "turns": n, "width": _LINE_WIDTH}
