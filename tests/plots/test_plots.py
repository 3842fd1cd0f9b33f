from __future__ import annotations

import dataclasses
from functools import partial
from inspect import signature
from itertools import pairwise

import matplotlib
import matplotlib.font_manager
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from memagent_lib import plots
from memagent_lib.data import make
from memagent_lib.data.overview import data_files
from memagent_lib.data.storage import save
from memagent_lib.diagnostics import Provenance
from memagent_lib.evaluation import against, paired, wilson
from memagent_lib.plots.figure_style import (
    BASELINE_WORDS,
    GREY,
    INK,
    MARKERS,
    all_shortened,
    new_axes,
    short_count,
    shortened,
)
from memagent_lib.plots.line_names import LineEnd, label_ends
from memagent_lib.readers import BASELINES

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def every_figure_fits_its_words_and_is_closed():
    yield
    figures = [plt.figure(number) for number in plt.get_fignums()]
    try:
        for figure in figures:
            figure.canvas.draw()  # before it is closed: a closed one is drawn without its layout
    finally:
        plt.close("all")
    for figure in figures:
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y0 >= -1, "a legend is cut"
        for ax in (ax for ax in figure.axes if ax.get_title(loc="left")):
            words = [child for child in ax.get_children() if isinstance(child, Text) and child.get_visible()]
            assert [text.get_text() for text in words if text.get_window_extent().x1 > figure.bbox.x1 + 1] == []
            if ax.get_xlabel():  # not a bar of colours
                share = ax.get_position().width * ax.get_gridspec().ncols
                assert share > 0.4, "labels leave the plot less than half its room"


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
            }
            rows += [
                shared
                | {
                    "example": f"{chunks}-{i}",
                    "document": f"document {chunks}-{i}",
                    "answers": str(i),
                    "score": float(i < hits),
                    "depth": (i + 0.5) / n,
                }
                | {"capture": 1.0 if has_memory else None, "retention": float(i < hits) if has_memory else None}
                for i in range(n)
            ]
    return pd.DataFrame(rows)


def test_every_baseline_has_words_and_a_marker():
    assert set(BASELINE_WORDS) == set(MARKERS) == set(BASELINES)


def test_accuracy_has_its_value_and_its_wilson_interval(results: pd.DataFrame) -> None:
    ax = plots.accuracy_by_length(results)
    lines = [line for line in ax.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in lines] == [[0.75, 0.25], [1.0, 0.75]]
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    expected = [wilson(6, 8), wilson(1, 4)]
    assert {round(v, 6) for v in band} >= {round(v, 6) for rate in expected for v in (rate.low, rate.high)}
    assert ax.get_xscale() == "log"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["4\n512", "64\n8K"]
    assert {t.get_text() for t in ax.texts} >= {"before", "after", "n = 4 to 8 per point, 95 % Wilson intervals"}


def test_captions_count_the_documents_that_questions_share(results: pd.DataFrame) -> None:
    two = results["chunks"].astype(str) + results["example"].str[-1].isin(list("02468")).astype(str)
    shared = results.assign(document=two)  # two documents of each length
    sizes = "n = 4 to 8 questions on 2 documents"
    for draw in (plots.accuracy_by_length, plots.capture_and_retention):
        assert f"{sizes}, 95 % intervals over documents" in {t.get_text() for t in draw(shared).texts}
    (cost,) = (t.get_text() for t in plots.score_against_cost(shared).texts if "Pareto" in t.get_text())
    assert cost == "n = 12 questions on 4 documents; 95 % intervals over documents; grey: Pareto line"
    ax = plots.paired_differences(paired(shared, "before", "after"))
    assert f"{sizes} read by both; 95 % intervals of the paired difference" in {t.get_text() for t in ax.texts}


def test_intervals_at_one_length_are_bars_side_by_side(results: pd.DataFrame) -> None:
    ax = plots.accuracy_by_length(results[results["chunks"] == 64])
    bars = [bar for bar in ax.collections if bar.get_linewidth()[0] > 0]
    heights = {tuple(round(v, 6) for v in bar.get_paths()[0].vertices[:, 1]) for bar in bars}
    assert len({bar.get_paths()[0].vertices[0, 0] for bar in bars}) == len(bars) > 1
    assert {(round(rate.low, 6), round(rate.high, 6)) for rate in (wilson(3, 4), wilson(1, 4))} == heights


def test_lengths_in_tokens_ignore_the_window_of_a_baseline(results: pd.DataFrame) -> None:
    whole = results[results["reader"] == "blind"].assign(reader="full", chunk_tokens=4096)

    def labels(rows: pd.DataFrame) -> list[str]:
        return [label.get_text() for label in plots.accuracy_by_length(rows).get_xticklabels()]

    assert labels(pd.concat([results, whole])) == ["4\n512", "64\n8K"]
    assert labels(whole) == ["4\n16K", "64\n256K"]
    larger = results[results["policy"] == "before"].assign(policy="larger", chunk_tokens=256)
    assert labels(pd.concat([results, larger])) == ["4", "64"]


