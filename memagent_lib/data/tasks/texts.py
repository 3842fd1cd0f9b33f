"""Real prose, sentence by sentence: texts that come with installed packages, or a user's own files.

Nothing is downloaded. A named text is pinned by the hash of its file, because other words would change every example.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

from memagent_lib.data.formats import utf8_text
from memagent_lib.errors import MissingFile
from memagent_lib.paths import expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedText:
    """A text inside an installed package: its title, its licence, and the ``path`` and ``sha256`` of its file.

    The text begins after the line ``begin``; what stands before it is the title page.
    """

    title: str
    licence: str
    package: str
    path: str
    sha256: str
    begin: str


TEXTS = {
    "opticks": NamedText(
        title="Isaac Newton, Opticks, fourth edition, London 1730",
        licence="public domain",
        package="apache-tvm-ffi",
        path="tvm_ffi/3rdparty/libbacktrace/Isaac.Newton-Opticks.txt",
        sha256="d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd",
        begin="Advertisement I\n",
    )
}
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
    """Return the sentences of ``text`` in order: a name in :data:`TEXTS`, a text file, or a folder of ``.txt`` files.

    Only prose is read: headings, tables, listings, footnotes, and sentences of fewer than 4 or more than 60 words are
    left out. Raises :class:`MissingFile` if there is no such file or the named text's package is not installed, and
    ``ValueError`` if a named text is another edition or if fewer than :data:`FEWEST_SENTENCES` sentences are found.
    """
    named = TEXTS.get(text)
    raw = _named(text, named) if named else "\n\n".join(_files(text))
    found = tuple(chain.from_iterable(map(_of_paragraph, _PARAGRAPH.split(raw))))
    if len(found) < FEWEST_SENTENCES:
        raise ValueError(
            f"{text} has {len(found)} sentences of prose and at least {FEWEST_SENTENCES} are needed; set text to a "
            f"longer file, to a folder of .txt files, or to one of {', '.join(TEXTS)}"
        )
    return found


def _named(name: str, known: NamedText) -> str:
    try:
        path = Path(str(distribution(known.package).locate_file(known.path)))
    except PackageNotFoundError:
        raise MissingFile(
            f"the text {name!r} ({known.title}) comes with the package {known.package}, which vLLM installs and which "
            "is not here; install the package, or set text to a text file or a folder of .txt files"
        ) from None
    data = path.read_bytes() if path.is_file() else b""
    found = hashlib.sha256(data).hexdigest()
    if found != known.sha256:
        raise ValueError(
            f"the text {name!r} in the package {known.package} is another edition (sha256 {found[:12]}, expected "
            f"{known.sha256[:12]}), so a seed would mean other documents; set text to the file itself: {path}"
        )
    raw = data.decode().replace("\r\n", "\n")
    return raw[raw.index(known.begin) + len(known.begin) :]


def _files(text: str) -> Iterator[str]:
    path = expanded(text)
    if path.is_file():
        yield utf8_text(path)
        return
    files = sorted(file for file in path.rglob("*.txt") if file.is_file()) if text else []
    if not files:
        raise MissingFile(
            f"no text {text!r}: it is neither a text file, nor a folder with .txt files, nor one of {', '.join(TEXTS)}"
        )
    yield from map(utf8_text, files)


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
