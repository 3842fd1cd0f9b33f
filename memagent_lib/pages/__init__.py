"""HTML pages with a common look and template engine; every value is escaped.

Knows Jinja templates and files. Knows no result, no run and no model.
"""

from memagent_lib.pages.html_pages import Page, render, style

__all__ = ["Page", "render", "style"]
