"""Hugging Face transformers as a backend: every causal LM, on CPU, CUDA or MPS, with no engine to start.

Requests that wait together are answered as one batch in a worker thread. Greedy replies are drafted: the memory that a
turn would replace is checked in one pass, which is all it takes where the chunk changed nothing (speculative decoding
with a draft from the prompt; Leviathan et al. 2023, arXiv 2211.17192).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from memagent_lib.backends.interface import BackendError, Sampling, require_room
from memagent_lib.prompts import Request
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.trace import Reply

BATCH = 64  # requests answered together
CHECKS = 3  # passes over a draft: after a word that differs, the rest of it may still be right
WORTHWHILE = 0.3  # the share of drafts that has to be right, word for word, for the next to be checked
PAD = 0  # never seen
LOOK_AGAIN = 16  # batches after which drafts that did not hold are tried again


class Transformers:
    """A model folder or hub name, on the best device there is; a CPU's ``threads`` are all unless given.

    Without ``drafts`` every token of a greedy reply takes a pass of its own; the replies are the same.
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
        try:
            import torch
            from transformers import AutoModelForCausalLM, GenerationConfig
            from transformers.utils.logging import disable_progress_bar
        except ImportError as missing:
            raise ImportError(
                "the transformers backend needs torch and transformers; install them with: make install"
            ) from missing
        if not sys.stderr.isatty():
            disable_progress_bar()
        self._torch = torch
        self.device = _best_device(torch)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype="auto").to(self.device).eval()
        self.sampling, self._threads, self._drafts = sampling, threads, drafts and not sampling.temperature
        self.window = window or self._model.config.max_position_embeddings
        self._waiting: list[tuple[Request, asyncio.Future]] = []
        self._worker: asyncio.Task | None = None
        eos = self._model.generation_config.eos_token_id
        self._ends = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
        # A model's own generation_config.json may hold a repetition penalty (Qwen2.5-Instruct has 1.05), which punishes
        # copying; training and vLLM here have none.
        self._model.generation_config = GenerationConfig(eos_token_id=list(self._ends) or None, pad_token_id=PAD)
        self._right, self._batches = 1.0, 0  # the share of the last batch's drafts that were
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)

    async def complete(self, request: Request) -> Reply:
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

    def _generate(self, requests: list[Request]) -> list[Reply]:
        if self._threads is not None:
            self._torch.set_num_threads(self._threads)  # of the calling thread, one of the event loop's workers
        with self._torch.inference_mode():
            said = self._checked(requests)
            begun = [i for i, request in enumerate(requests) if not self._finished(request, said[i])]
            rest = self._continued([requests[i] for i in begun], [said[i] for i in begun])
        for i, more in zip(begun, rest, strict=True):
            said[i] = (said[i] + more)[: requests[i].max_tokens]
        return [self._completion(*each) for each in zip(requests, said, strict=True)]

    def _checked(self, requests: list[Request]) -> list[tuple[int, ...]]:
        """The beginnings of the greedy replies, as far as the drafts lead; some are whole."""
        said = [()] * len(requests)
        self._batches += 1
        if not self._drafts or (self._right < WORTHWHILE and self._batches % LOOK_AGAIN):
            return said
        drafts = [(*r.draft, *self._ends[:1])[: r.max_tokens] if r.draft else () for r in requests]
        for check in range(CHECKS):
            rows = [
                i
                for i, draft in enumerate(drafts)
                if len(said[i]) < len(draft) and not self._finished(requests[i], said[i])
            ]
            if not rows:
                break
            left = [drafts[i][len(said[i]) :] for i in rows]
            held = self._agreed([requests[i].ids + said[i] for i in rows], left)
            for i, tokens in zip(rows, held, strict=True):
                said[i] += tokens
            if check == 0:
                self._right = sum(map(tuple.__eq__, held, left)) / len(left)
        return said

    def _agreed(self, begun: list[tuple[int, ...]], drafts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """What the model says after ``begun`` as long as it says the draft, and its first token that differs."""
        torch, agreed = self._torch, []
        width = max(len(ids) + len(draft) for ids, draft in zip(begun, drafts, strict=True))
        rows = [[*ids, *draft] for ids, draft in zip(begun, drafts, strict=True)]
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows], device=self.device)
        states = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        head = self._model.get_output_embeddings()
        for state, known, draft in zip(states, begun, drafts, strict=True):
            likeliest = head(state[len(known) - 1 : len(known) - 1 + len(draft)]).argmax(-1).tolist()
            same = next((at for at, pair in enumerate(zip(likeliest, draft, strict=True)) if len(set(pair)) > 1), None)
            agreed.append(tuple(likeliest if same is None else likeliest[: same + 1]))
        return agreed

    def _finished(self, request: Request, said: tuple[int, ...]) -> bool:
        return len(said) == request.max_tokens or (bool(said) and said[-1] in self._ends)

    def _continued(self, requests: list[Request], said: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The tokens that follow ``said``, by one left-padded batch."""
        if not requests:
            return []
        torch = self._torch
        rows = [request.ids + tokens for request, tokens in zip(requests, said, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([[PAD] * (width - len(row)) + list(row) for row in rows], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.device)
        s, drawn = self.sampling, {"do_sample": False}
        if s.temperature:
            drawn = {"do_sample": True, "temperature": s.temperature, "top_p": s.top_p, "top_k": 0}
        most = max(request.max_tokens - len(tokens) for request, tokens in zip(requests, said, strict=True))
        out = self._model.generate(ids, attention_mask=mask, max_new_tokens=most, **drawn)
        return [self._up_to_end(row) for row in out[:, width:].tolist()]

    def _up_to_end(self, row: list[int]) -> tuple[int, ...]:
        return tuple(row[: next((i + 1 for i, token in enumerate(row) if token in self._ends), None)])

    def _completion(self, request: Request, said: tuple[int, ...]) -> Reply:
        finish = "stop" if said and said[-1] in self._ends else "length"
        return Reply(self._tokenizer.decode(said), finish, len(request.ids), len(said), token_ids=said)


def _hand_out(batch: list[tuple[Request, asyncio.Future]], replies: list[Reply | Exception]) -> None:
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
