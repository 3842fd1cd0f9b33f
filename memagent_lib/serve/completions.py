"""The older kind of request, ``/v1/completions``, whose prompts are texts or token ids.

Each prompt is read as a chat with one message, by the rules of :mod:`conversation`. Probabilities of a prompt's tokens
are not available, because the model never sees the prompt as one text. Nothing here depends on the web server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memagent_lib.serve.conversation import ChatError, ChatRequest
from memagent_lib.text import Tokenizer

_NO_LOGPROBS = (
    "this server has no log-probabilities: a document is read in pieces, so no text has one probability; request "
    "generated text (in lm-eval, a task with output_type generate_until). lm-eval's longbench2 has no such variant: "
    "convert its file with 'memagent data --from longbench_v2' and score it with 'memagent evaluate'"
)


class CompletionRequest(BaseModel):
    """The body of ``/v1/completions``. Fields not listed here are treated as in a chat request."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: int | bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    stream: bool | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=1)

    def texts(self, tokenizer: Tokenizer) -> list[str]:
        """Return the prompts as texts. ``tokenizer`` decodes those that are token ids.

        Raises :class:`ChatError` for options that are not supported, and for ids that the tokenizer does not have.
        """
        if self.logprobs is not None and self.logprobs is not False:  # 0 still requests those of the chosen tokens
            raise ChatError(_NO_LOGPROBS, "logprobs")
        if self.suffix:
            raise ChatError("this server appends to a prompt and has no insertion before a suffix", "suffix")
        if self.best_of not in (None, 1):
            raise ChatError(f"one reply per prompt, and best_of is {self.best_of}", "best_of")
        if self.stream:
            raise ChatError("this endpoint has no streams; /v1/chat/completions has", "stream")
        prompts = self.prompt
        if isinstance(prompts, str) or _is_ids(prompts):
            prompts = [prompts]
        if not prompts:
            raise ChatError("there is no prompt", "prompt")
        return [prompt if isinstance(prompt, str) else _decoded(prompt, tokenizer) for prompt in prompts]

    def chat(self, prompt: str) -> ChatRequest:
        """Return the chat request that is equivalent to a prompt."""
        fields: dict[str, Any] = {"stop": self.stop, "max_tokens": self.max_tokens, **(self.model_extra or {})}
        message = {"role": "user", "content": prompt}
        try:
            return ChatRequest.model_validate(fields | {"model": self.model, "messages": [message]})
        except ValidationError as wrong:
            first = wrong.errors()[0]
            name = str(first["loc"][0])
            raise ChatError(f"{name}: {first['msg']}", name) from wrong


def _is_ids(prompt: Sequence[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def _decoded(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    size = tokenizer.backend.get_vocab_size()
    wrong = next((token for token in ids if not 0 <= token < size), None)
    if wrong is not None:
        fix = "send text (in lm-eval, tokenized_requests=False), or ids of this model's own tokenizer"
        raise ChatError(f"no token has the id {wrong}; this model has {size:,} tokens; {fix}", "prompt")
    return tokenizer.decode(ids)
