"""HTML for notebooks and files, rendered from Jinja templates that escape every value.

This module depends on templates and files, not on results, runs or models.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from memagent_lib.paths import PACKAGE, write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

LEAST_S = 10.0
"""The least time between two updates of a copy, because the notebook of an open tab gets every one."""
# A converted notebook loads its widgets over the network, in vain without one. Its outputs have JupyterLab's own
# classes, so one rule serves the notebook and its copies.
_HIDE = "<style>.jp-OutputArea-child:has(.%s) + .jp-OutputArea-child:has(.ma-saved-copy) { display: none; }</style>"


@dataclass(frozen=True)
class Page:
    """A piece of HTML with a title. Its body includes its own style sheet."""

    title: str
    body: str = field(repr=False)

    def _repr_html_(self) -> str:
        # Else JupyterLab draws what stands between two dollar signs, such as prices, as a formula.
        return f'<div class="mathjax_ignore">{self.body}</div>'

    def save(self, path: str | Path) -> Path:
        """Write a self-contained page that follows the browser's light or dark theme."""
        return write_atomically(path, render("page.html", title=self.title, body=Markup(self.body)))


def render(template: str, **values: Any) -> Markup:
    """Render the template ``ROOM/NAME``, a file in the folder ``templates`` of that room of the library."""
    return Markup(_environment().get_template(template).render(**values))


def style(sheet: str) -> str:
    """Return the shared style sheet of all pages, followed by the style sheet ``ROOM/NAME``."""
    return f"{_source('base.css')}\n{_source(sheet)}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    # A misspelt value is an error instead of a blank.
    loader = FunctionLoader(_source)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _source(name: str) -> str:
    # Not PackageLoader: it imports its package, and rendering a page must not import verl.
    room, _, file = name.rpartition("/")
    return (PACKAGE / room / "templates" / file).read_text(encoding="utf-8")


class SavedCopy:
    """A page that a notebook stores below a live widget, and displays only where the widget does not appear.

    ``data`` and ``metadata`` are the MIME bundle of the widget. ``live`` is a CSS class inside it, by which the page
    finds out that the widget is displayed.
    """

    def __init__(self, page: Page, live: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        from IPython.display import HTML, display

        self._live = live
        self._state: object = None
        self._at = time.monotonic()
        display(dict(data), metadata=dict(metadata), raw=True)
        self._handle = display(HTML(self._markup(page)), display_id=True)

    def is_due(self, state: object) -> bool:
        """Return whether to update: ``state`` is new, and the last update was at least :data:`LEAST_S` seconds ago."""
        return state != self._state and time.monotonic() >= self._at + LEAST_S

    def update(self, page: Page, state: object) -> None:
        """Replace the page by that of a new ``state``."""
        from IPython.display import HTML

        self._state = state
        self._at = time.monotonic()
        if self._handle is not None:  # there is none outside IPython
            self._handle.update(HTML(self._markup(page)))

    def _markup(self, page: Page) -> str:
        return f'{_HIDE % self._live}<div class="ma-saved-copy">{page._repr_html_()}</div>'