def test_each_task_has_its_own_panel_and_all_share_a_legend(results: pd.DataFrame) -> None:
    other = results.assign(task="update", score=1.0)
    figure = plots.accuracy_by_task(pd.concat([results.assign(task="needle"), other])).figure
    needle, update = figure.axes
    assert [ax.get_title(loc="left").strip() for ax in (needle, update)] == ["needle", "update"]
    drawn = {ax: [list(line.get_ydata()) for line in ax.lines if line.get_marker() == "o"] for ax in figure.axes}
    assert sorted(drawn[needle]) == [[6 / 8, 1 / 4], [1.0, 3 / 4]] and drawn[update] == [[1.0, 1.0], [1.0, 1.0]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["before", "after", "with memory", "no document"]
    assert len(plots.accuracy_by_task(results.assign(task="needle")).figure.axes) == 1


def test_lines_that_a_figure_lacks_keep_their_colours(results: pd.DataFrame) -> None:
    blind = results[results["reader"] == "blind"].assign(policy="only a baseline")
    failed = results[results["policy"] == "before"].assign(policy="failed", score=np.nan, turns=np.nan, capture=np.nan)
    rows = pd.concat([blind, failed, results])
    for plot in (plots.accuracy_by_length, plots.capture_and_retention, plots.cost_by_length):
        colours = {text.get_text(): text.get_color() for text in plot(rows).texts}
        assert [colours["before"], colours["after"]] == list(plots.COLOURS[2:4])


def test_a_line_is_named_where_its_last_readings_failed(results: pd.DataFrame) -> None:
    of_after = (results["policy"] == "after") & (results["reader"] == "overwrite")
    longest_failed = results.assign(score=results["score"].mask(of_after & (results["chunks"] == 64)))
    ax = plots.accuracy_by_length(longest_failed)
    heights = {text.get_text(): text.xy[1] for text in ax.texts}
    assert heights["after"] == pytest.approx((1.0 + 0.03) / 1.06)
    ax = plots.accuracy_by_length(results.assign(score=results["score"].mask(of_after)))
    assert "after" not in {text.get_text() for text in ax.texts}
    keys = {key.get_label(): key.get_color() for key in ax.figure.legends[0].legend_handles}
    assert keys["after"] == plots.COLOURS[1] and "before" not in keys


def test_other_seeds_are_thin_lines_in_the_main_ones_colour(results: pd.DataFrame) -> None:
    second = results[results["policy"] == "after"].assign(policy="after, seed 1", score=0.5)
    third = results.assign(policy=results["policy"].replace("before", "before, seed 2"))
    rows = pd.concat([second.assign(policy="before, seed 1"), second, third])
    ax = plots.accuracy_by_length(rows[rows["reader"] == "overwrite"])
    thin = [line for line in ax.lines if line.get_marker() != "o"]
    assert {line.get_color(): list(line.get_ydata()) for line in thin} == {
        plots.COLOURS[0]: [6 / 8, 1 / 4],  # the first of two numbered seeds stands for both
        plots.COLOURS[1]: [0.5, 0.5],  # the name without a seed does, though it comes later
    }
    assert {text.get_text().partition(":")[0] for text in ax.texts} >= {"before, seed 1", "after"}
    assert "after, seed 1" not in {text.get_text().partition(":")[0] for text in ax.texts}
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == ["other training seeds"]
    panels = plots.accuracy_by_task(pd.concat([rows.assign(task="needle"), rows.assign(task="update")])).figure
    entries = [text.get_text() for text in panels.legends[0].get_texts()]
    assert entries == ["before, seed 1", "after", "with memory", "no document", "other training seeds"]


def test_capture_and_retention_omit_readers_without_a_memory(results: pd.DataFrame) -> None:
    ax = plots.capture_and_retention(results)
    assert [list(line.get_ydata()) for line in ax.lines] == [[1.0, 1.0], [0.75, 0.25], [1.0, 1.0], [1.0, 0.75]]
    assert "n = 4 to 8 per point, 95 % Wilson intervals" in {t.get_text() for t in ax.texts}


def test_evidence_that_was_never_captured_has_no_retention(results: pd.DataFrame) -> None:
    ax = plots.capture_and_retention(results.assign(capture=0.0, retention=np.nan))
    assert {tuple(line.get_ydata()) for line in ax.lines} == {(0.0, 0.0), ()}


def test_a_figure_without_data_says_why_instead_of_empty_axes(results: pd.DataFrame) -> None:
    failed = results.assign(score=np.nan, turns=np.nan, error="no server")
    half = pd.concat([failed.assign(task="update"), results.assign(task="needle")])
    one = results[(results["policy"] == "before") & (results["reader"] == "overwrite")]
    without_evidence = plots.capture_and_retention(results.assign(capture=np.nan, retention=np.nan))
    drawn = {
        plots.accuracy_by_length(failed): "every reading failed",
        plots.accuracy_by_task(half): "every reading failed",
        plots.cost_by_length(failed): "every reading failed",
        without_evidence: "no reading with a memory is of a document that records its evidence",
        plots.paired_differences(against(one)): "no other line has read the same documents",
        plots.accuracy_by_depth(one.drop(columns="depth")): "no document records where its evidence is",
        plots.accuracy_by_depth(one.assign(depth=np.nan)): "no document records where its evidence is",
        plots.accuracy_by_depth(one.assign(score=np.nan)): "every reading failed",
        plots.phrase_lives(Provenance().to_frame(), 4): "no words of the memories come from a chunk",
    }
    for ax, reason in drawn.items():
        assert reason in {text.get_text() for text in ax.texts} and not ax.axison
        assert ax.get_title(loc="left").strip() and not ax.lines


@pytest.mark.parametrize("plot", ["accuracy_by_length", "capture_and_retention", "cost_by_length"])
def test_documents_of_no_set_length_are_drawn_or_counted(results: pd.DataFrame, plot) -> None:
    """Sets of other projects have no length in chunks."""
    ax = getattr(plots, plot)(results.assign(chunks=np.nan))
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "documents of no set length" and not ax.get_xticklabels()
    markers = [line for line in ax.lines if line.get_marker() not in ("None", "")]
    drawn = [xy for line in markers for xy in line.get_xydata()]
    assert len(drawn) >= 2 and np.isfinite(drawn).all()
    mixed = results.assign(chunks=results["chunks"].where(results["chunks"] != 64))
    others = mixed[mixed["chunks"].isna() & ((mixed["reader"] == "overwrite") | (plot != "capture_and_retention"))]
    label = getattr(plots, plot)(mixed).get_xlabel()
    assert label.endswith(f"\n{len(others)} readings of no set length are left out")


def test_the_heat_map_has_documents_of_no_set_length_too(results: pd.DataFrame) -> None:
    one = results[(results["policy"] == "before") & (results["reader"] == "overwrite")]
    ax = plots.accuracy_by_depth(one.assign(chunks=np.nan), bins=2)
    assert ax.get_xlabel() == "documents of no set length"
    assert [text.get_text() for text in ax.texts][:2] == ["83 %\nn=6", "33 %\nn=6"]
    mixed = plots.accuracy_by_depth(one.assign(chunks=one["chunks"].where(one["chunks"] != 64)), bins=2)
    assert mixed.get_xlabel().endswith("\n4 readings of no set length are left out")


def test_a_difference_names_its_length_beside_an_unknown_one(results: pd.DataFrame) -> None:
    mixed = results.assign(chunks=results["chunks"].where(results["chunks"] != 64))
    ax = plots.paired_differences(paired(mixed, "before", "after"))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["4 chunks", "no set length"]


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    (ax,) = new_axes(5, 4)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    label_ends(ax, [LineEnd(1, 0.5, name, "black") for name in "abc"] + [LineEnd(1, 1.0, "top", "black")])
    heights = sorted(text.xy[1] for text in ax.texts)
    assert min(np.diff(heights)) > 0.05
    assert heights[-1] <= 1.0


def test_long_names_go_into_a_legend_and_cost_no_width(results: pd.DataFrame) -> None:
    widths = []
    for name in ("before", "runs/study/train/model of a long name"):
        ax = plots.accuracy_by_length(results.assign(policy=results["policy"].replace("before", name)))
        ax.figure.canvas.draw()
        widths.append(ax.get_position().width)
    assert "runs/study/train/model of a long name" in {t.get_text() for t in ax.figure.legends[0].get_texts()}
    assert widths[1] >= widths[0]


MANY = [f"{name}, {step}" for name in ("a policy of some length", "another one") for step in range(1, 19)]


@pytest.mark.parametrize(
    "plot", ["accuracy_by_length", "capture_and_retention", "cost_by_length", "score_against_cost"]
)
@pytest.mark.parametrize("names", [MANY, [f"step {step}" for step in range(1, 37)]], ids=["long", "short"])
def test_many_lines_have_a_legend_below_a_plot_of_full_size(results: pd.DataFrame, plot, names) -> None:
    one = results[(results["policy"] == "before") & (results["reader"] == "overwrite")]
    ax = getattr(plots, plot)(pd.concat([one.assign(policy=name) for name in names]))
    figure = ax.figure
    figure.canvas.draw()
    (legend,) = figure.legends
    assert set(names) <= {text.get_text() for text in legend.get_texts()}
    assert legend.get_window_extent().y1 <= ax.get_tightbbox().y0
    assert ax.bbox.height / figure.dpi > 2.5
    shared, (_, right) = plt.subplots(1, 2, figsize=(16, 5), layout="constrained")
    getattr(plots, plot)(pd.concat([one.assign(policy=name) for name in names]), ax=right)
    shared.canvas.draw()
    assert right.get_legend().get_window_extent().y1 <= right.xaxis.get_tightbbox().y0
    assert right.bbox.height / shared.dpi > 2.5 and not shared.legends


@pytest.mark.parametrize("plot", ["accuracy_by_length", "cost_by_length"])
def test_readers_without_a_memory_are_seen_and_named(results: pd.DataFrame, plot) -> None:
    blind = results[(results["reader"] == "blind") & (results["chunks"] == 4)]
    rows = pd.concat([blind, blind.assign(policy="a second", reader="truncated")])
    ax = getattr(plots, plot)(rows)
    assert [line.get_marker() for line in ax.lines] == ["v", "^"]
    entries = {text.get_text() for text in ax.figure.legends[0].get_texts()}
    assert entries == {"after", "a second", "no document", "document truncated to the window"}
    both = getattr(plots, plot)(pd.concat([rows, results[results["policy"] == "before"]]))
    names = [text.get_text() for text in (*both.figure.legends[0].get_texts(), *both.texts)]
    assert {"before", "after", "a second", "with memory"} <= set(names) and names.count("before") == 1


def test_the_reward_curve_is_the_mean_around_each_step() -> None:
    values = [0.0, 0.6, 0.3, 1.0, 0.1, 0.5]
    curve = pd.DataFrame({"run_id": "a", "metric": "reward", "step": range(1, 7), "value": values})
    ax = plots.reward_curve(curve, metric="reward")
    around = [values[max(0, i - 2) : i + 3] for i in range(6)]  # around each step, so that the line does not lag
    assert list(ax.lines[-1].get_ydata()) == pytest.approx([sum(near) / len(near) for near in around])
    with pytest.raises(ValueError, match="no metric 'loss'; it has reward"):
        plots.reward_curve(curve, metric="loss")


def test_validation_before_the_first_step_is_no_step_yet() -> None:
    names = ["run_id", "metric", "step", "value"]
    validation = pd.DataFrame([("a", "val-core/needle/reward/mean@1", 0, 0.25)], columns=names)
    for curve in (validation, pd.DataFrame(columns=names)):
        ax = plots.reward_curve(curve)
        assert [text.get_text() for text in ax.texts] == ["no step yet"] and not ax.lines
    first = pd.concat([validation, pd.DataFrame([("a", "critic/score/mean", 1, 0.5)], columns=names)])
    assert list(plots.reward_curve(first).lines[0].get_ydata()) == [0.5]


def test_memory_by_turn_draws_the_mean_and_marks_cut_memories() -> None:
    turns = pd.DataFrame(
        {
            "kind": ["read"] * 4 + ["answer"],
            "turn": [1, 2, 1, 2, 3],
            "reply_tokens": [10, 20, 20, 32, 3],
            "finish_reason": ["stop"] * 3 + ["length", "stop"],
        }
    )
    ax = plots.memory_by_turn(turns)
    assert list(ax.lines[0].get_ydata()) == [15, 26]
    assert [tuple(p) for p in ax.lines[1].get_xydata()] == [(2, 32)]  # chunks are counted from 1
    caption = "n = 2 readings per turn; mean and middle 80 %"
    assert f"{caption}; x: cut at the token limit" in {t.get_text() for t in ax.texts}
    whole = plots.memory_by_turn(turns[turns["turn"] == 1])
    assert caption in {t.get_text() for t in whole.texts}
    assert whole.lines[0].get_marker() == "o"  # a line of one point would be invisible


def test_memory_by_turn_counts_the_readings_of_every_line() -> None:
    turns = pd.DataFrame({"kind": "read", "turn": [1, 2, 1, 1], "reply_tokens": 5, "finish_reason": "stop"})
    ax = plots.memory_by_turn(turns.assign(policy=["many", "many", "many", "few"]))
    assert "n = 1 to 2 readings per turn; mean and middle 80 %" in {text.get_text() for text in ax.texts}
    assert ax.get_xlabel() == "turn"  # a search reads more than once between two chunks
    baseline = plots.memory_by_turn(turns.assign(kind="direct"))
    assert baseline.texts[0].get_text() == "no reading has a memory" and not baseline.lines


def test_cost_is_all_tokens_beside_a_line_linear_in_length(results: pd.DataFrame) -> None:
    ax = plots.cost_by_length(results)
    memory, other, blind, guide = (list(line.get_ydata()) for line in ax.lines)
    assert (memory, other, blind) == ([37, 577], [37, 577], [10, 10])
    assert guide == [37, 37 * 64 / 4]
    assert ax.get_yscale() == "log"


def labels_of(axis) -> list[Text]:
    """The labels of an axis that are drawn, in order."""
    axis.get_figure().canvas.draw()
    low, high = sorted(axis.get_view_interval())
    places = zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
    return [label for label, at in places if label.get_text() and low <= at <= high]


def overlapping(axis) -> list[tuple[str, str]]:
    boxes = [(label.get_text(), label.get_window_extent()) for label in labels_of(axis)]
    return [(one, other) for (one, left), (other, right) in pairwise(boxes) if left.x1 > right.x0]


def test_a_cost_of_millions_is_written_in_full(results: pd.DataFrame) -> None:
    costly = results.assign(prompt_tokens=results["prompt_tokens"] * 100_000)
    words = [label.get_text() for label in labels_of(plots.cost_by_length(costly).yaxis)]
    assert "5,000,000" in words and not any("e" in word for word in words)
    close = costly[costly["reader"] != "blind"]
    words = [label.get_text() for label in labels_of(plots.score_against_cost(close).xaxis)]
    assert len(words) > 1 and all(word.replace(",", "").isdigit() for word in words)


def test_a_single_cost_has_an_axis_around_it(results: pd.DataFrame) -> None:
    ax = plots.cost_by_length(results[:1].assign(prompt_tokens=309))  # matplotlib's own axis ends in one number
    assert ax.get_ylim() == (155, 620)


@pytest.mark.parametrize("times", [1, 40, 1_000, 30_000])
def test_labels_of_costs_do_not_overlap(results: pd.DataFrame, times: int) -> None:
    memory = results["reader"] == "overwrite"
    ax = plots.score_against_cost(results.assign(prompt_tokens=results["prompt_tokens"].where(~memory, 99 * times)))
    assert len(labels_of(ax.xaxis)) > 1 and overlapping(ax.xaxis) == []


@pytest.mark.parametrize(
    "lengths", [[2**n for n in range(16)], [4, 16, 64, 256, 1024, 4096, 16384, 36459], range(1, 25)]
)
def test_labels_of_lengths_do_not_overlap(results: pd.DataFrame, lengths) -> None:
    short = results[results["chunks"] == 4]
    rows = pd.concat([short.assign(chunks=each, document=short["document"] + f" {each}") for each in lengths])
    tasks = [rows.assign(task=task, document=rows["document"] + task) for task in ("needle", "update", "bridge")]
    for ax in [plots.accuracy_by_length(rows), *plots.accuracy_by_task(pd.concat(tasks)).figure.axes]:
        assert overlapping(ax.xaxis) == []
        assert labels_of(ax.xaxis)[-1].get_text().startswith(f"{lengths[-1]:,}\n")


def test_every_length_of_the_demo_has_its_label(results: pd.DataFrame) -> None:
    lengths = [2, 4, 16, 64, 256]
    short = results[results["chunks"] == 4]
    rows = pd.concat([short.assign(chunks=each, document=short["document"] + f" {each}") for each in lengths])
    tasks = [rows.assign(task=task, document=rows["document"] + task) for task in ("needle", "update")]
    for ax in plots.accuracy_by_task(pd.concat(tasks)).figure.axes:
        labels = [label.get_text().split("\n")[0] for label in labels_of(ax.xaxis)]
        assert labels == [str(each) for each in lengths]


def test_a_line_whose_readings_all_failed_stops_no_figure(results: pd.DataFrame) -> None:
    numbers = ["score", "turns", "prompt_tokens", "reply_tokens", "capture", "retention"]
    failed = results[results["policy"] == "before"].astype(dict.fromkeys(numbers, object))
    failed = failed.assign(policy="broken", error="no answer", **dict.fromkeys(numbers))
    rows = pd.concat([failed, results])  # beside a column of None alone, pandas stores numbers as objects
    ax = plots.cost_by_length(rows)
    assert [list(line.get_ydata()) for line in ax.lines[:3]] == [[37, 577], [37, 577], [10, 10]]
    ax = plots.accuracy_by_depth(rows[(rows["policy"] == "before")], bins=1)
    assert ax.collections[0].get_array().tolist() == [[6 / 8, 1 / 4]]
    turns = pd.DataFrame({"kind": "read", "turn": 1, "reply_tokens": [5, 7], "finish_reason": "stop"}, dtype=object)
    assert list(plots.memory_by_turn(turns).lines[0].get_ydata()) == [6]


def test_lines_of_one_score_and_cost_are_rings(results: pd.DataFrame) -> None:
    before = results[results["policy"] == "before"]
    ax = plots.score_against_cost(pd.concat([before, before.assign(policy="the same")]))
    sizes = {line.get_label(): line.get_markersize() for line in ax.lines}
    assert (sizes["before"], sizes["the same"]) == (12, 8)


def test_score_against_cost_has_its_pareto_line_in_grey(results: pd.DataFrame) -> None:
    ax = plots.score_against_cost(results)
    drawn = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines}
    tokens = (8 * 37 + 4 * 577) / 12
    assert {name: drawn[name] for name in ("before", "after", "after, blind")} == {
        "before": (tokens, 7 / 12), "after": (tokens, 11 / 12), "after, blind": (10, 1 / 12),
    }  # fmt: skip
    (pareto,) = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    assert list(pareto.get_xdata()) == [10, tokens] and list(pareto.get_ydata()) == [1 / 12, 11 / 12]
    assert ax.get_xlabel() == "prompt and reply tokens, mean"
    with pytest.raises(ValueError, match=r"no cost 'dollars'; choose from tokens, turns, seconds, seconds_95, gflops"):
        plots.score_against_cost(results, "dollars")
    with pytest.raises(ValueError, match=r"the rows have no gflops .*; evaluate with a model whose shape is known"):
        plots.score_against_cost(results, "gflops")
    only = results[(results["policy"] == "before") | (results["chunks"] == 4)]
    assert "n = 8 questions that all have answered" in plots.score_against_cost(only).texts[-1].get_text()
    apart = results[(results["policy"] == "before") == (results["chunks"] == 4)]
    with pytest.raises(ValueError, match="no document was scored by every line"):
        plots.score_against_cost(apart)


