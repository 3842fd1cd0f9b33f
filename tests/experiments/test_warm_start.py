"""A warm start is made in phases: a folder that opens with the wording it was taught in; a function of its seed."""

from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM

from experiments.pocket import warm_start
from experiments.pocket.teacher import Shares
from experiments.pocket.warm_start import READING, Phase, make
from memagent_lib.agent import AgentSettings


def test_a_warm_start_is_a_function_of_its_seed_and_wording(tmp_path, monkeypatch):
    monkeypatch.setattr(
        warm_start, "PHASES", (Phase(24, 1, drill=1.0), Phase(32, 1, shares=Shares(several=0.5, direct=0.2)))
    )
    for name, options in {"one": {}, "again": {}, "other": {"seed": 1, "template": "chunk_first"}}.items():
        make(tmp_path / name, **options)
    one, again, other = (AutoModelForCausalLM.from_pretrained(tmp_path / n) for n in ("one", "again", "other"))
    assert AgentSettings.load(tmp_path / "one") == READING
    assert AgentSettings.load(tmp_path / "other") == replace(READING, template="chunk_first")
    assert torch.equal(one.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
