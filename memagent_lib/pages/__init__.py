"""HTML pages with a common look and template engine; every value is escaped.

This package depends on Jinja templates and files, not on results, runs or models.
"""

from memagent_lib.pages.html_pages import Page, render, style
from memagent_lib.pages.saved_copy import SavedCopy

__all__ = ["Page", "SavedCopy", "render", "style"]
