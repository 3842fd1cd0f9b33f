"""Read other projects' files as published, and users' own files: all formats by name.

Their wording is not changed; a question may be completed by its options, or by an instruction that the file lacks.
Formats are here or, one per benchmark, in ``experiments/benchmarks/NAME.py`` as ``FORMAT``. Reading needs no task,
model or tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example, naming_errors
from memagent_lib.data.pools import Pool, read_once
from memagent_lib.data.published_files import hotpot_pool, memagent_examples, ruler_examples, squad_pool
from memagent_lib.data.records import own_examples, records
from memagent_lib.errors import MissingFile, nearest, nearest_path
from memagent_lib.plugins import shipped_module, shipped_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of other projects' files; ``files`` describes them in words.

    ``examples(record, number, path, **options)`` returns or yields the examples of one record, which has a ``number``
    from 1; its parameters after the path are the format's options. It yields None for a question that the file marks as
    unanswerable. Instead of it, ``pool(path)`` reads the documents and questions of a file of which longer documents
    can be built. ``note`` is a remark for people who read such files.
    """

    files: str
    examples: Callable[..., Iterator[Example | None]] | None = None
    pool: Callable[[str | Path], Pool] | None = None
    note: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that reading accepts after the path."""
        return tuple(signature(self.examples).parameters)[3:] if self.examples else ()


FORMATS: Mapping[str, Format] = {
    "plain": Format(files="your own records with question, document and answers", examples=own_examples),
    "memagent": Format(files="MemAgent's parquet and evaluation JSON", examples=memagent_examples),
    "hotpot": Format(files="HotpotQA's distractor JSON or 2WikiMultihopQA's, or the Hub's parquet", pool=hotpot_pool),
    "ruler": Format(files="RULER's validation.jsonl, or the Hub's mirror", examples=ruler_examples),
    "squad": Format(files="SQuAD v2's JSON", pool=squad_pool),
}
"""The formats of the library. Those of benchmarks are in ``experiments/benchmarks/NAME.py``, as ``FORMAT``."""


def format_names() -> list[str]:
    """Return the names of all formats."""
    return sorted({*FORMATS, *shipped_names("benchmarks")})


def format_named(name: str) -> Format:
    """Return the format called ``name``. Raises ``ValueError`` if there is none."""
    found = FORMATS.get(name) or getattr(shipped_module("benchmarks", name), "FORMAT", None)
    if found is None:
        names = format_names()
        raise ValueError(f"no format {name!r}; choose from {', '.join(names)}{nearest(name, names)}")
    return found


def require_file(path: str | Path) -> None:
    """Raise an error that says what to do if ``path`` is not a regular file."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the files in it, as {path}/*.jsonl")
    if not Path(path).is_file():
        raise MissingFile(f"no file at {path}; those of other projects are not shipped{nearest_path(path)}")


def read_original(path: str | Path, form: str, **options: Any) -> Iterator[Example | None]:
    """Yield the examples of a file in the format ``form`` in order, None for questions marked as unanswerable.

    Raises :class:`MissingFile`, and ``ValueError`` for a record that cannot be read.
    """
    known = format_named(form)
    if known.pool:
        pool = read_pool(path, form)
        with naming_errors(path, known.files):
            yield from [pool.own_example(question, form) for question in pool.questions]
        return
    require_file(path)
    found = records(path)
    for number in count(1):
        with naming_errors(f"{path}, record {number}", known.files):
            record = next(found, None)
            if record is None:
                break
            made = list(known.examples(record, number, Path(path), **options))
            for example in filter(None, made):
                if not isinstance(example.document, str) or not example.document.strip():
                    raise ValueError("the document is empty, or not a text")
        yield from made
    if number == 1:
        raise ValueError(f"{path}: expected {known.files}, found a file without records")


def read_pool(path: str | Path, form: str) -> Pool:
    """Return a file's documents and questions as a pool. Raises ``ValueError`` if its format has no pool."""
    known = format_named(form)
    require_file(path)
    if known.pool is None:
        raise ValueError(f"the documents of {known.files} have a length of their own; leave it out")
    with naming_errors(path, known.files):
        return read_once(known.pool, path)