def test_costs_close_together_have_few_labels(results: pd.DataFrame) -> None:
    with_memory = plots.score_against_cost(results[results["reader"] != "blind"])
    assert with_memory.get_xscale() == "linear"
    low, high = with_memory.get_xlim()
    assert sum(low <= tick <= high for tick in with_memory.get_xticks()) <= 7
    wide = plots.score_against_cost(results)
    assert wide.get_xscale() == "log"
    assert {20, 50, 100} <= set(wide.get_xticks())
    assert not any(label.get_text() for label in wide.get_xticklabels(minor=True))


def test_the_heat_map_counts_each_cell_of_one_policy(results: pd.DataFrame) -> None:
    one = results[(results["policy"] == "before") & (results["reader"] == "overwrite")]
    ax = plots.accuracy_by_depth(one, bins=2)
    assert [t.get_text() for t in ax.texts][:4] == ["100 %\nn=4", "50 %\nn=2", "50 %\nn=4", "0 %\nn=2"]
    assert list(ax.collections[0].get_array().ravel()) == [1.0, 0.5, 0.5, 0.0]
    with pytest.raises(ValueError, match="takes one line, got 'before', 'after', 'after, blind'; select one"):
        plots.accuracy_by_depth(results)


def test_an_empty_cell_of_the_heat_map_is_blank_not_zero(results: pd.DataFrame) -> None:
    few = results[(results["policy"] == "before") & ((results["chunks"] == 4) | (results["depth"] < 0.5))]
    ax = plots.accuracy_by_depth(few, bins=2)
    assert list(ax.collections[0].get_array().mask.ravel()) == [False, False, False, True]


