"""The inspector as a page of its own: the same script, and what it shows embedded beside it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.evaluation import Result
from memagent_lib.workbench.html_pages import Page, markup, render
from memagent_lib.workbench.inspector.readings import Readings

SCRIPT = Path(__file__).parent / "inspector.js"
ROOM_MB = 8.0


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
    script = markup(SCRIPT.read_text(encoding="utf-8").replace("</", "<\\/"))
    escaped = markup(json.dumps(data).replace("<", "\\u003c"))
    counts = {"left_out": len(keys) - whole, "all": len(keys), "room": data["room"]}
    return Page(first["example"], render("interactive.html", data=escaped, script=script, **counts))
