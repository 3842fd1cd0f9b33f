"""Find settings that verl or vLLM would refuse only after a run has begun, some of them after hours of rollouts.

The checks take verl's composed configuration and numbers of the model. They start nothing and load no weights.
"""

from __future__ import annotations

import io
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from memagent_lib.rl.verl.verl_keys import MICRO_BATCH, ROLLOUT
from memagent_lib.settings import SettingsError

REFERENCE = "actor_rollout_ref.ref"


def require_valid(verl: Any, heads: int, longest_row: int, rehearse: bool = True) -> None:
    """Raise :class:`SettingsError` unless verl's configuration ``verl`` can train a model.

    The model has ``heads`` attention heads, and its longest row has ``longest_row`` tokens. Without ``rehearse``, the
    loss is not computed, which is for a loss that only verl's workers load.
    """
    with _in_one_line():
        with redirect_stdout(io.StringIO()):  # verl prints that its checks have passed
            validate(verl)
        if rehearse:
            _rehearse(verl)
    _require_parallel(verl, heads)
    _require_room(verl, longest_row)


def validate(verl: Any) -> None:
    """Let verl check its configuration. It raises errors of several types."""
    from verl.utils.config import validate_config

    reference = verl.actor_rollout_ref.actor.use_kl_loss
    validate_config(config=verl, use_reference_policy=reference, use_critic=False)


def _rehearse(verl: Any) -> None:
    """Compute the corrections and the loss of one token: verl checks their settings only where it uses them."""
    import torch
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import get_policy_loss_fn, kl_penalty
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.config import omega_conf_to_dataclass

    import memagent_lib.rl.loss  # noqa: F401  # registers the loss

    token = torch.full((1, 1), -1.0)
    mask = torch.ones(1, 1)
    correction = verl.algorithm.rollout_correction
    if not correction.bypass_mode:
        rows = {"old_log_probs": token, "rollout_log_probs": token, "response_mask": mask}
        compute_rollout_correction_and_add_to_batch(DataProto(batch=TensorDict(rows, batch_size=1)), correction)
    actor = omega_conf_to_dataclass(verl.actor_rollout_ref.actor)
    actor.global_batch_info.update(
        dp_size=1, batch_num_tokens=1, global_batch_size=1, loss_scale_factor=actor.loss_scale_factor
    )
    get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=token,
        log_prob=token,
        advantages=-token,
        response_mask=mask.bool(),
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
        rollout_is_weights=None,
    )
    if actor.use_kl_loss:
        kl_penalty(token, token, actor.kl_loss_type)


def _require_parallel(verl: Any, heads: int) -> None:
    rollout = verl.actor_rollout_ref.rollout
    tensor = rollout.tensor_model_parallel_size
    name = f"verl.{ROLLOUT}.tensor_model_parallel_size"
    if tensor < 1 or heads % tensor:
        raise SettingsError(f"{name} must divide the model's {heads} attention heads, got {tensor}")
    devices = verl.trainer.nnodes * verl.trainer.n_gpus_per_node
    engine = tensor * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    if devices % engine:
        raise SettingsError(
            f"an engine of vLLM takes {engine} GPUs ({name} = {tensor}), which must divide the run's {devices} "
            "(trainer.nnodes x trainer.n_gpus_per_node)"
        )


def _require_room(verl: Any, longest_row: int) -> None:
    """Raise :class:`SettingsError` if a micro-batch is smaller than one row: verl fails at the first row that long.

    Rows that are laid out as trees have no such limit.
    """
    roles = verl.actor_rollout_ref
    if not roles.model.use_remove_padding:
        return
    limits = {}
    if roles.actor.use_dynamic_bsz:
        limits[MICRO_BATCH] = roles.actor.ppo_max_token_len_per_gpu
    if roles.rollout.log_prob_use_dynamic_bsz:
        limits[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] = roles.rollout.log_prob_max_token_len_per_gpu
    if roles.actor.use_kl_loss and roles.ref.log_prob_use_dynamic_bsz:
        limits[f"{REFERENCE}.log_prob_max_token_len_per_gpu"] = roles.ref.log_prob_max_token_len_per_gpu
    # Each of the ranks that share a row has a part of it.
    ranks = max(roles.actor.ulysses_sequence_parallel_size, roles.actor.fsdp_config.ulysses_sequence_parallel_size)
    least = -(-longest_row // ranks)
    for name, limit in limits.items():
        if limit < least:
            raise SettingsError(
                f"verl.{name} must be at least {least:,}, got {limit:,}: the longest row has {longest_row:,} tokens "
                "(prompt and reply), and a micro-batch holds whole rows; raise it, or lower reading.chunk_tokens"
            )


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Turn verl's refusal of a setting into a :class:`SettingsError`."""
    from hydra.errors import InstantiationException

    try:
        yield
    except InstantiationException as refused:
        table = re.search(r"full_key: (\S+)", str(refused))
        named = f"verl.{table[1]}" if table else "the settings in [verl]"
        raise SettingsError(f"verl refuses {named}: {_reason(refused.__cause__ or refused)}") from refused
    except (AssertionError, TypeError, ValueError, NotImplementedError) as refused:
        raise SettingsError(f"verl refuses the settings in [verl]: {_reason(refused)}") from refused


def _reason(refused: BaseException) -> str:
    """Return the error's message, or the condition that failed where verl gives none."""
    return str(refused).strip() or str(traceback.extract_tb(refused.__traceback__)[-1].line)
