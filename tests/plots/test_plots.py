from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from memagent_lib import plots
from memagent_lib.data import data_files, make, save
from memagent_lib.evaluation import against, paired, wilson
from memagent_lib.plots.style import COLOURS, GREY

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def figures_are_closed():
    yield
    plt.close("all")


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
            has_memory = reader == "overwrite"
            shared = {
                "document_chars": 500 * chunks,
                "policy": policy,
                "reader": reader,
                "chunks": chunks,
                "chunk_tokens": 128,
                "error": None,
                "turns": 1,
                "cut_memories": 0,
                "prompt_tokens": 9 * (chunks if has_memory else 1),
                "reply_tokens": 1,
                "seconds": 0.5 * chunks,
                "capture": 1.0 if has_memory else None,
            }
            rows += [
                shared
                | {
                    "example": f"{chunks}-{i}",
                    "document": f"document {chunks}-{i}",
                    "answers": str(i),
                    "score": float(i < hits),
                    "depth": (i + 0.5) / n,
                    "retention": float(i < hits) if has_memory else None,
                }
                for i in range(n)
            ]
    return pd.DataFrame(rows)


def one_line(results: pd.DataFrame) -> pd.DataFrame:
    return results[(results["policy"] == "before") & (results["reader"] == "overwrite")]


def labelled(ax) -> dict[str, list]:
    """Return the values of each line that a legend names."""
    return {line.get_label(): list(line.get_ydata()) for line in ax.lines if not line.get_label().startswith("_")}


def legend_of(ax) -> list[str]:
    (legend,) = ax.figure.legends
    return [text.get_text() for text in legend.get_texts()]


def texts(ax) -> set[str]:
    return {text.get_text() for text in ax.texts}


def test_accuracy_has_its_value_and_its_wilson_interval(results: pd.DataFrame) -> None:
    ax = plots.accuracy_by_length(results)
    assert labelled(ax) == {"before": [0.75, 0.25], "after": [1.0, 0.75], "after, blind": [0.0, 0.25]}
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    expected = [wilson(6, 8), wilson(1, 4)]
    assert {round(v, 6) for v in band} >= {round(v, 6) for rate in expected for v in (rate.low, rate.high)}
    assert [t.get_text() for t in ax.get_xticklabels()] == ["4\n512", "64\n8K"]
    assert "n = 4 to 8 questions per point, 95 % Wilson intervals" in texts(ax)
    assert legend_of(ax) == ["before", "after", "after, blind"]


def test_captions_count_the_documents_that_questions_share(results: pd.DataFrame) -> None:
    two = results["chunks"].astype(str) + results["example"].str[-1].isin(list("02468")).astype(str)
    shared = results.assign(document=two)  # two documents of each length
    ax = plots.accuracy_by_length(shared)
    assert "n = 4 to 8 questions on 2 documents, 95 % intervals over documents" in texts(ax)


def test_lines_that_a_figure_lacks_keep_their_colours(results: pd.DataFrame) -> None:
    failed = results[results["policy"] == "before"].assign(policy="failed", score=np.nan, turns=np.nan, capture=np.nan)
    rows = pd.concat([failed, results])
    for draw in (plots.accuracy_by_length, plots.cost_by_length):
        colours = {line.get_label().partition(":")[0]: line.get_color() for line in draw(rows).lines}
        assert [colours["before"], colours["after"]] == list(COLOURS[1:3])


def test_evidence_outcomes_divide_the_facts_of_a_task_and_length(results: pd.DataFrame) -> None:
    """A reading may need several facts; a reader without a memory has none."""
    lost = "noted and lost after {} to another value"
    right = "in memory | in memory"
    wrong = f"{lost.format('9 turns')} | {lost.format('1 turn')}"
    outcomes = results["score"].map({1.0: right, 0.0: wrong}).where(results["reader"] == "overwrite")
    rows = results.assign(task="hop", outcomes=outcomes)
    first = rows.index[rows["score"] == 0][0]
    rows.loc[first, "outcomes"] = "in memory | read but never noted"
    ax = plots.evidence_outcomes(rows)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["hop, 4 chunks: before", "hop, 4 chunks: after", "hop, 64 chunks: before", "hop, 64 chunks: after"]
    drawn = {bars.get_label(): [bar.get_width() for bar in bars] for bars in ax.containers}
    assert {name: widths for name, widths in drawn.items() if any(widths)} == {
        "in memory, right": [6 / 8, 1, 1 / 4, 3 / 4],
        "in memory, wrong": [1 / 16, 0, 0, 0],
        "noted and lost to another value": [2 / 16, 0, 3 / 4, 1 / 4],
        "read but never noted": [1 / 16, 0, 0, 0],
    }
    assert np.allclose(np.sum(list(drawn.values()), axis=0), 1)
    assert [text.get_text() for text in ax.texts if "(" in text.get_text()] == ["5 (1 to 9)"] * 3


