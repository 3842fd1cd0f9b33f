"""Rollouts on a CPU: verl's server, vLLM's engine and the agent loops in one process.

verl gives each a process of its own, and a message between two processes takes longer than a small policy's turn. Here
a turn is a function call. The servers start early, at the same time as the training worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, trainer_base
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutMode, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import get_vision_placeholder_token_ids
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.v1.sample import sampler
from vllm.v1.sample.ops import topk_topp_sampler

from memagent_lib.rl.agent_loop import RolloutWorker
from memagent_lib.rl.verl.cpu_platform import return_freed_memory, run_key, server_name
from memagent_lib.system import cores


class CpuWeights(vLLMColocateWorkerExtension):
    """verl's vLLM worker extension, with a full reload instead of an update.

    vLLM's CPU build packs linear weights when it loads a model and drops the originals, so verl's in-place update
    silently changes nothing. verl finds this class by ``rollout.engine_kwargs.vllm.worker_extension_cls``.
    """

    def update_weights_from_ipc(
        self, peft_config: dict | None = None, base_sync_done: bool = False, use_shm: bool = True
    ) -> None:
        """Receive and load all of the actor's tensors, into which the sender has merged any adapters."""
        assert not peft_config, "adapters are sent apart from their weights"
        weights: dict[str, torch.Tensor] = {}

        def copy(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            weights.update((name, tensor.clone()) for name, tensor in bucket)  # the bucket's memory is used again
            bucket.clear()

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=copy)
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
        for module in self.model_runner.model.modules():
            if isinstance(module, VocabParallelEmbedding):
                # A tied output head uses a packed copy, which a reload leaves unchanged.
                module.quant_method.process_weights_after_loading(module)
        weights.clear()
        return_freed_memory()  # the copies are as large as the model


class SeededSampler(topk_topp_sampler.TopKTopPSampler):
    """vLLM's sampler, with the same draws in a third of the time where every request has a seed, as in rollouts.

    vLLM draws noise for all requests, and then again for each one with a seed, one after another: 60 % of the time of
    rollouts of a model with a vocabulary of 49,152.
    """

    def forward_cpu(
        self, logits: torch.Tensor, generators: Mapping[int, torch.Generator], k: Any, p: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if len(generators) < len(logits) or self.logprobs_mode != "processed_logprobs":
            return super().forward_cpu(logits, generators, k, p)
        logits = topk_topp_sampler.apply_top_k_top_p(logits, k, p)
        noise = torch.empty_like(logits, dtype=torch.float32)
        draw = torch.inference_mode()(lambda row: noise[row].exponential_(generator=generators[row]))
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(draw, generators))
        drawn = topk_topp_sampler.sample_with_exponential_noise(logits.softmax(-1, dtype=torch.float32), noise)
        return drawn, logits.log_softmax(-1, dtype=torch.float32)


class RolloutServer(vLLMHttpServer):
    """verl's rollout server without HTTP: its agent loops call the engine in the same process."""

    async def run_server(self, args: Any) -> None:
        """Start the engine. verl's ``launch_server`` calls this."""
        os.environ["VERL_RAY_JOB_ID"] = run_key()  # a part of the socket's name at which weights arrive
        from vllm import AsyncEngineArgs

        from memagent_lib.backends import LoopEngine

        sampler.TopKTopPSampler = SeededSampler  # vLLM offers no other way to name the class
        self.engine = LoopEngine(AsyncEngineArgs.from_cli_args(args).create_engine_config())
        names = {
            "vocab_size": len(self.model_config.tokenizer),
            "banned_token_ids": get_vision_placeholder_token_ids(self.model_config.processor),
        }
        await self.engine.collective_rpc("monkey_patch_model", kwargs=names)
        self._server_port = 0  # verl asserts that there is a port, but nothing listens here

    async def start_agents(self, config: Any) -> None:
        """Make this process a worker of verl's agent loops too."""
        self._agents = await asyncio.to_thread(RolloutWorker, config, _LocalClient(self))  # it waits for others

    async def generate_sequences(self, batch: Any) -> None:
        await self._agents.generate_sequences(batch)


