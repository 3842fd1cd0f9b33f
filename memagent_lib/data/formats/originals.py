"""Which formats of other projects are read, by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.babilong import read_babilong
from memagent_lib.data.formats.hotpot import read_hotpot, read_hotpot_pool
from memagent_lib.data.formats.infinitebench import read_infinitebench
from memagent_lib.data.formats.longbench import read_longbench
from memagent_lib.data.formats.memagent import read_memagent
from memagent_lib.data.formats.plain import read_plain
from memagent_lib.data.formats.records import records, unique
from memagent_lib.data.formats.ruler import read_ruler
from memagent_lib.data.formats.squad import read_squad, read_squad_pool, unanswerable
from memagent_lib.data.pools import Pool
from memagent_lib.errors import MissingFile


@dataclass(frozen=True, slots=True)
class Format:
    """What reads a format's examples, what its files are, the fields of its records; its pool of documents, and how
    many questions of a file nothing answers.
    """

    read: Callable[..., Iterator[Example]]
    files: str
    fields: tuple[str, ...]
    pool: Callable[[str | Path], Pool] | None = None
    unanswerable: Callable[[str | Path], int] = lambda path: 0

    @property
    def options(self) -> tuple[str, ...]:
        """What can be given beside the path."""
        return tuple(signature(self.read).parameters)[1:]


_HOTPOT = ("question", "answer", "context")
FORMATS: Mapping[str, Format] = {
    "babilong": Format(read_babilong, "BABILong's records", ("input", "question", "target")),
    "hotpot": Format(read_hotpot, "HotpotQA's distractor JSON, or the Hub's parquet of it", _HOTPOT, read_hotpot_pool),
    "infinitebench": Format(read_infinitebench, "InfiniteBench's JSON lines", ("context", "input", "answer")),
    "longbench": Format(read_longbench, "LongBench's JSON lines", ("dataset", "input", "context", "answers")),
    "memagent": Format(read_memagent, "MemAgent's parquet and evaluation JSON", ("context",)),
    "plain": Format(read_plain, "your own records with question, document and answers", ("question", "document")),
    "ruler": Format(read_ruler, "RULER's validation.jsonl", ("input", "outputs")),
    "squad": Format(read_squad, "SQuAD v2's JSON", ("data",), read_squad_pool, unanswerable),
}


def format_named(name: str) -> Format:
    """The format called ``name``; ``ValueError`` with the known names otherwise."""
    if name not in FORMATS:
        raise ValueError(f"no format {name!r}; choose from {', '.join(FORMATS)}")
    return FORMATS[name]


def likely_format(path: str | Path) -> str | None:
    """The format whose fields the first record of a file has, the one with most where several fit."""
    try:
        first = next(records(path, "records"), None)
    except ValueError:
        return None
    fitting = [name for name, known in FORMATS.items() if first and set(known.fields) <= first.fields.keys()]
    return max(fitting, key=lambda name: len(FORMATS[name].fields), default=None)


def read_original(path: str | Path, form: str, **options: Any) -> Iterator[Example]:
    """The examples of a file in one of :data:`FORMATS`, in order. Two examples with one id are an error."""
    require_options(form, options)
    require_file(path, form)
    return _examples(format_named(form), path, options)


def require_options(form: str, options: Mapping[str, Any]) -> None:
    """An error that lists what a format takes where it is given something else."""
    known = format_named(form)
    if wrong := sorted(set(options) - set(known.options)):
        raise ValueError(
            f"format {form!r} takes no {', '.join(wrong)}; it takes {', '.join(known.options) or 'no options'}"
        )


def require_file(path: str | Path, form: str) -> None:
    """An error that says what to do where there is no file."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the files in it that are to be read, as {path}/*.jsonl")
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path} is a pipe or device; write what it says to a file and give that")
    if not Path(path).is_file():
        if str(path) == "-":
            raise MissingFile("what a pipe says is not read; write it to a file and give that instead of -")
        theirs = "" if form == "plain" else "; these files are their projects' own and are not shipped with memagent"
        raise MissingFile(f"no file at {path}{theirs}")


def read_pool(path: str | Path, form: str) -> Pool | None:
    """The pool of documents and questions of a file; ``None`` where the format has none."""
    known = format_named(form)
    with _named(path, known):
        return known.pool(path) if known.pool else None


def _examples(known: Format, path: str | Path, options: Mapping[str, Any]) -> Iterator[Example]:
    with _named(path, known):
        yield from unique(known.read(path, **options), path)


@contextmanager
def _named(path: str | Path, known: Format) -> Iterator[None]:
    """Errors name the file. What a reader takes for granted and does not find is an error like any other."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as odd:
        what = str(odd) if isinstance(odd, ValueError) else f"not as in {known.files} ({odd})"
        other = likely_format(path)
        hint = (
            ""
            if other is None or FORMATS[other] is known
            else f"; it looks like {FORMATS[other].files}: --from {other}"
        )
        raise ValueError((what if str(path) in what else f"{path}: {what}") + hint) from odd