def test_a_paired_difference_is_grey_when_zero_is_inside(results: pd.DataFrame) -> None:
    found = paired(results, "before", "after")
    assert found[["chunks", "difference", "n", "right_only", "left_only"]].values.tolist() == [
        [4, 0.25, 8, 2, 0],
        [64, 0.5, 4, 2, 0],
    ]
    ax = plots.paired_differences(found.assign(low=[0.1, -0.1]))
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == [0.25, 0.5]
    assert [line.get_color() for line in dots] == [plots.COLOURS[2], GREY]
    assert "after better on 2, before on 0, of 8" in {t.get_text() for t in ax.texts}


def test_a_tick_of_differences_states_its_points(results: pd.DataFrame) -> None:
    found = paired(results, "before", "after").assign(difference=0.01, low=-0.01, high=0.03)
    ax = plots.paired_differences(found)
    words = [label.get_text() for label in labels_of(ax.xaxis)]
    assert "+2.5" in words
    assert [float(word) / 100 for word in words] == pytest.approx([t for t in ax.get_xticks() if abs(t) <= 0.1 + 1e-9])


def test_policies_without_a_common_document_are_not_paired(results: pd.DataFrame) -> None:
    lines = "choose from 'before', 'after', 'after, blind'"
    with pytest.raises(ValueError, match=f"'before' with the reader 'blind' is no line of the results; {lines}"):
        paired(results, "before", "after", reader="blind")
    others = results["document"].where(results["policy"] == "before", "another " + results["document"])
    message = "'before' and 'after' have read no document in common"
    with pytest.raises(ValueError, match=message):  # the same ids, for other documents
        paired(results.assign(document=others), "before", "after")


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
    by_file = frames["depths"].groupby("file", sort=False)["depth"]
    lines = {line.get_xdata()[1:].tolist()[0]: len(line.get_xdata()) - 1 for line in depths.lines[1:]}
    assert lines == {group.min(): len(group) for _, group in by_file}
    assert [t.get_text() for t in gold.get_legend().get_texts()] == ["gold document 1", "gold document 2"]


