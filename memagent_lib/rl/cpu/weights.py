"""Update the weights of vLLM's CPU build.

vLLM's CPU build packs linear weights when it loads a model and drops the originals, so verl's in-place update silently
changes nothing. The worker extension here collects the new tensors and lets vLLM load them like a checkpoint. verl
finds it through the setting ``rollout.engine_kwargs.vllm.worker_extension_cls``.
"""

from __future__ import annotations

import os

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from memagent_lib.rl.cpu.cpu_memory import return_freed_memory
from memagent_lib.rl.cpu.weight_channel import socket


class CpuWeights(vLLMColocateWorkerExtension):
    """verl's vLLM worker extension, with a full reload in place of :meth:`update_weights_from_ipc`."""

    def update_weights_from_ipc(
        self, peft_config: dict | None = None, base_sync_done: bool = False, use_shm: bool = True
    ) -> None:
        """Receive and load all of the actor's tensors, into which the sender has merged any adapters."""
        assert not peft_config, "adapters are sent apart from their weights"
        weights = self._receive(use_shm)
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
        self._repack_embeddings()
        del weights
        return_freed_memory()  # the copies are as large as the model

    def _receive(self, use_shm: bool) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = {}

        def copy(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            weights.update((name, tensor.clone()) for name, tensor in bucket)  # the bucket's memory is used again
            bucket.clear()

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=copy)
        return weights

    def _get_zmq_handle(self) -> str:
        return socket(os.environ["VERL_REPLICA_RANK"], self.local_rank)

    def _repack_embeddings(self) -> None:
        """Pack tied embeddings again, because the output head uses a packed copy that a reload leaves unchanged."""
        for module in self.model_runner.model.modules():
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)
