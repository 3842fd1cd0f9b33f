"""What notebook.prepare() changes: a figure has the page's colours, and stays a PNG for other viewers."""

from __future__ import annotations

import base64
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure

from memagent_lib import notebook
from memagent_lib.plots import svg_in_page_colours

FIGURE = """
from matplotlib.figure import Figure
figure = Figure(facecolor="none")
ax = figure.subplots()
ax.plot([1, 2], [3, 4])
ax.set_xlabel("length", color="#7a7a7a")
ax.text(1, 3, "trained", color="#00a376")
"""


@pytest.fixture
def shell():
    """A shell that displays errors and figures as a notebook of ours does; undone after the test."""
    shell = InteractiveShell.instance()
    select_figure_formats(shell, {"png"})  # as %matplotlib inline does
    notebook.prepare()
    yield shell
    shell.set_custom_exc((), None)
    shell.display_formatter.ipython_display_formatter.pop("matplotlib.figure.Figure")
    shell.display_formatter.formatters["image/png"].pop(Figure)


def test_a_figure_is_a_drawing_with_a_png_below(shell) -> None:
    shell.run_cell(FIGURE)
    with capture_output() as captured:
        shell.run_cell("from IPython.display import display\ndisplay(figure)")
    drawing, image = (output.data for output in captured.outputs)
    assert "<svg" in drawing["text/html"] and ".ma-figure svg" in drawing["text/html"]
    assert base64.b64decode(image["image/png"]).startswith(b"\x89PNG")


def test_a_figures_text_takes_the_colour_of_the_page() -> None:
    names: dict[str, object] = {}
    exec(FIGURE, names)
    svg = svg_in_page_colours(names["figure"])
    inks = {text: ink for ink, text in re.findall(r'<text [^>]*fill: ([^;"]+)[^>]*>\s*([a-z]+)\s*</text>', svg)}
    assert inks == {"length": "currentColor", "trained": "color-mix(in srgb, currentColor 50%, #00a376)"}
