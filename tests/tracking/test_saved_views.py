"""Views in MLflow's pages: in every store, with filters that MLflow accepts."""

from __future__ import annotations

import json
from dataclasses import replace

from memagent_lib.tracking import KIND_TAG, Experiment, log_results


def views(experiment: Experiment) -> dict[str, str]:
    tags = experiment.client.get_experiment(experiment.experiment_id).tags
    return {name: text for name, text in tags.items() if "ViewState." in name}


def test_a_store_made_earlier_gets_the_views(workspace) -> None:
    experiment = Experiment.open(workspace)
    new = views(experiment)
    for name in new:
        experiment.client.delete_experiment_tag(experiment.experiment_id, name)
    assert views(Experiment.open(workspace)) == new
    assert [json.loads(text)["name"] for text in new.values()] == ["Evaluations", "Trainings", "Readings"]


def test_views_tell_evaluations_from_trainings(workspace, kept) -> None:
    experiment = Experiment.open(workspace)
    with experiment.run("evaluate") as run:
        log_results(run, [kept], policy="p")
    experiment.start("train").tags({KIND_TAG: "train"})
    experiment.start("make data")
    found = {}
    for text in views(experiment).values():
        state = json.loads(json.loads(text)["state"])
        if "searchFilter" in state:
            runs = experiment.client.search_runs([experiment.experiment_id], state["searchFilter"])
            found[json.loads(text)["name"]] = [run.info.run_name for run in runs]
    assert found == {"Evaluations": ["evaluate"], "Trainings": ["train"]}


def test_an_evaluation_has_its_seconds_per_reading(workspace, kept) -> None:
    with Experiment.open(workspace).run("evaluate") as run:
        log_results(run, [kept], policy="p")
    metrics = run.experiment.client.get_run(run.id).data.metrics
    assert (metrics["score"], metrics["seconds_per_reading"]) == (1.0, 0.5)


def test_the_score_of_a_run_is_that_of_its_reader_with_a_memory(workspace, kept) -> None:
    """With the baselines in it, runs with and without them would not compare."""
    guess = replace(kept, reader="blind", score=replace(kept.score, value=0.0), seconds=0.1)
    with Experiment.open(workspace).run("evaluate") as run:
        log_results(run, [guess, kept], policy="p")
    data = run.experiment.client.get_run(run.id).data
    assert (data.metrics["score"], data.metrics["seconds_per_reading"]) == (1.0, 0.5)
    assert (data.metrics["scored"], data.tags["score_of"]) == (2, "overwrite")
