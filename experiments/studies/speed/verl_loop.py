"""The shortest agent loop for verl's own trainer: one request and one row per turn. verl loads this module by name."""

from __future__ import annotations

from functools import cache
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from memagent_lib.data import Example
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.text import Tokenizer, chunks
from memagent_lib.trace import NO_MEMORY, Kind, Prompt


class PlainLoop(AgentLoopBase):
    """Reads chunk after chunk, then answers."""

    def __init__(self, server_manager: Any, tokenizer: Any, template: str, budget: dict[str, int], **unused: Any):
        self.server_manager = server_manager
        self.encoder = _encoder(tokenizer, template, Budget(**budget))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        example = Example.from_record({**row, "prompt": row["raw_prompt"]})
        encoder = self.encoder
        memory = NO_MEMORY
        outputs = []
        pieces = chunks(example.document, encoder.tokenizer, encoder.budget.chunk_tokens)
        for piece in [*pieces, None]:
            prompt = Prompt(Kind.READ if piece else Kind.ANSWER, example.question, memory=memory, chunk=piece)
            request = encoder.encode(prompt)
            output = await self.server_manager.generate(
                request_id=row["uid"],  # verl sends equal ids to one server, so turns share its prefix cache
                prompt_ids=list(request.ids),
                sampling_params={**sampling_params, "max_tokens": request.max_tokens},
            )
            memory = encoder.tokenizer.decode(output.token_ids)
            outputs.append(_output(list(request.ids), output))
        value = float(score(example.rule, memory, example.answers).value)
        outputs[-1].reward_score = value
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": value}
        return outputs


def _output(prompt: list[int], output: Any) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=prompt,
        response_ids=output.token_ids,
        response_mask=[1] * len(output.token_ids),
        response_logprobs=output.log_probs,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields=dict(output.extra_fields),
    )


@cache
def _encoder(tokenizer: Any, template: str, budget: Budget) -> Encoder:
    return Encoder(Tokenizer(tokenizer), Template.load(template), budget, reader_named("overwrite").prompts)
