"""What a question cost: means, medians and percentiles by hand, and failed readings left out."""

from __future__ import annotations

import pandas as pd
import pytest

from memagent_lib.evaluation import costs


@pytest.fixture
def rows() -> pd.DataFrame:
    """Three readings of one line and a failed one, and two readings of another line with the same score for more."""
    common = {"policy": "small", "reader": "overwrite", "task": "needle", "chunks": 4, "file": "a", "turns": 5.0}
    common |= {"rule": "boxed"}
    cheap = [
        common | {"example": str(i), "document": f"d{i}", "score": 1.0, "seconds": seconds, "prompt_tokens": 90.0}
        | {"reply_tokens": 10.0 * i}
        for i, seconds in enumerate((1.0, 2.0, 9.0))
    ]  # fmt: skip
    failed = common | {"example": "3", "document": "d3", "seconds": 99.0, "turns": None}
    dear = [row | {"policy": "large", "prompt_tokens": 900.0} for row in cheap[:2]]
    return pd.DataFrame([*cheap, failed, *dear])


def test_costs_are_of_readings_that_ended(rows) -> None:
    table = costs(rows).set_index("line")
    assert list(table.columns) == ["chunks", "n", "tokens", "turns", "seconds", "seconds_95"]
    assert table.loc["small"].to_list() == pytest.approx([4, 3, 100, 5, 2.0, 8.3])
    assert table.loc["large"].to_list() == pytest.approx([4, 2, 905, 5, 1.5, 1.95])
