"""What a person did wrong is one line in a notebook too, and a mistake of ours keeps its traceback."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("from memagent_lib import load; load('nowhere.parquet')", "MissingFile: no examples at nowhere.parquet; make"),
        ("from memagent_lib import panel; panel.show('nowhere')", "MissingFile: no training run at "),
        ("from memagent_lib.rl import Recipe; Recipe.load('nowhere.toml')", "SettingsError: no recipe at nowhere.toml"),
        ("from memagent_lib import open_agent; open_agent('./nowhere')", "MissingFile: no model folder './nowhere'"),
        (
            "from memagent_lib.evaluation import read_results; read_results('nowhere')",
            "MissingFile: no results at nowhere",
        ),
    ],
)
def test_a_cell_that_asks_for_what_is_not_there_ends_in_one_line(cell: str, said: str, capsys) -> None:
    shell = InteractiveShell.instance()
    shell.run_cell(cell)
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(said)
    shell.run_cell("{}['ours']")
    assert "Traceback" in capsys.readouterr().out
