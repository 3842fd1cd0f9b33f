"""The table of the length study, from rows made by hand."""

import pandas as pd

from experiments.studies.length.__main__ import HERE
from experiments.studies.length.table import table
from memagent_lib.evaluation import gather_rows

_MEANS = dict.fromkeys(("capture", "retention", "turns", "cut_memories", "prompt_tokens"), 0.0)


def row(task: str, policy: str, reader: str, chunks: int, score: float | None) -> dict:
    known = {"task": f"pocket_{task}", "policy": policy, "reader": reader, "chunks": chunks, "score": score}
    return _MEANS | known | {"error": None if score is not None else "no engine"}


def test_the_readme_holds_the_table_of_the_saved_scores():
    assert table(gather_rows(HERE / "scores")) in (HERE / "README.md").read_text(encoding="utf-8")


def test_a_cell_is_empty_where_nothing_was_read():
    rows = pd.DataFrame(
        [
            *(row("update", "mine", "overwrite", 1, score) for score in (1.0, 0.0, None)),
            row("needle", "warm start", "overwrite", 1, 1.0),
            row("needle", "mine", "overwrite", 1024, 0.0),
            row("needle", "mine", "retrieved", 1, 1.0),
            row("needle", "mine", "blind", 1, 0.0),
        ]
    )
    assert table(rows).splitlines() == [
        "| score in % (95 % interval) | 1 chunk | 1,024 chunks |",
        "|---|---|---|",
        "| needle, warm start | 100.0 [20.7, 100.0] |  |",
        "| needle, mine |  | 0.0 [0.0, 79.3] |",
        "| needle, mine, passages retrieved | 100.0 [20.7, 100.0] |  |",
        "| update, mine | 50.0 [9.5, 90.5] |  |",
    ]


def test_questions_about_a_decoy_have_a_column_of_their_own():
    rows = pd.DataFrame(
        [
            row("needle", "trained", "overwrite", 16, 1.0),
            row("needle_decoy", "trained", "overwrite", 16, 0.0),
            row("needle", "trained", "overwrite", 256, 1.0),
        ]
    )
    assert table(rows).splitlines() == [
        "| score in % (95 % interval) | 16 chunks | 256 chunks | 16 chunks, about a decoy |",
        "|---|---|---|---|",
        "| needle, trained | 100.0 [20.7, 100.0] | 100.0 [20.7, 100.0] | 0.0 [0.0, 79.3] |",
    ]
