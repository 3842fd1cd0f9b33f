"""What notebook.prepare() changes: a figure has the page's colours, and stays a PNG for other viewers."""

from __future__ import annotations

import base64
import re

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure

from memagent_lib import notebook
from memagent_lib.plots import COLOURS, accuracy_by_depth, svg_in_page_colours

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
    options = ("display.html.use_mathjax", "styler.html.mathjax")
    before = {option: pd.get_option(option) for option in options}
    notebook.prepare()
    yield shell
    for option, value in before.items():
        pd.set_option(option, value)
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


def test_prices_in_a_table_are_no_formulas(shell) -> None:
    table = pd.DataFrame({"reply": ["$5 and not $6"]})
    assert all("mathjax_ignore" in html for html in (table._repr_html_(), table.style.to_html()))


def test_one_value_is_a_list_of_one() -> None:
    given = ["contract.pdf", 16, None, [4, 16], ("a",)]
    assert [notebook.listed(value) for value in given] == [["contract.pdf"], [16], [], [4, 16], ["a"]]


def test_a_figures_text_takes_the_colour_of_the_page() -> None:
    names: dict[str, object] = {}
    exec(FIGURE, names)
    svg = svg_in_page_colours(names["figure"])
    inks = {text: ink for ink, text in re.findall(r'<text [^>]*fill: ([^;"]+)[^>]*>\s*([a-z]+)\s*</text>', svg)}
    assert inks == {"length": "currentColor", "trained": "color-mix(in srgb, currentColor 50%, #00a376)"}


def test_labels_on_a_heat_map_are_those_of_its_cells() -> None:
    rows = pd.DataFrame({"policy": "p", "reader": "overwrite", "chunks": [4, 16], "depth": 0.1, "score": [0.0, 1.0]})
    svg = svg_in_page_colours(accuracy_by_depth(rows, bins=1).figure)
    inks = {ink for ink, _ in re.findall(r'<text [^>]*fill: ([^;"]+)[^>]*>\s*([0-9]+ %|n=1)\s*</text>', svg)}
    assert inks == {"#ffffff", "#262626"}
    assert 'role="img" aria-label="Does the position of the evidence matter?"' in svg


def test_exponents_take_the_colour_of_the_page() -> None:
    names: dict[str, object] = {}
    exec(FIGURE, names)
    names["ax"].set_yscale("log")
    names["ax"].tick_params(labelcolor="#7a7a7a", which="both")
    assert "fill: #7a7a7a" not in svg_in_page_colours(names["figure"])


@pytest.mark.parametrize("colour", [*COLOURS, "#00a376", "#d55e00"])
@pytest.mark.parametrize(("ink", "paper"), [("#212121", "#ffffff"), ("#e0e0e0", "#111111")])
def test_coloured_text_has_a_contrast_of_four_and_a_half(colour: str, ink: str, paper: str) -> None:
    """In JupyterLab's light and dark theme. Half of a text's colour is the theme's ink, as its style sheets state."""
    mixed = [(one + other) / 2 for one, other in zip(channels(colour), channels(ink), strict=True)]
    light, dark = sorted((luminance(mixed), luminance(channels(paper))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def channels(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def luminance(rgb: list[float]) -> float:
    """Return the relative luminance as WCAG 2.1 defines it."""
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