class _LocalClient:
    """The client of a server in the same process. It numbers its requests, one per turn."""

    def __init__(self, server: RolloutServer):
        self._server = server
        self._requests = 0

    async def generate(self, request_id: str, **request: Any) -> TokenOutput:
        self._requests += 1
        output = await self._server.generate(request_id=f"{request_id}-{self._requests}", **request)
        step = output.extra_fields["global_steps"]
        output.extra_fields |= {"min_global_steps": step, "max_global_steps": step}
        return output


class RolloutServers(vLLMReplica):
    """The rollout servers of one worker, which verl treats as one replica. :func:`start_servers` starts them early."""

    started: ClassVar[dict[int, list[tuple[Any, Any]]]] = {}

    def start(self, count: int, threads: int, node: str) -> None:
        """Start ``count`` servers with their engines on the Ray node ``node``, and return without waiting for them."""
        arguments = {
            "config": self.config,
            "model_config": self.model_config,
            "rollout_mode": RolloutMode.HYBRID,
            "workers": [],
            "node_rank": 0,
            "gpus_per_node": 1,
            "nnodes": 1,
            "cuda_visible_devices": "",
        }
        self.started[self.replica_rank] = []
        # Numbered over all workers, because CpuSender finds its worker's servers by these numbers.
        for number in range(self.replica_rank * count, (self.replica_rank + 1) * count):
            actor = ray.remote(RolloutServer).options(
                name=server_name(number),
                max_concurrency=self.max_concurrency,
                runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            server = actor.remote(replica_rank=number, **arguments)
            self.started[self.replica_rank].append((server, server.launch_server.remote()))

    async def launch_servers(self) -> None:
        await asyncio.gather(*(launched for _, launched in self.started[self.replica_rank]))
        self.servers = [server for server, _ in self.started[self.replica_rank]]
        self._server_handle = self.servers[0]
        self._server_address = f"rollouts-{self.replica_rank}:0"


class LocalServers(LLMServerManager):
    """verl's manager of servers, without the load balancer's process, because every loop calls its own server."""

    async def _init_global_load_balancer(self) -> None:
        return None


async def manager_of(config: Any, trainer: Any) -> AgentLoopManagerTQ:
    """Return verl's manager of agent loops, with the rollout servers as its workers."""
    manager = AgentLoopManagerTQ(config=config, llm_client=None, reward_loop_worker_handles=None)
    manager.agent_loop_workers = [server for one in RolloutServers.started.values() for server, _ in one]
    await asyncio.gather(*(server.start_agents.remote(config) for server in manager.agent_loop_workers))
    return manager


def start_servers(config: Any) -> None:
    """Start the rollout servers of every worker, and register them with verl under the name ``vllm``.

    ``rollout.agent.num_workers`` is the number of servers in total; they share the processor's cores.
    """
    RolloutReplicaRegistry.register("vllm", lambda: RolloutServers)
    trainer_base.LLMServerManager = LocalServers  # verl offers no other way to name the class
    actor = config.actor_rollout_ref
    here = config.trainer.n_gpus_per_node
    workers = config.trainer.nnodes * here
    nodes = _nodes()
    servers = actor.rollout.agent.num_workers
    threads = max(1, cores() * config.trainer.nnodes // servers)
    for rank in range(workers):
        replica = RolloutServers(rank, actor.rollout, actor.model, actor.rollout.n_gpus_per_node)
        replica.start(servers // workers, threads, nodes[rank // here])


def _nodes() -> list[str]:
    """Return the nodes that have devices in verl's order of workers, so that weights are sent within a node."""
    alive = (node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU"))
    return [node["NodeID"] for node in sorted(alive, key=lambda node: node["NodeManagerAddress"])]