def test_data_without_gold_documents_or_tokens_is_drawn_too(tokenizer, tmp_path) -> None:
    path = save(make("needle", 4, 1, tokenizer, chunks=2), tmp_path / "x.parquet")
    lengths, depths = plots.data_overview(data_files([path]))
    assert lengths.get_xlabel() == "characters, log scale"
    assert depths.get_legend() is None
    counted = data_files([path], tokenizer=tokenizer)
    assert plots.data_overview(counted)[0].get_xlabel() == "tokens, log scale"
    with pytest.raises(ValueError, match="no file to describe"):
        data_files([])


def takes_axes(function: object) -> bool:
    return callable(function) and "ax" in signature(function).parameters and function is not plots.save_figure


def figures_of(results: pd.DataFrame, tokenizer, tmp_path) -> dict[str, partial]:
    """Every plot of one axes, ready to be drawn with or without ``ax``."""
    first, second = results["policy"].unique()
    one = results[(results["policy"] == first) & (results["reader"] == "overwrite")]
    turns = pd.DataFrame({"kind": ["read"] * 2, "turn": [1, 2], "reply_tokens": [10, 20], "finish_reason": "stop"})
    turns = pd.concat([turns.assign(policy=first, reader="overwrite"), turns.assign(policy=second, reader="overwrite")])
    curve = pd.DataFrame({"run_id": "a", "metric": "reward", "step": range(1, 7), "value": 0.5})
    phrases = pd.DataFrame([{"text": f"{first} is cedar.", "brought": 1, "dropped": None}])
    files = [tmp_path / f"{name.replace('/', ' ')}.parquet" for name in (first, second)]
    data = data_files([save(make("multihop_2", 5, 1, tokenizer, documents=12), file) for file in files])
    return {
        "accuracy_by_depth": partial(plots.accuracy_by_depth, one),
        "accuracy_by_length": partial(plots.accuracy_by_length, results),
        "capture_and_retention": partial(plots.capture_and_retention, results),
        "cost_by_length": partial(plots.cost_by_length, results),
        "score_against_cost": partial(plots.score_against_cost, results),
        "document_lengths": partial(plots.document_lengths, data["examples"]),
        "evidence_depths": partial(plots.evidence_depths, data["depths"]),
        "gold_positions": partial(plots.gold_positions, data["gold"]),
        "memory_by_turn": partial(plots.memory_by_turn, turns),
        "paired_differences": partial(plots.paired_differences, paired(results, first, second)),
        "phrase_lives": partial(plots.phrase_lives, phrases, 2),
        "reward_curve": partial(plots.reward_curve, curve, metric="reward"),
    }


