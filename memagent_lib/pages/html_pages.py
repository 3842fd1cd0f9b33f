"""HTML for notebooks and files, rendered from Jinja templates that escape every value."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from memagent_lib.paths import PACKAGE, write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment


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
        return write_atomically(path, render("pages/page.html", title=self.title, body=Markup(self.body)))


def render(template: str, **values: Any) -> Markup:
    """Render the template ``PACKAGE/NAME``, a file in the folder ``templates`` of that package of the library.

    The result can be passed as a value to another template.
    """
    return Markup(_environment().get_template(template).render(**values))


def style(sheet: str) -> str:
    """Return the shared style sheet of all pages, followed by the style sheet ``PACKAGE/NAME``."""
    return f"{_source('pages/base.css')}\n{_source(sheet)}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt value is an error instead of a blank
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(name: str) -> str:
    # Not PackageLoader: it imports its package, and rendering a page must not import verl.
    room, _, file = name.partition("/")
    return (PACKAGE / room / "templates" / file).read_text(encoding="utf-8")
