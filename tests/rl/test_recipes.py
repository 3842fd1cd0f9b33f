"""Every recipe that ships is one that verl accepts, on its own device and without running it."""

from pathlib import Path

import pytest

from memagent_lib.rl.config import Recipe
from memagent_lib.settings import SettingsError

RECIPES = sorted((Path(__file__).parents[2] / "experiments" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_loads_and_opens_with_what_it_shows_and_needs(path):
    config = Recipe.load(path)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# What it shows:")
    assert any(line.startswith("# What it needs:") for line in lines[:6])
    assert 20 <= len(lines) <= 60
    assert Recipe.from_tables(config.to_tables()) == config


@pytest.fixture(scope="module")
def encoder_files(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("policy")
    tokenizer.hf.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_verl_knows_every_setting_of_a_recipe(path, encoder_files, tmp_path):
    pytest.importorskip("verl")
    from memagent_lib.rl.run.folder import RunFolder
    from memagent_lib.rl.verl_config import compose, settings

    config = Recipe.load(path, [f"model.path={encoder_files}"])
    verl = compose(settings(config, RunFolder(tmp_path), config.model.device))
    train, rollout = config.train, verl.actor_rollout_ref.rollout
    assert (rollout.n, verl.data.train_batch_size, verl.actor_rollout_ref.actor.optim.lr) == (
        train.rollouts,
        train.prompts_per_step,
        train.lr,
    )
    assert verl.algorithm.norm_adv_by_std_in_grpo is False
    assert verl.actor_rollout_ref.actor.clip_ratio_c == 3.0
    assert verl.actor_rollout_ref.actor.use_kl_loss == (train.kl_loss > 0)
    assert rollout.max_model_len >= config.reading.chunk_tokens + 2 * config.reading.memory_tokens


def test_a_setting_that_verl_does_not_know_is_refused(encoder_files, tmp_path):
    pytest.importorskip("verl")
    from memagent_lib.rl.verl_config import compose

    with pytest.raises(SettingsError, match=r"no setting 'trainer.nnode'.*'\+trainer.nnode'"):
        compose({"trainer.nnode": 2})
    assert compose({"+trainer.nnode": 2}).trainer.nnode == 2
