"""An OpenAI-compatible endpoint on loopback that reads requests of any length with a memory.

``conversation`` states which part of a request is the document. This package depends on agents and the chat protocol,
but on no file and no experiment.
"""

from memagent_lib.serve.app import make_app

__all__ = ["make_app"]
