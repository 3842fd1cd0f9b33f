"""Supervised fine-tuning on turns: a warm start for reinforcement learning, for any model.

Reinforcement learning cannot begin while every rollout of a group scores 0. A warm start teaches the form of a turn, so
that some rollouts score: from a teacher that writes memories from an example's evidence, or from the right readings of
any model (rejection sampling). The trainer is transformers', with adapters by peft.

Read ``sft_recipe``, ``lessons``, ``fine_tuning`` in this order. This package does not depend on tasks, notebooks or
engines.
"""

from memagent_lib.sft.fine_tuning import Row, fine_tune, require_own, rows
from memagent_lib.sft.lessons import Moment, lessons_from_examples, lessons_from_traces
from memagent_lib.sft.sft_recipe import SftConfig, SftRecipe

__all__ = [
    "Moment",
    "Row",
    "SftConfig",
    "SftRecipe",
    "fine_tune",
    "lessons_from_examples",
    "lessons_from_traces",
    "require_own",
    "rows",
]
