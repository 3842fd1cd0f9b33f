"""Choosing two evaluations that can be compared, and the pictures of what differs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from memagent_lib import paths, plots
from memagent_lib.evaluation import Result, paired
from memagent_lib.tracking import (
    Experiment,
    TrackingError,
    choose,
    choose_readers,
    differing,
    evaluations,
    load_readings,
    log_results,
)


def evaluated(ledger: Experiment, policy: str, *results: Result, **params) -> str:
    with ledger.run(f"evaluate {policy}", {"policy": policy, **params}) as run:
        log_results(run, results, policy=policy)
    return run.id


def test_two_evaluations_are_chosen_by_name_id_or_documents(workspace: Path, kept, lost) -> None:
    ledger = Experiment.open(workspace)
    with ledger.run("make data"):
        pass
    first = evaluated(ledger, "before", lost, lr=1)
    second = evaluated(ledger, "after", lost, lr=2)
    other = evaluated(ledger, "elsewhere", kept)
    assert evaluations(ledger)["run_id"].tolist() == [other, second, first]

    rows = choose(ledger)
    assert rows[["run_id", "policy"]].values.tolist() == [[first, "before"], [second, "after"]]
    assert choose(ledger, right="before")["policy"].tolist() == ["after", "before"]
    assert choose(ledger, left=second[:8])["policy"].tolist() == ["after", "before"]
    parameters = differing(ledger, rows)
    assert parameters.loc["lr"].to_dict() == {"before": "1", "after": "2"}
    assert list(parameters.index) == ["lr", "policy"]
    assert {policy: len(found) for policy, found in load_readings(ledger, rows).items()} == {"before": 1, "after": 1}
    assert paired(rows, "before", "after")[["chunks", "difference", "n"]].values.tolist() == [[4, 0.0, 1]]

    again = evaluated(ledger, "after", lost)
    twice = choose(ledger, "after", "after")
    assert twice[["run_id", "policy"]].values.tolist() == [
        [second, f"after {second[:6]}"], [again, f"after {again[:6]}"]
    ]  # fmt: skip
    assert choose(ledger, "before")["run_id"].tolist() == [first, again]
    with pytest.raises(TrackingError, match="no evaluation 'nothing'; there are 'after', 'elsewhere', 'before'"):
        choose(ledger, left="nothing")
    with pytest.raises(TrackingError, match="'before' and 'elsewhere' have read no document in common"):
        choose(ledger, "before", "elsewhere")


def test_scores_of_other_code_or_judges_are_not_paired(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    evaluated(ledger, "before", replace(lost, code="aaaa"))
    evaluated(ledger, "after", replace(lost, code="bbbb"))
    kinds = rf"judged by {lost.example.rule} with code aaaa, and judged by {lost.example.rule} with code bbbb"
    with pytest.raises(TrackingError, match=rf"different kinds and are not paired: {kinds}; evaluate the older one"):
        choose(ledger)
    evaluated(ledger, "again", replace(lost, code="bbbb"))
    assert choose(ledger)["policy"].tolist() == ["after", "again"]


def test_results_without_a_length_in_chunks_are_compared_too(workspace: Path, kept) -> None:
    ledger = Experiment.open(workspace)
    loose = replace(kept, example=replace(kept.example, metadata={}))
    evaluated(ledger, "one", loose)
    evaluated(ledger, "two", loose)
    assert evaluations(ledger)["metrics.overwrite/accuracy"].tolist() == [1.0, 1.0]
    (difference,) = paired(choose(ledger), "one", "two").to_dict("records")
    assert (difference["n"], difference["difference"]) == (1, 0.0)
    assert math.isnan(difference["chunks"])


def test_the_first_model_there_is_used_and_none_has_a_fix(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    names = [str(tmp_path / name) for name in ("a", "empty", "b")]
    assert paths.first_model(names) == names[2]
    with pytest.raises(FileNotFoundError, match=r"no model at .*a, .*empty; `memagent demo` trains one"):
        paths.first_model(names[:2])


def test_a_phrase_is_a_bar_from_its_first_turn_to_its_last(lost) -> None:
    from memagent_lib.diagnostics import Provenance

    phrases = Provenance.of(lost.trace).to_frame()
    ax = plots.phrase_lives(phrases, len(lost.trace.reads))
    ends = phrases["dropped"].astype(float).fillna(5)
    assert phrases["brought"].min() == 2  # counted from 1: the second chunk brought the fact
    bars = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    assert bars == sorted(zip(phrases["brought"], ends, strict=True))
    assert len(plots.phrase_lives(phrases, 4, most=1).patches) == 1


def test_a_comparison_has_rows_of_its_reader_alone(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    for policy in ("before", "after"):
        evaluated(ledger, policy, lost, replace(lost, reader="blind"))
    assert choose(ledger)["reader"].tolist() == ["overwrite", "overwrite"]
    assert choose(ledger, reader="blind")["reader"].tolist() == ["blind", "blind"]


def test_a_run_without_a_policy_goes_by_its_own_name(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    evaluated(ledger, "before", lost)
    with ledger.run("quickstart trained") as run:
        log_results(run, [lost])
    assert evaluations(ledger)["policy"].tolist() == ["quickstart trained", "before"]
    with pytest.raises(TrackingError, match=r"there are 'quickstart trained', 'before'; .*did you mean 'before'"):
        choose(ledger, left="befor")


def test_the_policy_that_read_is_not_a_notebooks_default(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    with ledger.run("a point of a sweep", {"policy": "policy"}) as run:
        log_results(run, [lost], policy="trained")
    assert evaluations(ledger)["policy"].tolist() == ["trained"]


def test_two_readers_of_one_run_are_compared(workspace: Path, kept, lost) -> None:
    ledger = Experiment.open(workspace)
    gated = replace(lost, reader="gated", trace=kept.trace, score=kept.score)
    both = evaluated(ledger, "p", lost, gated)
    evaluated(ledger, "p", lost)
    rows = choose_readers(ledger, "p", "overwrite", "gated")
    assert rows[["run_id", "line"]].values.tolist() == [[both, "p"], [both, "p, gated"]]
    assert paired(rows, "p", "p, gated")[["chunks", "difference", "n"]].values.tolist() == [[4, 1.0, 1]]
    evaluated(ledger, "other", replace(lost, reader="blind"))
    with pytest.raises(TrackingError, match="have both 'overwrite' and 'blind' read the same"):
        choose_readers(ledger, "", "overwrite", "blind")


def test_readers_of_two_runs_are_compared(workspace: Path, kept, lost) -> None:
    ledger = Experiment.open(workspace)
    first = evaluated(ledger, "p", lost)
    second = evaluated(ledger, "p", replace(lost, reader="gated", trace=kept.trace, score=kept.score))
    rows = choose(ledger, "p", "p", "overwrite", "gated")
    assert rows[["run_id", "reader"]].values.tolist() == [[first, "overwrite"], [second, "gated"]]
    assert rows["line"].tolist() == ["p", "p, gated"]
    assert paired(rows, "p", "p, gated")[["chunks", "difference", "n"]].values.tolist() == [[4, 1.0, 1]]
    with pytest.raises(TrackingError, match="no document in common with the readers 'gated' and 'overwrite'"):
        choose(ledger, first, second, "gated", "overwrite")


def test_an_unknown_reader_is_named_with_those_that_read(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    with pytest.raises(TrackingError, match="the store has no evaluation; 03_evaluate"):
        choose(ledger)
    for policy in ("before", "after"):
        evaluated(ledger, policy, lost, replace(lost, reader="blind"))
    known = r"no evaluation has read with 'overwite'; there are 'blind', 'overwrite'; did you mean 'overwrite'\?"
    with pytest.raises(TrackingError, match=known):
        choose(ledger, reader="overwite")
    with pytest.raises(TrackingError, match=known):
        choose_readers(ledger, "", "blind", "overwite")
    with pytest.raises(TrackingError, match="reader and other_reader are both 'blind'; give two different ones"):
        choose_readers(ledger, "", "blind", "blind")


def test_a_run_without_its_rows_is_left_out_of_the_choice(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    first = evaluated(ledger, "before", lost)
    second = evaluated(ledger, "after", lost, replace(lost, reader="blind"))
    gone = evaluated(ledger, "gone", lost, replace(lost, reader="blind"))
    ledger.join(gone).fetch("results.parquet", workspace).unlink()
    assert choose(ledger)["run_id"].tolist() == [first, second]
    assert set(choose_readers(ledger, "", "overwrite", "blind")["run_id"]) == {second}
    with pytest.raises(TrackingError, match=rf"\(without a results\.parquet, and so left out: {gone}\); evaluate two"):
        choose(ledger, "gone")


def test_one_evaluation_alone_is_not_compared_with_itself(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    only = evaluated(ledger, "before", lost)
    message = rf"there is only the run {only[:6]} of 'before' .* compare two readers of this run with other_reader"
    with pytest.raises(TrackingError, match=message):
        choose(ledger, "before", "before")
    evaluated(ledger, "after", lost)
    with pytest.raises(TrackingError, match=message):
        choose(ledger, "before", only[:8])
