"""Examples and where they come from: generators that are pure functions of their seed, and files of others."""

from memagent_lib.data.examples import Example, Span, data_hash
from memagent_lib.data.needles import NeedleTask, make_needles
from memagent_lib.data.storage import load, save, stream

__all__ = ["Example", "NeedleTask", "Span", "data_hash", "load", "make_needles", "save", "stream"]