@pytest.mark.parametrize("name", [name for name in plots.__all__ if takes_axes(getattr(plots, name))])
def test_a_plot_draws_into_the_axes_that_it_gets(name: str, results: pd.DataFrame, tokenizer, tmp_path) -> None:
    draw = figures_of(results, tokenizer, tmp_path)[name]
    own = draw()
    figure, (left, right) = plt.subplots(1, 2, figsize=(16, 4), layout="constrained")
    assert draw(ax=right) is right
    assert right.get_title(loc="left") == own.get_title(loc="left") != ""
    assert len(right.lines) == len(own.lines)
    assert not left.has_data() and not figure.legends


FOREIGN = "日本語 $x_1$ and $y_2$"


@pytest.mark.parametrize("name", [name for name in plots.__all__ if takes_axes(getattr(plots, name))])
@pytest.mark.parametrize("policy", [FOREIGN, "x" * 180, "$5 " + "of many words " * 12], ids=["foreign", "word", "long"])
def test_names_are_displayed_as_they_are_or_shortened(name, policy, results: pd.DataFrame, tokenizer, tmp_path) -> None:
    named = results.assign(policy=results["policy"].replace("before", policy))
    ax = figures_of(named, tokenizer, tmp_path)[name]()
    ax.figure.canvas.draw()
    texts = [text for text in ax.figure.findobj(Text) if text.get_text()]
    assert [text.get_text() for text in texts if text.get_parse_math() and "$" in text.get_text()] == []
    assert max(len(text.get_text()) for text in texts) < 120
    if policy == FOREIGN and name not in ("reward_curve", "gold_positions"):  # which name no data
        assert any(FOREIGN in text.get_text() for text in texts)


