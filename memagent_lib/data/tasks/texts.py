"""Real prose, sentence by sentence: a text that comes with an installed package, or a user's own files.

Nothing is downloaded. The named text is pinned by the hash of its file, because other words would change every example.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

from memagent_lib.data.formats import utf8_text
from memagent_lib.errors import MissingFile
from memagent_lib.paths import expanded

NAMED = "opticks"
"""Isaac Newton, Opticks, fourth edition, London 1730 (public domain), from a package that vLLM installs."""
_PACKAGE = "apache-tvm-ffi"
_PATH = "tvm_ffi/3rdparty/libbacktrace/Isaac.Newton-Opticks.txt"
_SHA256 = "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd"
_BEGIN = "Advertisement I\n"  # what stands before it is the title page
FEWEST_SENTENCES = 50
"""A shorter text would repeat several times within one document of a few thousand tokens."""
_PARAGRAPH = re.compile(r"\n\s*\n")
_NOTE = re.compile(r"\[[^\]]*\]")  # footnotes and captions of pictures that a plain text lacks
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(]?[A-Z])")
_ABBREVIATED = re.compile(
    r"\b(?:[A-Z]|Mr|Mrs|Dr|St|Fig|Figs|Prop|Prob|Theor|Exper|Obs|Sect|Lect|Def|Vol|No|viz|lib|cap|p|&c)\.$"
)
"""Text that ends so is followed by the rest of its sentence."""
_FEWEST_WORDS = 4
_MOST_WORDS = 60  # a longer sentence would fill a chunk of a small model by itself


@lru_cache(maxsize=4)
def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of ``text`` in order: the text :data:`NAMED`, a text file, or a folder of ``.txt`` files.

    Only prose is read: headings, tables, listings, footnotes, and sentences of fewer than 4 or more than 60 words are
    left out. Raises :class:`MissingFile` if there is no such file or the named text's package is not installed, and
    ``ValueError`` if the named text is another edition or if fewer than :data:`FEWEST_SENTENCES` sentences are found.
    """
    raw = _named() if text == NAMED else "\n\n".join(files_of(text))
    found = tuple(chain.from_iterable(map(_of_paragraph, _PARAGRAPH.split(raw))))
    if len(found) < FEWEST_SENTENCES:
        raise ValueError(
            f"{text} has {len(found)} sentences of prose and at least {FEWEST_SENTENCES} are needed; set text to a "
            f"text file, a folder of .txt files, or {NAMED}"
        )
    return found


def files_of(path: str) -> list[str]:
    """Return the text of a file, or of all .txt files in a folder in order of their names; none if there is none."""
    source = expanded(path)
    files = [source] if source.is_file() else sorted(source.rglob("*.txt")) if path else []
    return [utf8_text(file) for file in files if file.is_file()]


def _named() -> str:
    try:
        path = Path(str(distribution(_PACKAGE).locate_file(_PATH)))
    except PackageNotFoundError:
        raise MissingFile(f"the text {NAMED!r} comes with the package {_PACKAGE}; install it, or set text") from None
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != _SHA256:
        raise ValueError(f"{path} is another edition, so a seed would mean other documents; set text to the file")
    raw = data.decode().replace("\r\n", "\n")
    return raw[raw.index(_BEGIN) + len(_BEGIN) :]


def _of_paragraph(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph of prose, each on one line. Any other paragraph has none."""
    lines = _NOTE.sub("", paragraph).strip("\n").split("\n")
    if any(line.startswith("    ") for line in lines):  # a table, a listing or a centred heading
        return []
    plain = " ".join(" ".join(lines).replace("_", "").split())
    if not plain.endswith((".", "!", "?")) or plain.upper() == plain:
        return []
    found = []
    begun = ""
    for part in _SENTENCE_END.split(plain):
        begun = f"{begun} {part}".strip()
        if not _ABBREVIATED.search(begun):
            found.append(begun)
            begun = ""
    found.append(begun)
    return [sentence for sentence in found if _FEWEST_WORDS <= len(sentence.split()) <= _MOST_WORDS]
