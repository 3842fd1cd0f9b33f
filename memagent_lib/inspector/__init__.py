"""Looking into memories: what was read, what was remembered, what changed, where the evidence went.

``pages`` makes static HTML from results. Text from documents, questions and models is data here: always escaped, never markup.
"""

from memagent_lib.inspector.pages import Page, compare, document, page, pick

__all__ = ["Page", "compare", "document", "page", "pick"]
