"""A workbench for memory agents: read documents of any length with a small context window, and train what to remember.

    from memagent_lib import open_agent, read_files

    agent = open_agent("Qwen/Qwen2.5-7B-Instruct")
    reading = read_files(agent, ["contract.pdf"], ["Who signs?"])
    reading.answers

The names below are imported on first use, so that ``import memagent_lib`` is fast. Everything else is in the modules
and packages of this folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# For editors and type checkers, which do not run __getattr__.
if TYPE_CHECKING:
    from memagent_lib.agent import Agent as Agent
    from memagent_lib.agent import open_agent as open_agent
    from memagent_lib.backends import Sampling as Sampling
    from memagent_lib.backends import Scripted as Scripted
    from memagent_lib.data import Example as Example
    from memagent_lib.data import load as load
    from memagent_lib.data import make as make
    from memagent_lib.data import save as save
    from memagent_lib.documents import read_files as read_files
    from memagent_lib.evaluation import evaluate as evaluate
    from memagent_lib.prompts import Budget as Budget
    from memagent_lib.prompts import Template as Template
    from memagent_lib.text import Tokenizer as Tokenizer
    from memagent_lib.trace import Trace as Trace

_HOMES = {
    "Agent": "agent",
    "Budget": "prompts",
    "Example": "data",
    "Sampling": "backends",
    "Scripted": "backends",
    "Template": "prompts",
    "Tokenizer": "text",
    "Trace": "trace",
    "evaluate": "evaluation",
    "load": "data",
    "make": "data",
    "open_agent": "agent",
    "read_files": "documents",
    "save": "data",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"memagent_lib has no {name!r}; it has {', '.join(__all__)}, and its rooms")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
