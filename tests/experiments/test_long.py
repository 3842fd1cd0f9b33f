"""The long tables of the READMEs are what the kept scores say."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.long import KEPT, short, table
from memagent_lib.evaluation import gather_rows

ROOT = Path(__file__).parents[2]
_MEANS = dict.fromkeys(("capture", "retention", "turns", "cut_memories", "prompt_tokens"), 0.0)


def row(task: str, policy: str, reader: str, chunks: int, score: float | None) -> dict:
    known = {"task": f"pocket_{task}", "policy": policy, "reader": reader, "chunks": chunks, "score": score}
    return _MEANS | known | {"error": None if score is not None else "no engine"}


def test_a_line_for_task_policy_and_reader_and_an_empty_cell_where_nothing_was_read():
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
    assert table(short(rows)).splitlines()[2:] == ["| needle, warm start | 100.0 [20.7, 100.0] |"]


@pytest.mark.parametrize(("page", "shown"), [("README.md", short), ("experiments/pocket/README.md", lambda rows: rows)])
def test_the_readmes_hold_the_table_of_the_kept_scores(page, shown):
    made = table(shown(gather_rows(KEPT))).splitlines()
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    begin = lines.index(made[0])
    assert lines[begin : lines.index("", begin)] == made
