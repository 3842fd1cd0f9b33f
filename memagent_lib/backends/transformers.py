"""Hugging Face transformers as a backend: every causal LM, on CPU, CUDA or MPS, with no engine to start.

Waiting requests are answered as one batch in a worker thread. A greedy request alone is decoded with drafts that are
looked up in its prompt, because a reply mostly repeats the old memory (transformers' prompt lookup decoding).
"""

from __future__ import annotations

import asyncio
from typing import Any

from memagent_lib.backends.interface import BackendError, Sampling, require_room
from memagent_lib.backends.model_shape import config_of, end_tokens, shape_of
from memagent_lib.prompts import Request
from memagent_lib.system import free_bytes, multiplies
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.trace import Reply

BATCH = 64  # requests answered together
LOOKUP_TOKENS = 16  # of a draft; the replies are the same with any number
FLOAT_SHARE = 0.7  # of the free memory, at most, for weights in float32; prompts need some too
PAD = 0  # masked, so the model never attends to it


class Transformers:
    """A backend that runs the model in a folder, or under a hub name, on the best available device.

    ``threads`` limits a CPU's threads (default: all cores).
    """

    def __init__(self, model: str, sampling: Sampling, *, window: int | None = None, threads: int | None = None):
        self._tokenizer = Tokenizer.load(model)
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # whoever opens a model has a status line already
        self._torch = torch
        self.device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        dtype = _fast_dtype(model) if self.device.type == "cpu" else "auto"
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(self.device).eval()
        self.sampling = sampling
        self.threads = threads
        self.window = window or self.model.config.get_text_config().max_position_embeddings
        self._waiting: list[tuple[Request, asyncio.Future[Reply]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._ends = end_tokens(model, self._tokenizer)
        # A model's own generation_config.json may have a repetition penalty (Qwen2.5-Instruct has 1.05), which punishes
        # copying; training and vLLM here have none.
        self.model.generation_config = GenerationConfig(eos_token_id=list(self._ends) or None, pad_token_id=PAD)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)

    async def complete(self, request: Request) -> Reply:
        require_room(request, self.window)
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append((request, reply))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await reply

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._waiting = []

    async def _work(self) -> None:
        await asyncio.sleep(0)  # let everyone who is ready join the batch
        while waiting := [one for one in self._waiting if not one[1].done()]:
            # A second attempt has a sampling and a seed of its own, and so a batch of its own.
            first = [one for one in waiting if not one[0].attempt]
            batch = first[:BATCH] or waiting[:1]
            self._waiting = waiting  # the batch too: whoever waits for it must not wait on after close
            replies: list[Any]
            try:
                replies = await asyncio.to_thread(self._batch, [request for request, _ in batch])
            except Exception as failure:  # whatever it is, nobody may be left waiting
                expected = isinstance(failure, RuntimeError | ValueError)  # what torch and transformers raise
                error = BackendError(f"transformers gave no reply: {failure}") if expected else failure
                replies = [error] * len(batch)
            for (_, future), reply in zip(batch, replies, strict=True):
                if future.done():  # its reading was cancelled
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)

    def _batch(self, requests: list[Request]) -> list[Reply]:
        """Return the replies of one left-padded batch, with the first request's sampling."""
        torch = self._torch
        if self.threads is not None:
            torch.set_num_threads(self.threads)  # counts for the calling thread alone
        width = max(len(request.ids) for request in requests)
        padding = [width - len(request.ids) for request in requests]
        rows = [[PAD] * empty + list(request.ids) for empty, request in zip(padding, requests, strict=True)]
        ids = torch.tensor(rows, device=self.device)
        mask = torch.tensor([[0] * empty + [1] * (width - empty) for empty in padding], device=self.device)
        drawn = self.sampling.for_request(requests[0])
        options: dict[str, Any] = {"do_sample": False}
        if drawn.temperature:
            options = {"do_sample": True, "temperature": drawn.temperature, "top_p": drawn.top_p, "top_k": 0}
        elif len(requests) == 1 and not self.model._is_stateful:  # a recurrent state cannot be rolled back
            options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        most = max(request.max_tokens for request in requests)
        with torch.inference_mode(), torch.random.fork_rng(enabled=bool(requests[0].attempt)):
            if requests[0].attempt:
                torch.manual_seed(self.sampling.seed_for(requests[0]))
            out = self.model.generate(ids, attention_mask=mask, max_new_tokens=most, **options)
        return [self._reply(request, row) for request, row in zip(requests, out[:, width:].tolist(), strict=True)]

    def _reply(self, request: Request, row: list[int]) -> Reply:
        ids = row[: request.max_tokens]
        end = next((number for number, token in enumerate(ids) if token in self._ends), None)
        sampled = tuple(ids if end is None else ids[: end + 1])
        reason = "length" if end is None else "stop"
        return Reply(self._tokenizer.decode(ids[:end]), reason, len(request.ids), len(sampled), token_ids=sampled)


def _fast_dtype(model: str) -> str:
    """Return ``"float32"`` for weights of a type that the CPU would emulate, if they fit in memory, else ``"auto"``."""
    config = config_of(model)
    stored = str(config.dtype or config.get_text_config().dtype).removeprefix("torch.")
    fits = 4 * shape_of(model).parameters < FLOAT_SHARE * free_bytes()
    return "float32" if fits and not multiplies(stored) else "auto"
