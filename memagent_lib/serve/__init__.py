"""An OpenAI-compatible endpoint on loopback: a request of any length is read with memory and answered like any model's.

Knows agents and the chat protocol; which part of a request is read is the stated rule of ``conversation``. Knows no
file and no experiment.
"""

from memagent_lib.serve.app import ServeSettings, make_app
from memagent_lib.serve.conversation import SPLITS

__all__ = ["SPLITS", "ServeSettings", "make_app"]
