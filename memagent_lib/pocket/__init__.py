"""The pocket policy: a memory agent small enough to watch learning on two cores, and how it is warmed up.

``python -m memagent_lib.pocket --out FOLDER`` makes the warm start. Supervision gives skills and no policy: which facts
a supervised memory keeps is blind to the question. What to keep is left to reinforcement.

Knows torch and transformers; knows no verl and no vLLM. Everything is a function of the seed.
"""

from memagent_lib.pocket.model import build_model
from memagent_lib.pocket.pocket_tokenizer import build_tokenizer
from memagent_lib.pocket.teacher import Teacher

__all__ = ["Teacher", "build_model", "build_tokenizer"]
