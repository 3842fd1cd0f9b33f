"""A page below a widget, for viewers that cannot display the widget."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from memagent_lib.pages.html_pages import Page

LEAST_S = 10.0
"""The least time between two updates of a copy, because the notebook of an open tab gets every one."""
# A converted notebook loads its widgets over the network, in vain without one. Its outputs have JupyterLab's own
# classes, so one rule serves the notebook and its copies.
_HIDE = "<style>.jp-OutputArea-child:has(.%s) + .jp-OutputArea-child:has(.ma-saved-copy) { display: none; }</style>"


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
