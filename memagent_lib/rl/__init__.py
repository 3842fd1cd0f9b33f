"""Reinforcement learning of readers with verl: multi-conversation GRPO (MemAgent, arXiv 2507.02259).

A rollout reads one document: a conversation (turn) per chunk and one for the answer. Only the answer is scored. Every
token of every turn is then trained with the rollout's advantage (equations 4 and 5)::

    J = 1/N sum_ijt  w min(r A_ij, clip(r, 1 - low, 1 + high) A_ij) - beta k3_ijt + entropy_coeff H_ijt
    A_ij = R_i - mean(R), of the rollouts i of one prompt        r = p_new / p_old, of token t of turn j of rollout i
    k3 = q - log q - 1, q = p_reference / p_new                  w = min(p_actor / p_sampler, 2), before the update

``N`` counts the tokens of all turns of all rollouts of a mini-batch, over all ranks. For ``A < 0`` the first term is at
least ``3 A`` (dual clip).

The parameters of the equation are set by verl's names in a recipe's ``[verl]`` table. Below, ``actor`` is short for
``actor_rollout_ref.actor``.

``actor.clip_ratio_low``, ``actor.clip_ratio_high``
    Both are 0.2 as published. DAPO raises the upper bound to 0.28, so that rare tokens can become likelier; use it if
    entropy collapses. A smaller lower bound limits how fast a token's probability falls; use it if replies lose their
    format.
``actor.kl_loss_coef``
    ``beta``, active with ``actor.use_kl_loss``. Use it to preserve a model's other abilities; it costs a forward pass.
``actor.entropy_coeff``
    Use it if replies become similar before they become correct.
``algorithm.norm_adv_by_std_in_grpo``
    Divides ``A`` by the group's standard deviation (GRPO as published). Use it if prompts that are nearly always or
    nearly never answered should weigh as much as others.
``algorithm.rollout_correction``
    ``bypass_mode`` uses the sampler's probabilities as ``p_old``, which saves a forward pass and is exact in fp32.
    Otherwise ``rollout_is_threshold`` caps ``w``, and ``rollout_is = "null"`` sets ``w = 1``, as published.
``actor.loss_agg_mode``
    ``token-mean``: all tokens weigh the same (DAPO, arXiv 2503.14476, equation 12), so long replies weigh more.
    ``seq-mean-token-mean`` averages over each reply first, and counts rows of padding as replies.
    ``seq-mean-token-sum-norm`` (Dr. GRPO, arXiv 2503.20783) needs the constant divisor ``actor.loss_scale_factor``.
``data.train_batch_size``, ``actor_rollout_ref.rollout.n``, ``actor.ppo_mini_batch_size``
    The prompts per step, the rollouts per prompt, and the prompts per optimizer step. None of them depends on the
    number of turns.
``actor.optim``
    The learning rate rises linearly to ``lr`` in ``lr_warmup_steps``, then falls along a cosine to ``min_lr_ratio`` of
    ``lr``, for runs with a planned end. With a ratio of 1 it stays at ``lr``, as published.
``actor_rollout_ref.model.lora_rank``, ``lora_alpha``, ``lora_adapter_path``
    Train adapters of that rank instead of all weights. With a path, training continues that adapter, and the KL penalty
    is still to the model without it; a ``model.path`` that is an adapter's folder is merged, and a new adapter begins.
``actor_rollout_ref.model.use_remove_padding``
    ``false`` lays rows out as trees and computes the tokens that a group's rollouts share only once. Use it for
    templates with the chunk first. The gradients are the same. Training on a CPU always uses trees.

Settings without a name in verl are in ``[train]`` (:class:`~memagent_lib.rl.config.TrainingConfig`), ``[rewards]``
(:mod:`memagent_lib.rl.rewards`: rewards of a reader's own file) and ``[data]``.

``verl/VERL.md`` says which process runs which module. Read ``config``, ``rewards``, ``advantages``, ``loss``,
``agent_loop``, ``trainer`` in this order. ``curriculum`` chooses the examples, ``run_folder`` describes a run's files,
``verl`` depends on verl's internals, and ``run`` starts and supervises a run's processes. This ``__init__`` loads
neither verl nor vLLM nor Ray. This package does not depend on notebooks or charts.
"""

from memagent_lib.rl.advantages import Credited
from memagent_lib.rl.config import Files, ModelConfig, ReadingConfig, Recipe, TrackingConfig, differences, recipe_tables
from memagent_lib.rl.run.checks import chosen_device, dry_run, require_training, resolved
from memagent_lib.rl.run.export import export_checkpoint
from memagent_lib.rl.run.training_run import TrainingRun, attach, launch
from memagent_lib.rl.run_folder import RunError, RunFolder, TrainingState, TrainingStatus, save_rollout

__all__ = [
    "Credited",
    "Files",
    "ModelConfig",
    "ReadingConfig",
    "Recipe",
    "RunError",
    "RunFolder",
    "TrackingConfig",
    "TrainingRun",
    "TrainingState",
    "TrainingStatus",
    "attach",
    "chosen_device",
    "differences",
    "dry_run",
    "export_checkpoint",
    "launch",
    "recipe_tables",
    "require_training",
    "resolved",
    "save_rollout",
]
