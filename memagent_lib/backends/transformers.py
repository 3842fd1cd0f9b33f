"""Hugging Face transformers as a backend: every causal LM, on CPU, CUDA or MPS, with no engine to start.

Waiting requests are answered as one batch in a worker thread. The draft of a greedy reply is the old memory. One pass
of the model verifies it, and no further pass is needed if the chunk changed nothing (speculative decoding with a draft
from the prompt; Leviathan et al. 2023, arXiv 2211.17192).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from memagent_lib.backends.end_tokens import end_tokens
from memagent_lib.backends.interface import BackendError, Sampling, require_room
from memagent_lib.backends.model_shape import config_of, shape_of
from memagent_lib.prompts import Request
from memagent_lib.system import free_bytes, multiplies
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.trace import Reply

BATCH = 64  # requests answered together
CHECKS = 3  # passes over a draft: after a token that differs, the rest of it may still be right
WORTHWHILE = 0.3  # the share of drafts that has to be right, token for token, for the next to be checked
RETRY_DRAFTS = 16  # batches after which drafts that were mostly wrong are checked again
FLOAT_SHARE = 0.7  # of the free memory, at most, for weights in float32; prompts need some too
PAD = 0  # masked, so the model never attends to it
Ids = tuple[int, ...]


class Transformers:
    """A backend that runs the model in a folder, or under a hub name, on the best available device.

    ``threads`` limits a CPU's threads (default: all cores). With ``drafts``, a greedy reply is first guessed to be the
    old memory and checked in one pass; without, each token takes a pass of its own. The replies are the same.
    """

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        *,
        window: int | None = None,
        threads: int | None = None,
        drafts: bool = True,
    ):
        self._tokenizer = Tokenizer.load(model)
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # whoever opens a model has a status line already
        self._torch = torch
        self.device = _best_device(torch)
        dtype = _fast_dtype(model) if self.device == "cpu" else "auto"
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(self.device).eval()
        self.sampling = sampling
        self._threads = threads
        self._drafts = drafts and not sampling.temperature
        self.window = window or self.model.config.get_text_config().max_position_embeddings
        self._waiting: list[tuple[Request, asyncio.Future]] = []
        self._worker: asyncio.Task | None = None
        self._ends = end_tokens(model, self._tokenizer)
        # A model's own generation_config.json may have a repetition penalty (Qwen2.5-Instruct has 1.05), which punishes
        # copying; training and vLLM here have none.
        self.model.generation_config = GenerationConfig(eos_token_id=list(self._ends) or None, pad_token_id=PAD)
        self._right_share = 1.0  # how many of the last batch's drafts were right as a whole
        self._batches = 0
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
        if self._worker is not None and not self._worker.done():
            self._worker.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._waiting = []

    async def _work(self) -> None:
        await asyncio.sleep(0)  # let everyone who is ready join the batch
        while self._waiting:
            batch = [(request, future) for request, future in self._waiting[:BATCH] if not future.done()]
            self._waiting = self._waiting[BATCH:]
            try:
                replies = await asyncio.to_thread(self._generate, [request for request, _ in batch])
            except Exception as failure:  # whatever it is, nobody may be left waiting
                expected = isinstance(failure, RuntimeError | ValueError)  # what torch and transformers raise
                error = BackendError(f"transformers gave no reply: {failure}") if expected else failure
                _hand_out(batch, [error] * len(batch))
            else:
                _hand_out(batch, replies)

    def _generate(self, requests: list[Request]) -> list[Reply]:
        if self._threads is not None:
            self._torch.set_num_threads(self._threads)  # counts for the calling thread alone
        with self._torch.inference_mode():
            replies = self._from_drafts(requests)
            rows = [i for i, request in enumerate(requests) if not self._finished(request, replies[i])]
            first = [i for i in rows if not requests[i].attempt]
            # A second attempt has a sampling and a seed of its own.
            for group in filter(None, (first, *([i] for i in rows if requests[i].attempt))):
                rest = self._continue([requests[i] for i in group], [replies[i] for i in group])
                for i, more in zip(group, rest, strict=True):
                    replies[i] = (replies[i] + more)[: requests[i].max_tokens]
        return [self._reply(request, ids) for request, ids in zip(requests, replies, strict=True)]

    def _from_drafts(self, requests: list[Request]) -> list[Ids]:
        """Return the beginning of each greedy reply, as far as its draft is right.

        Some beginnings are whole replies.
        """
        replies: list[Ids] = [()] * len(requests)
        self._batches += 1
        hopeless = self._right_share < WORTHWHILE and self._batches % RETRY_DRAFTS != 0
        if not self._drafts or hopeless:
            return replies
        drafts = [(*r.draft, *self._ends[:1])[: r.max_tokens] if r.draft and not r.attempt else () for r in requests]
        for check in range(CHECKS):
            rows = [
                i
                for i, draft in enumerate(drafts)
                if len(replies[i]) < len(draft) and not self._finished(requests[i], replies[i])
            ]
            if not rows:
                break
            remaining = [drafts[i][len(replies[i]) :] for i in rows]
            agreed = self._agree([requests[i].ids + replies[i] for i in rows], remaining)
            for i, tokens in zip(rows, agreed, strict=True):
                replies[i] += tokens
            if check == 0:
                self._right_share = sum(map(tuple.__eq__, agreed, remaining)) / len(remaining)
        return replies

    def _agree(self, begun: list[Ids], drafts: list[Ids]) -> list[Ids]:
        """Return the model's greedy tokens after ``begun`` while they equal the draft, and the first one that differs.

        This takes one pass over all rows, padded on the right: with a causal mask nothing after a token can change it.
        """
        torch = self._torch
        rows = [[*ids, *draft] for ids, draft in zip(begun, drafts, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows], device=self.device)
        states = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        head = self.model.get_output_embeddings()
        agreed = []
        for state, known, draft in zip(states, begun, drafts, strict=True):
            first = len(known) - 1  # the state of each token predicts the next one
            likeliest = head(state[first : first + len(draft)]).argmax(-1).tolist()
            agreed.append(_up_to_first_difference(likeliest, draft))
        return agreed

    def _finished(self, request: Request, ids: Ids) -> bool:
        return len(ids) == request.max_tokens or (bool(ids) and ids[-1] in self._ends)

    def _continue(self, requests: list[Request], begun: list[Ids]) -> list[Ids]:
        """Return the tokens that follow ``begun``, from one left-padded batch with the first request's sampling."""
        if not requests:
            return []
        torch = self._torch
        rows = [request.ids + ids for request, ids in zip(requests, begun, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([[PAD] * (width - len(row)) + list(row) for row in rows], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.device)
        drawn = self.sampling.for_request(requests[0])
        sampling = {"do_sample": False}
        if drawn.temperature:
            sampling = {"do_sample": True, "temperature": drawn.temperature, "top_p": drawn.top_p, "top_k": 0}
        most = max(request.max_tokens - len(ids) for request, ids in zip(requests, begun, strict=True))
        with torch.random.fork_rng(enabled=bool(requests[0].attempt)):
            if requests[0].attempt:
                torch.manual_seed(self.sampling.seed_for(requests[0]))
            out = self.model.generate(ids, attention_mask=mask, max_new_tokens=most, **sampling)
        return [self._up_to_end(row) for row in out[:, width:].tolist()]

    def _up_to_end(self, row: list[int]) -> Ids:
        for number, token in enumerate(row, 1):
            if token in self._ends:
                return tuple(row[:number])
        return tuple(row)

    def _reply(self, request: Request, ids: Ids) -> Reply:
        finish_reason = "stop" if ids and ids[-1] in self._ends else "length"
        written = ids[:-1] if finish_reason == "stop" else ids
        return Reply(self._tokenizer.decode(written), finish_reason, len(request.ids), len(ids), token_ids=ids)


def _up_to_first_difference(tokens: list[int], draft: Sequence[int]) -> Ids:
    for number, (token, drafted) in enumerate(zip(tokens, draft, strict=True), 1):
        if token != drafted:
            return tuple(tokens[:number])
    return tuple(tokens)


def _hand_out(batch: list[tuple[Request, asyncio.Future]], replies: Sequence[Reply | Exception]) -> None:
    for (_, future), reply in zip(batch, replies, strict=True):
        if future.done():  # its reading was cancelled
            continue
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)


def _fast_dtype(model: str) -> str:
    """Return ``"float32"`` for weights of a type that the CPU would emulate, if they fit in memory, else ``"auto"``."""
    config = config_of(model)
    stored = str(config.dtype or config.get_text_config().dtype).removeprefix("torch.")
    if multiplies(stored):
        return "auto"
    return "float32" if 4 * shape_of(model).parameters < FLOAT_SHARE * free_bytes() else "auto"


def _best_device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"
