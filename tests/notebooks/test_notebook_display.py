"""What notebook.prepare() changes."""

from __future__ import annotations

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from memagent_lib import notebook


@pytest.fixture
def shell():
    """A shell that displays tables and errors as a notebook of ours does; undone after the test."""
    shell = InteractiveShell.instance()
    options = ("display.html.use_mathjax", "styler.html.mathjax")
    before = {option: pd.get_option(option) for option in options}
    notebook.prepare()
    yield shell
    for option, value in before.items():
        pd.set_option(option, value)
    shell.set_custom_exc((), None)


def test_prices_in_a_table_are_no_formulas(shell) -> None:
    table = pd.DataFrame({"reply": ["$5 and not $6"]})
    assert all("mathjax_ignore" in html for html in (table._repr_html_(), table.style.to_html()))


def test_one_value_is_a_list_of_one() -> None:
    given = ["contract.pdf", 16, None, [4, 16], ("a",)]
    assert [notebook.listed(value) for value in given] == [["contract.pdf"], [16], [], [4, 16], ["a"]]
