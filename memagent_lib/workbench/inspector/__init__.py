"""Looking into memories: what was read, what was remembered, what changed, where the evidence went.

:func:`show` opens the interactive inspector on a run; ``page`` and ``compare`` make static HTML from results. Text from documents,
questions and models is data here: always escaped, never markup.
"""

from memagent_lib.workbench.inspector.pages import Page, compare, document, page, pick
from memagent_lib.workbench.inspector.readings import Readings
from memagent_lib.workbench.inspector.widget import Inspector, read_on, show, twin

__all__ = ["Inspector", "Page", "Readings", "compare", "document", "page", "pick", "read_on", "show", "twin"]
