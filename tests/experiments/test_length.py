"""The table of the length study, from rows made by hand."""

from experiments.studies.length.__main__ import HERE
from experiments.studies.length.table import table
from memagent_lib.evaluation import gather_rows


def test_the_readme_holds_the_table_of_the_saved_scores():
    assert table(gather_rows(HERE / "scores")) in (HERE / "README.md").read_text(encoding="utf-8")
