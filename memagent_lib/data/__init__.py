"""Examples and where they come from: generators that are pure functions of their seed, and files of others."""

from memagent_lib.data.examples import Example, Span, data_hash, load, save, stream
from memagent_lib.data.needles import NeedleTask, make_needles

__all__ = ["Example", "NeedleTask", "Span", "data_hash", "load", "make_needles", "save", "stream"]
