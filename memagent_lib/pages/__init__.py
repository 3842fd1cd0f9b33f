"""HTML pages: one look, one template engine, everything that is put into them escaped.

Knows Jinja templates and files. Knows no result, no run and no model.
"""

from memagent_lib.pages.html_pages import Page, render

__all__ = ["Page", "render"]
