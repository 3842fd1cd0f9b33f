"""HTML that a notebook shows and a file keeps, from Jinja templates that escape all that is put into them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.files import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """A piece of HTML: a title, and a body that brings its style along."""

    title: str
    body: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.body

    def save(self, path: str | Path) -> Path:
        """Write a page of its own that opens anywhere, in light and in dark."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render("page.html", title=self.title, body=markup(self.body)))
        return path


def render(template: str, **values: Any) -> Markup:
    """A template of the workbench's rooms, filled in, as markup that can go into another template as it is."""
    return markup(_environment().get_template(template).render(**values))


def markup(html: str) -> Markup:
    """Mark a string as HTML of our own making, not to be escaped again."""
    from markupsafe import Markup

    return Markup(html)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folders = [HERE / "templates", HERE / "inspector" / "templates", HERE / "panel" / "templates"]
    return Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
