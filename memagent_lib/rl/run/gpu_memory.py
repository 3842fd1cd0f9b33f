"""The bytes that one GPU of a training run needs, by use: in the update, in scoring and while vLLM samples.

They are upper bounds from the model's shape, the budgets and verl's configuration. Nothing here looks at a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memagent_lib.backends import ModelShape
from memagent_lib.rl.run.step_work import Work

SAFETY = 0.95
"""The share of a GPU's memory that a plan may use; the rest is for fragmentation."""
FP32 = 4
BF16 = 2
SAVED_SHARE = 1.3  # of saved_width in bf16, where all activations are kept; 1.27 measured with adapters on an H200
# vLLM's CUDA context and graphs, which it also has while it sleeps: what its own test of sleep mode allows beside the
# buffer of logits (vllm, tests/basic_correctness/test_cumem.py).
ENGINE_BYTES = 2 << 30


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one of ``workers`` GPUs, for a step with ``rollouts`` rollouts of each prompt.

    ``verl`` is the whole configuration. ``attention`` is its implementation in passes over rows; ``in_trees`` is
    whether these share common prefixes (:mod:`memagent_lib.rl.verl.prefix_trees`).
    """

    shape: ModelShape
    work: Work
    verl: Any
    workers: int
    rollouts: int
    attention: str
    in_trees: bool

    def training_bytes(self) -> dict[str, float]:
        """Return how many bytes one GPU needs during the update, by use.

        verl's ``param_offload`` and ``optimizer_offload`` bring weights and moments back for the update, so they count.
        With ``offload_policy`` they stay on the host and are loaded layer by layer.
        """
        actor = self.verl.actor_rollout_ref.actor
        tokens = min(actor.ppo_max_token_len_per_gpu, self.work.trained_tokens)
        state = dict.fromkeys(self._state, 0.0) if actor.fsdp_config.offload_policy else self._state
        kept = self.shape.hidden if self.recomputes else SAVED_SHARE * self.shape.saved_width
        saved = {"activations": tokens * kept * self.shape.layers * BF16}
        # Logits in bf16, then in fp32: a copy, its softmax, and the gradient of the backward pass. In trees, keys and
        # values along the rows' paths, and their gradients.
        return state | saved | self._pass_bytes(tokens, logit_bytes=BF16 + 3 * FP32, path_vectors=4)

    def scoring_bytes(self) -> dict[str, float]:
        """Return how many bytes one GPU needs while it computes the log-probabilities of replies, by use.

        The reference policy, if there is one, is on the host and is loaded layer by layer.
        """
        actor = self.verl.actor_rollout_ref.actor
        tokens = self.verl.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu
        weights = 0.0 if actor.fsdp_config.offload_policy else self._state["weights"]
        moments = 0.0 if self._moments_away else self._state["optimizer"]
        state = {"weights": weights, "optimizer": moments}
        tokens = min(tokens, self.work.trained_tokens)
        return state | self._pass_bytes(tokens, logit_bytes=BF16 + 2 * FP32, path_vectors=2)

    def _pass_bytes(self, tokens: float, logit_bytes: int, path_vectors: int) -> dict[str, float]:
        """Return the bytes of a pass over a micro-batch, apart from the model's state and saved activations."""
        whole_rows = not self.verl.actor_rollout_ref.model.use_remove_padding  # a tree may be mostly replies
        scored = tokens * (1 if whole_rows else self.work.reply_share)
        mask = {}
        if self.in_trees:
            mask = self._tree_bytes(tokens, path_vectors)
        elif self.attention == "sdpa":  # a mask of all pairs, in bf16 and as the booleans that it is made from
            mask = {"attention mask": (BF16 + 1) * tokens**2}
        return mask | {
            "one layer's activations": tokens * self.shape.saved_width * BF16,
            "one layer gathered": 2 * BF16 * self.shape.parameters / self.shape.layers,
            "logits": scored * self.shape.vocabulary * logit_bytes,
            "vLLM asleep": self._engine_bytes,
        }

    def _tree_bytes(self, tokens: float, path_vectors: int) -> dict[str, float]:
        """Return the bytes that attention over trees of ``tokens`` nodes takes in one layer.

        Each node has a line in a mask as long as its row, in fp32 and in bf16. ``path_vectors`` vectors are gathered
        for every token of every row: in the worst case replies are short, and a node belongs to all rollouts of its
        prompt.
        """
        from memagent_lib.rl.verl.tree_attention import PADDING

        return {
            "attention mask": (FP32 + BF16) * PADDING * tokens * self.work.longest_row,
            "paths gathered": path_vectors * BF16 * self.rollouts * tokens * self.shape.attention,
        }

    @property
    def recomputes(self) -> bool:
        """Whether only each layer's input is kept for the backward pass."""
        return self.verl.actor_rollout_ref.model.enable_gradient_checkpointing

    @property
    def _moments_away(self) -> bool:
        """Whether the optimizer's moments are on a GPU only during the update, or never."""
        where = self.verl.actor_rollout_ref.actor.fsdp_config
        return where.optimizer_offload or where.offload_policy

    @property
    def _engine_bytes(self) -> float:
        """The bytes on each GPU that vLLM has beside weights and cache, and that it also has while it sleeps.

        They are its CUDA context and graphs, and the fp32 logits of as many replies as it samples at once.
        """
        return ENGINE_BYTES + 4 * self.verl.actor_rollout_ref.rollout.max_num_seqs * self.shape.vocabulary

    @property
    def _state(self) -> dict[str, float]:
        """Each GPU's bytes of weights, gradients and moments."""
        actor = self.verl.actor_rollout_ref.actor
        parameters = self.shape.parameters
        shards = actor.fsdp_config.fsdp_size if actor.fsdp_config.fsdp_size > 0 else self.workers
        if self.verl.actor_rollout_ref.model.lora_rank > 0:
            # verl loads the frozen base in fp32, unless the engine's model_dtype is another.
            size = 2 if actor.fsdp_config.get("model_dtype") in ("bf16", "bfloat16", "fp16", "float16") else 4
            return {"weights": size * parameters / shards, "gradients": 0, "optimizer": 0}
        moments = 2 if "8bit" in actor.optim.optimizer else 8  # bytes of both moments per parameter
        return {name: n * parameters / shards for name, n in (("weights", 4), ("gradients", 4), ("optimizer", moments))}

    def rollout_bytes(self) -> dict[str, float]:
        """Return the least memory that vLLM needs on one GPU, in bytes by use, with a cache for one row."""
        parallel = self.verl.actor_rollout_ref.rollout.tensor_model_parallel_size
        return {
            "weights": 2 * self.shape.parameters / parallel,
            "one row's cache": self.work.longest_row * self.shape.kv_bytes / parallel,
            "graphs and logits": self._engine_bytes,
        }

    def resident_bytes(self) -> float:
        """Return how many bytes of weights and moments stay on one GPU while vLLM samples there."""
        where = self.verl.actor_rollout_ref.actor.fsdp_config
        resident = 0.0
        if not (where.param_offload or where.offload_policy):
            resident += self._state["weights"]
        if not self._moments_away:
            resident += self._state["optimizer"]
        return resident

    def fits(self, memory: float) -> bool:
        """Return whether a GPU of ``memory`` bytes holds the update, and the sampling beside what stays of training."""
        rollout = self.verl.actor_rollout_ref.rollout
        sampling = rollout.gpu_memory_utilization * memory
        awake = 0.0 if rollout.free_cache_engine else sampling - self._engine_bytes  # vLLM then never sleeps
        passes = max(sum(self.training_bytes().values()), sum(self.scoring_bytes().values()))
        return (
            passes + awake <= SAFETY * memory
            and sum(self.rollout_bytes().values()) <= sampling
            and sampling + self.resident_bytes() <= SAFETY * memory
        )
