"""Reinforcement learning of readers with verl: multi-conversation GRPO (MemAgent, arXiv 2507.02259).

A rollout reads one document: a conversation (turn) per chunk and one for the answer. Only the answer is scored. Every
token of every turn is then trained with the rollout's advantage (equations 4 and 5)::

    J = 1/N sum_ijt  w min(r A_ij, clip(r, 1 - low, 1 + high) A_ij) - beta k3_ijt + entropy_coeff H_ijt
    A_ij = R_i - mean(R), of the rollouts i of one prompt        r = p_new / p_old, of token t of turn j of rollout i
    k3 = q - log q - 1, q = p_reference / p_new                  w = min(p_actor / p_sampler, 2), before the update

``N`` counts the tokens of all turns of all rollouts of a mini-batch, over all ranks. For ``A < 0`` the first term is at
least ``3 A`` (dual clip).

What stands in the equation has verl's own name in a recipe's ``[verl]`` table; below, ``actor`` is
``actor_rollout_ref.actor``.

``actor.clip_ratio_low``, ``actor.clip_ratio_high``
    0.2 as published. DAPO raises the upper one to 0.28, so that rare tokens may become likelier: for entropy that
    collapses. A lower ``low`` bounds how fast tokens are given up: for replies that lose their form.
``actor.kl_loss_coef``
    ``beta``, with ``actor.use_kl_loss``: for models whose other abilities must stay, at the price of a forward pass.
``actor.entropy_coeff``
    For replies that all become alike before they are right.
``algorithm.norm_adv_by_std_in_grpo``
    Divides ``A`` by the group's deviation (GRPO as published): for data where prompts that are nearly always or nearly
    never answered should weigh as much as others.
``algorithm.rollout_correction``
    ``bypass_mode`` takes the sampler's probabilities as ``p_old``, which saves a forward pass and is right in fp32.
    Elsewhere ``rollout_is_threshold`` caps ``w``; ``rollout_is = null`` is ``w = 1``, as published.
``actor.loss_agg_mode``
    ``token-mean``: every token weighs alike (DAPO, arXiv 2503.14476, equation 12), so long replies weigh more.
    ``seq-mean-token-mean`` averages each reply first, and counts rows of padding as replies.
``data.train_batch_size``, ``actor_rollout_ref.rollout.n``, ``actor.ppo_mini_batch_size``
    The prompts of a step, the rollouts of a prompt, and the prompts of one optimizer step, whatever their turns.
``actor.optim``
    The rate rises in a line to ``lr`` in ``lr_warmup_steps``, then falls along a cosine to ``min_lr_ratio`` of it, for
    runs with a planned end. A ratio of 1 stays at ``lr``, as published.
``actor_rollout_ref.model.use_remove_padding``
    ``false`` lays rows out as trees and computes once what the rollouts of a group share, for templates with the chunk
    first. The gradients are the same. On a CPU it is always so.

What verl has no word for is in ``[train]`` (:class:`~memagent_lib.rl.config.TrainingConfig`) and ``[data]``.

Read ``config``, ``advantages``, ``loss``, ``agent_loop``, ``trainer`` in this order; ``curriculum`` draws the examples,
``run_folder`` is what a run leaves on disk. ``verl`` touches verl's inside, ``cpu`` is what only a CPU needs, ``run``
the processes around a run. This door loads neither verl nor vLLM nor Ray. Knows no notebook and no chart.
"""

from memagent_lib.rl.advantages import Credit, Overlong
from memagent_lib.rl.config import (
    ClusterConfig,
    DataConfig,
    ModelConfig,
    ReadingConfig,
    Recipe,
    TrackingConfig,
    TrainingConfig,
    flatten,
)
from memagent_lib.rl.run import (
    PlanError,
    RunError,
    TrainingPlan,
    TrainingRun,
    attach,
    check_training,
    dry_run,
    launch,
    random_policy,
    resolved,
)
from memagent_lib.rl.run_folder import Checkpoint, RunFolder, TrainingState, TrainingStatus, load_rollouts, save_rollout

__all__ = [
    "Checkpoint",
    "ClusterConfig",
    "Credit",
    "DataConfig",
    "ModelConfig",
    "Overlong",
    "PlanError",
    "ReadingConfig",
    "Recipe",
    "RunError",
    "RunFolder",
    "TrackingConfig",
    "TrainingConfig",
    "TrainingPlan",
    "TrainingRun",
    "TrainingState",
    "TrainingStatus",
    "attach",
    "check_training",
    "dry_run",
    "flatten",
    "launch",
    "load_rollouts",
    "random_policy",
    "resolved",
    "save_rollout",
]
