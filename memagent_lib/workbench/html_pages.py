"""HTML that a notebook shows and a file keeps, from Jinja templates that escape all that is put into them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from memagent_lib.files import write_atomically

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
        return write_atomically(path, render("page.html", title=self.title, body=Markup(self.body)))


def render(template: str, **values: Any) -> Markup:
    """A template of the workbench's rooms, filled in, as markup that can go into another template as it is."""
    return Markup(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    loader = FileSystemLoader([HERE / "templates", HERE / "inspector" / "templates", HERE / "panel" / "templates"])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
