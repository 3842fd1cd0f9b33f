"""What a server replies whose model finds every needle."""

from __future__ import annotations

import re


def right(body: dict) -> dict:
    """The response of a server whose model finds every needle."""
    message = {"role": "assistant", "content": needle_in(body["messages"][0]["content"])}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}}


def needle_in(prompt: str) -> str:
    key = re.search(r"code of the (\w+ \w+)\?", prompt).group(1)
    found = re.search(rf"The code of the {key} is (\d+)\.", prompt)
    if not found:
        return "nothing yet"
    if "Write the answer" in prompt:
        return f"\\boxed{{{found.group(1)}}}"
    return found.group(0)