def test_other_scripts_have_the_fonts_that_the_system_has(results: pd.DataFrame, monkeypatch) -> None:
    fonts = matplotlib.font_manager.fontManager
    own = next(font for font in fonts.ttflist if font.name == "DejaVu Sans")
    monkeypatch.setattr(fonts, "ttflist", [*fonts.ttflist, dataclasses.replace(own, name="Noto Sans CJK SC")])
    ax = plots.score_against_cost(results)
    legend = ax.figure.legends[0].get_texts()
    texts = [ax.texts[-1], ax.xaxis.label, *ax.get_xticklabels(), *legend]
    assert {tuple(text.get_fontfamily()) for text in texts} == {("sans-serif", "Noto Sans CJK SC")}


def test_a_shortened_name_keeps_both_ends() -> None:
    assert shortened("a name\nof two lines") == "a name of two lines"
    assert shortened("Qwen2.5-7B-Instruct by reinforcement, step 100, gated", 24) == "Qwen2.5-7B-…p 100, gated"
    assert {len(shortened("x" * 50, most)) for most in (9, 10)} == {9, 10}


def test_names_that_would_look_alike_are_not_shortened() -> None:
    one, two, other = (
        "documents of 16 chunks, seed 1",
        "documents of 64 chunks, seed 1",
        "documents of 4 questions, again",
    )
    assert all_shortened([one, two, one, other], 20) == [one, two, one, "documents…ons, again"]


