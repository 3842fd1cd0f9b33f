"""The bench of drafts, very small, on real engines: it compares readings word for word before it reports a ratio."""

import json
from dataclasses import replace

import pytest

from experiments.studies.speed.__main__ import main
from memagent_lib.backends.transformers import Transformers

SIZES = ['models=["experiments/pocket/trained"]', "readings=[3]", "chunks=2", "rounds=2"]


@pytest.mark.slow
def test_drafts_are_measured_beside_both_other_ways_and_a_reading_that_differs_stops_it(tmp_path, monkeypatch):
    pytest.importorskip("vllm")
    assert main(["draft", *SIZES, "--out", str(tmp_path / "rows.json")]) == 0
    measured = json.loads((tmp_path / "rows.json").read_text())["measures"]["trained"]
    assert [len(ratio["rounds"]) for ratio in measured["ratios"]] == [2, 2]
    assert sorted(row["side"] for row in measured["rows"]) == sorted(["drafts", "plain", "vllm"] * 2)
    assert all(row["cpu_s"] > 0 for row in measured["rows"])

    checked = Transformers._completion

    def another(self, request, said):
        reply = checked(self, request, said)
        return replace(reply, text=reply.text + " so") if self._drafts else reply

    monkeypatch.setattr(Transformers, "_completion", another)
    with pytest.raises(RuntimeError, match="readings with and without drafts differ"):
        main(["draft", *SIZES, "--out", str(tmp_path / "rows.json")])
