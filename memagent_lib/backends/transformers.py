"""Hugging Face transformers as a backend: every causal LM, on CPU, CUDA or MPS, with no engine to start.

Requests that wait together are answered as one left-padded batch in a worker thread.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from memagent_lib.backends.interface import BackendError, Sampling, require_room
from memagent_lib.prompts import Completion, Request
from memagent_lib.tokenizer import Tokenizer

BATCH = 64  # requests answered together


class Transformers:
    """A model folder or hub name, on the best device there is; a CPU's ``threads`` are all unless given."""

    def __init__(self, model: str, sampling: Sampling, *, window: int | None = None, threads: int | None = None):
        self._tokenizer = Tokenizer.load(model)
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils.logging import disable_progress_bar
        except ImportError as missing:
            raise ImportError(
                "the transformers backend needs torch and transformers: pip install 'memagent-lib[cpu]'"
            ) from missing
        if not sys.stderr.isatty():
            disable_progress_bar()
        self._torch = torch
        self.device = _best_device(torch)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype="auto").to(self.device).eval()
        self.sampling, self._threads = sampling, threads
        self.window = window or self._model.config.max_position_embeddings
        self._waiting: list[tuple[Request, asyncio.Future]] = []
        self._worker: asyncio.Task | None = None
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)

    async def complete(self, request: Request) -> Completion:
        require_room(request, self.window)
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answered))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answered

    async def close(self) -> None:
        if self._worker is not None and not self._worker.done():
            self._worker.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._waiting = []

    async def _work(self) -> None:
        await asyncio.sleep(0)  # let everyone who is ready join the batch
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            batch = [(request, future) for request, future in batch if not future.done()]
            try:
                completions = await asyncio.to_thread(self._generate, [request for request, _ in batch])
            except (
                Exception
            ) as failure:  # nobody may be left waiting; what is no engine's failure is a bug and stays one
                ours = isinstance(failure, RuntimeError | ValueError)
                told = BackendError(f"transformers gave no reply: {failure}") if ours else failure
                _hand_out(batch, [told] * len(batch))
            else:
                _hand_out(batch, completions)

    def _generate(self, requests: list[Request]) -> list[Completion]:
        if not requests:
            return []
        torch, pad = self._torch, 0  # masked
        width = max(len(r.ids) for r in requests)
        ids = torch.tensor([[pad] * (width - len(r.ids)) + list(r.ids) for r in requests], device=self.device)
        mask = torch.tensor([[0] * (width - len(r.ids)) + [1] * len(r.ids) for r in requests], device=self.device)
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # of the calling thread, which is one of the event loop's workers
        s, drawn = self.sampling, {"do_sample": False}
        if s.temperature:
            drawn = {"do_sample": True, "temperature": s.temperature, "top_p": s.top_p, "top_k": 0}
        with torch.inference_mode():
            out = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=max(r.max_tokens for r in requests), pad_token_id=pad, **drawn
            )
        return [self._completion(r, row) for r, row in zip(requests, out[:, width:].tolist(), strict=True)]

    def _completion(self, request: Request, row: list[int]) -> Completion:
        eos = self._model.generation_config.eos_token_id
        ends = set(eos if isinstance(eos, list) else [eos])
        row = row[: request.max_tokens]
        stop = next((i + 1 for i, token in enumerate(row) if token in ends), None)
        said = row[:stop]
        text = self._tokenizer.decode(said)
        return Completion(text, "length" if stop is None else "stop", len(request.ids), len(said), 0, tuple(said))


def _hand_out(batch: list[tuple[Request, asyncio.Future]], replies: list[Completion | Exception]) -> None:
    for (_, future), reply in zip(batch, replies, strict=True):
        if future.done():  # its reading was cancelled
            continue
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)


def _best_device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