def test_a_figure_without_data_says_why_instead_of_empty_axes(results: pd.DataFrame) -> None:
    failed = results.assign(score=np.nan, turns=np.nan, error="no server")
    one = one_line(results)
    drawn = [
        plots.accuracy_by_length(failed),
        plots.accuracy_by_task(pd.concat([failed.assign(task="update"), results.assign(task="needle")])),
        plots.cost_by_length(failed),
        plots.evidence_outcomes(results.assign(task="needle")),
        plots.paired_differences(against(one)),
        plots.accuracy_by_depth(one.assign(depth=np.nan)),
        plots.accuracy_by_depth(one.assign(score=np.nan)),
        plots.reward_curve(pd.DataFrame(columns=["metric", "step", "value"])),
    ]
    for ax in drawn:
        assert not ax.axison and any(texts(ax)) and ax.get_title(loc="left").strip() and not ax.lines


@pytest.mark.parametrize("plot", ["accuracy_by_length", "cost_by_length", "accuracy_by_depth"])
def test_documents_of_no_set_length_are_drawn_or_counted(results: pd.DataFrame, plot) -> None:
    """Sets of other projects have no length in chunks."""
    rows = one_line(results)
    ax = getattr(plots, plot)(rows.assign(chunks=np.nan))
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "documents of no set length" and not any(t.get_text() for t in ax.get_xticklabels())
    assert ax.collections or labelled(ax)
    mixed = rows.assign(chunks=rows["chunks"].where(rows["chunks"] != 64))
    assert getattr(plots, plot)(mixed).get_xlabel().endswith("\n4 readings of no set length are left out")


def test_memory_by_turn_has_means_and_marks_what_was_cut() -> None:
    turns = pd.DataFrame({"kind": "read", "turn": [1, 1, 2], "reply_tokens": [5, 7, 9]}, dtype=object)
    ax = plots.memory_by_turn(turns.assign(finish_reason=["stop", "stop", "length"]))
    assert labelled(ax) == {"memory": [6, 9]}
    assert [line.get_xydata().tolist() for line in ax.lines if line.get_marker() == "x"] == [[[2, 9]]]


def test_the_heat_map_counts_each_cell_of_one_policy(results: pd.DataFrame) -> None:
    ax = plots.accuracy_by_depth(one_line(results), bins=2)
    assert [t.get_text() for t in ax.texts][:4] == ["100 %\nn=4", "50 %\nn=2", "50 %\nn=4", "0 %\nn=2"]
    few = one_line(results)
    few = few[(few["chunks"] == 4) | (few["depth"] < 0.5)]
    ax = plots.accuracy_by_depth(few, bins=2)  # an empty cell is blank, not zero
    assert list(ax.collections[0].get_array().mask.ravel()) == [False, False, False, True]
    with pytest.raises(ValueError, match="'before', 'after', 'after, blind'"):
        plots.accuracy_by_depth(results)


def test_a_paired_difference_is_grey_when_zero_is_inside(results: pd.DataFrame) -> None:
    found = paired(results, "before", "after")
    ax = plots.paired_differences(found.assign(low=[0.1, -0.1]))
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == [0.25, 0.5]
    assert [line.get_color() for line in dots] == [COLOURS[2], GREY]
    assert "of 8: after better on 2; before on 0" in texts(ax)
    unknown = results.assign(chunks=results["chunks"].where(results["chunks"] != 64))
    ax = plots.paired_differences(paired(unknown, "before", "after"))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["4 chunks", "no set length"]


def test_the_data_overview_draws_all_documents_and_evidence(tokenizer, tmp_path) -> None:
    files = [
        save(make("multihop_2", n, seed, tokenizer, documents=12), tmp_path / f"{name}.parquet")
        for name, n, seed in (("train", 5, 1), ("test", 3, 2))
    ]
    frames = data_files(files)
    lengths, depths, gold = plots.data_overview(frames)
    drawn = sorted(round(x) for dots in lengths.collections for x in dots.get_offsets()[:, 0])
    assert drawn == sorted(frames["examples"]["tokens"])
    assert [t.get_text() for t in lengths.get_yticklabels()] == ["train  n = 5", "test  n = 3"]
    assert len(depths.lines) == 3 and [t.get_text() for t in depths.get_legend().get_texts()] == ["train", "test"]
    assert [t.get_text() for t in gold.get_legend().get_texts()] == ["gold document 1", "gold document 2"]
    path = save(make("needle", 4, 1, tokenizer, chunks=2), tmp_path / "x.parquet")
    lengths, _ = plots.data_overview(data_files([path]))  # no gold documents, and no tokens
    assert lengths.get_xlabel() == "characters, log scale"


def test_a_figure_is_saved_as_an_image_and_as_pdf(results: pd.DataFrame, tmp_path) -> None:
    image, vectors = plots.save_figure(plots.accuracy_by_length(results), tmp_path / "deep" / "accuracy.png")
    assert plt.imread(image).shape[0] > 300
    assert vectors.name == "accuracy.pdf" and vectors.read_bytes().startswith(b"%PDF")
