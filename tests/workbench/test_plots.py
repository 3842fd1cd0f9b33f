from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest

from memagent_lib import plots
from memagent_lib.evaluate import wilson

matplotlib.use("agg")


@pytest.fixture
def results() -> pd.DataFrame:
    """Right answers known exactly: two policies and a baseline, unequal n at each length."""
    right = {
        ("before", "overwrite"): {4: (6, 8), 64: (1, 4)},
        ("after", "overwrite"): {4: (8, 8), 64: (3, 4)},
        ("after", "blind"): {4: (0, 8), 64: (1, 4)},
    }
    rows = []
    for (policy, reader), lengths in right.items():
        for chunks, (hits, n) in lengths.items():
            kept = reader == "overwrite"
            facts = {
                "policy": policy,
                "reader": reader,
                "chunks": chunks,
                "chunk_tokens": 128,
                "error": None,
                "turns": 1,
                "cut_memories": 0,
                "prompt_tokens": 9,
            }
            rows += [
                facts | {"score": float(i < hits), "captured": True if kept else None, "retained": i < hits if kept else None}
                for i in range(n)
            ]
    return pd.DataFrame(rows)


def test_accuracy_is_drawn_at_its_value_with_its_wilson_interval(results: pd.DataFrame) -> None:
    ax = plots.accuracy_by_length(results)
    lines = [line for line in ax.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in lines] == [[1.0, 0.75], [0.75, 0.25]]
    band = ax.collections[-1].get_paths()[0].vertices[:, 1]
    expected = [wilson(6, 8), wilson(1, 4)]
    assert {round(v, 6) for v in band} >= {round(v, 6) for rate in expected for v in (rate.low, rate.high)}
    assert ax.get_xscale() == "log"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["4\n512", "64\n8K"]
    assert {t.get_text() for t in ax.texts} >= {"before", "after", "n = 4 to 8 per point, 95 % Wilson intervals"}


def test_a_policy_has_the_same_colour_in_every_figure(results: pd.DataFrame) -> None:
    ends = [
        {t.get_text().partition(":")[0]: t.get_color() for t in ax.texts}
        for ax in (plots.accuracy_by_length(results), plots.capture_and_retention(results))
    ]
    assert ends[0]["before"] == ends[1]["before"] == plots.COLOURS[0]
    assert ends[0]["after"] == ends[1]["after"] == plots.COLOURS[1]


def test_capture_and_retention_leave_out_readers_without_a_memory(results: pd.DataFrame) -> None:
    ax = plots.capture_and_retention(results)
    assert [list(line.get_ydata()) for line in ax.lines] == [[1.0, 1.0], [0.75, 0.25], [1.0, 1.0], [1.0, 0.75]]


def test_labels_of_lines_that_end_together_do_not_cover_one_another() -> None:
    ax = plots._axes(None, 5, 4)
    ax.set_ylim(0, 1)
    plots._label_ends(ax, [(1, 0.5, name, "black") for name in "abc"] + [(1, 1.0, "top", "black")])
    heights = sorted(text.xy[1] for text in ax.texts)
    assert min(np.diff(heights)) > 0.05
    assert heights[-1] <= 1.0


def test_the_reward_curve_is_the_running_mean_and_an_unknown_metric_names_the_known() -> None:
    curve = pd.DataFrame({"run_id": "a", "metric": "reward", "step": [1, 2, 3], "value": [0.0, 1.0, 0.5]})
    ax = plots.reward_curve(curve, metric="reward", window=2)
    assert list(ax.lines[-1].get_ydata()) == [0.0, 0.5, 0.75]
    with pytest.raises(ValueError, match="no metric 'loss'; it has reward"):
        plots.reward_curve(curve, metric="loss")


def test_memory_by_turn_draws_the_mean_and_marks_what_was_cut() -> None:
    turns = pd.DataFrame(
        {
            "kind": ["read"] * 4 + ["answer"],
            "turn": [0, 1, 0, 1, 2],
            "reply_tokens": [10, 20, 20, 32, 3],
            "finish_reason": ["stop"] * 3 + ["length", "stop"],
        }
    )
    ax = plots.memory_by_turn(turns)
    assert list(ax.lines[0].get_ydata()) == [15, 26]
    assert [tuple(p) for p in ax.lines[1].get_xydata()] == [(1, 32)]
