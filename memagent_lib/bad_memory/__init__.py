"""Recognise replies that should be a memory and are not, by rules on their words.

A model that was not trained for this sometimes writes about the memory ("No changes needed to the original summary",
langchain#2504), refuses (companion-emergence#77), acknowledges ("ACK_21", kimi-code#3684), repeats its instruction
(mem0#2736) or calls a tool (open-webui#29308), and the old memory is lost. The rules prefer missing such a reply to
turning a memory away:

* An unrelated reply has at least :data:`FEWEST_WORDS` content words, of which a share below :data:`RELATED_SHARE`
  occurs in the old memory, the chunk or the question. Replies in another script than the chunk's are not compared.
* A comment states that the memory stays or that the text brings nothing, in words without content of their own.
  It still counts as a memory if it repeats at least :data:`REPEATED_SHARE` of the old memory's own words. As long as
  there is no memory, "nothing relevant so far" is one.
* A refusal begins like one and repeats no name or number of the old memory or chunk.
* An echo consists of the template's words, and perhaps of the question and the chunk.

The word lists are English; comments and refusals are also recognised in a few phrases of Chinese, French, German,
Japanese and Spanish. This package depends on strings alone, not on models, readers or traces.
"""

from memagent_lib.bad_memory.faults import Fault, OnBadMemory
from memagent_lib.bad_memory.rules import PromptParts, fault_of

__all__ = ["Fault", "OnBadMemory", "PromptParts", "fault_of"]