def test_plots_of_several_panels_draw_into_the_axes_they_get(results: pd.DataFrame, tokenizer, tmp_path) -> None:
    tasks = pd.concat([results.assign(task="needle"), results.assign(task="update")])
    _, axes = plt.subplots(1, 2, figsize=(16, 4), layout="constrained")
    assert plots.accuracy_by_task(tasks, axes) is axes[0]
    assert [ax.get_title(loc="left").strip() for ax in axes] == ["needle", "update"]
    data = data_files([save(make("multihop_2", 5, 1, tokenizer, documents=12), tmp_path / "train.parquet")])
    _, axes = plt.subplots(1, 3, figsize=(16, 4), layout="constrained")
    assert plots.data_overview(data, axes) == list(axes)


def test_every_figure_has_one_look(results: pd.DataFrame) -> None:
    one = results[(results["policy"] == "before") & (results["reader"] == "overwrite")]
    drawn = [plots.accuracy_by_length(results), plots.cost_by_length(results), plots.accuracy_by_depth(one)]
    drawn.append(plots.paired_differences(paired(results, "before", "after")))
    assert {ax.figure.get_facecolor()[3] for ax in drawn} == {ax.get_facecolor()[3] for ax in drawn} == {0.0}
    assert {ax.xaxis.label.get_color() for ax in drawn} == {INK}  # legible on white and on black
    assert all(ax.get_title(loc="left").strip() and ax.get_xlabel() and ax.title.get_text() == "" for ax in drawn)
    assert {ax.texts[-1].get_fontsize() for ax in drawn} == {9}


def test_a_figure_is_saved_as_a_transparent_image_and_as_pdf(results: pd.DataFrame, tmp_path) -> None:
    image, vectors = plots.save_figure(plots.accuracy_by_length(results), tmp_path / "deep" / "accuracy.png")
    assert plt.imread(image)[0, 0, 3] == 0.0
    assert vectors.name == "accuracy.pdf" and vectors.read_bytes().startswith(b"%PDF")


def test_lives_of_phrases_have_room_beside_their_words() -> None:
    text = "The code of the mellow spider is cedar. The code of the calm lemur is bracket"
    lives = [{"text": text, "brought": i % 16 + 1, "dropped": None if i % 5 == 0 else i % 16 + 2} for i in range(32)]
    ax = plots.phrase_lives(pd.DataFrame(lives), 16)
    assert len(ax.patches) == 20
    assert ax.texts[0].get_text() == "green: there at the end; grey: dropped; the 20 longest of 32"


@pytest.mark.parametrize(
    ("count", "short"),
    [(512, "512"), (8192, "8K"), (12_595, "12.3K"), (1020 << 10, "1020K"), (3.5 * (1 << 20), "3.5M")],
)
def test_a_count_has_a_short_form_without_an_exponent(count: float, short: str) -> None:
    assert short_count(count) == short
