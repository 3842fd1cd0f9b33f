"""A warm start is made in phases: a folder that opens with the wording it was taught in; a function of its seed. Words
are told apart from the start."""

from dataclasses import replace

import torch
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM

from memagent_lib.agent import AgentSettings
from memagent_lib.pocket import build_tokenizer, warm_start
from memagent_lib.pocket.model import build_model, kinds_of_words
from memagent_lib.pocket.teacher import Shares
from memagent_lib.pocket.warm_start import READING, Phase, make


def test_a_warm_start_keeps_its_wording_and_follows_from_its_seed(tmp_path, monkeypatch):
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


def test_before_training_no_two_words_of_a_kind_look_alike_in_what_is_compared():
    tokenizer = build_tokenizer()
    planted, random = build_model(tokenizer, 3), build_model(tokenizer, 3, planted=False)
    copies = planted.model.layers[0].self_attn.v_proj.weight[: planted.model.layers[0].self_attn.head_dim]

    def alike(model, kind):
        """The largest cosine of two of the words in what the first layer's heads copy."""
        rows = normalize(model.model.embed_tokens.weight[kind] @ copies.T, dim=1)
        return (rows @ rows.T).fill_diagonal_(0.0).max().item()

    adjectives, nouns, names = kinds_of_words(tokenizer)
    assert tokenizer.convert_ids_to_tokens([adjectives[0], names[-1]]) == ["Ġamber", "ĠHugo"]
    for kind, most in ((adjectives, 0.25), (nouns, 0.25), (names, 0.48)):
        assert alike(planted, kind) < most < alike(random, kind)


def test_each_comparing_head_has_dimensions_of_its_own():
    model = build_model(build_tokenizer())
    attention = model.model.layers[1].self_attn
    for half in (slice(0, 16), slice(16, 32)):
        heads = [attention.k_proj.weight.view(4, 32, -1)[head, half][5:] for head in range(3)]
        planted = torch.cat([rows[rows.norm(dim=1) > 1.0] for rows in heads])
        assert len(planted) == 32
        assert torch.allclose(planted @ planted.T, 1.6**2 * torch.eye(32), atol=1e-4)
