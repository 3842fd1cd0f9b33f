"""The bench of drafts, very small, on real engines: it compares readings word for word before it reports a ratio."""

import json
from dataclasses import replace

import pytest

from experiments.studies.speed.__main__ import main
from memagent_lib.agent import open_agent

SIZES = ['models=["experiments/pocket/trained"]', "readings=[3]", "chunks=2", "rounds=2"]


@pytest.mark.slow
def test_drafts_are_measured_and_a_differing_reading_stops_it(tmp_path, monkeypatch):
    pytest.importorskip("vllm")
    assert main(["draft", *SIZES, "--out", str(tmp_path / "rows.json")]) == 0
    measured = json.loads((tmp_path / "rows.json").read_text())["measures"]["trained"]
    assert [len(ratio["rounds"]) for ratio in measured["ratios"]] == [2, 2]
    assert sorted(row["side"] for row in measured["rows"]) == sorted(["drafts", "plain", "vllm"] * 2)
    assert all(row["cpu_s"] > 0 for row in measured["rows"])

    def with_longer_drafts(model, backend, **options):
        agent = open_agent(model, backend, **options)
        if backend == "transformers" and options.get("drafts", True):
            complete = agent.backend.complete

            async def longer(request):
                reply = await complete(request)
                return replace(reply, text=reply.text + " so")

            monkeypatch.setattr(agent.backend, "complete", longer)
        return agent

    monkeypatch.setattr("experiments.studies.speed.draft.open_agent", with_longer_drafts)
    with pytest.raises(RuntimeError, match="readings with and without drafts differ"):
        main(["draft", *SIZES, "--out", str(tmp_path / "rows.json")])
