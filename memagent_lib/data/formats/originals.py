"""Which formats of other projects are read, by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from memagent_lib.data.formats.records import unique
from memagent_lib.data.formats.ruler import read_ruler
from memagent_lib.data.formats.squad import read_squad, read_squad_pool
from memagent_lib.data.pools import Pool


@dataclass(frozen=True, slots=True)
class Format:
    """A format: what reads its examples, what its files are, and its pool of documents if it has one."""

    read: Callable[..., Iterator[Example]]
    files: str
    pool: Callable[[str | Path], Pool] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What can be given beside the path."""
        return tuple(signature(self.read).parameters)[1:]


FORMATS: Mapping[str, Format] = {
    "babilong": Format(read_babilong, "BABILong's records"),
    "hotpot": Format(read_hotpot, "HotpotQA's distractor JSON, or the Hub's parquet of it", read_hotpot_pool),
    "infinitebench": Format(read_infinitebench, "InfiniteBench's JSON lines"),
    "longbench": Format(read_longbench, "LongBench's JSON lines"),
    "memagent": Format(read_memagent, "MemAgent's parquet and evaluation JSON"),
    "plain": Format(read_plain, "your own records with question, document and answers"),
    "ruler": Format(read_ruler, "RULER's validation.jsonl"),
    "squad": Format(read_squad, "SQuAD v2's JSON", read_squad_pool),
}


def format_named(name: str) -> Format:
    """The format called ``name``; ``ValueError`` with the known names otherwise."""
    if name not in FORMATS:
        raise ValueError(f"no format {name!r}; choose from {', '.join(FORMATS)}")
    return FORMATS[name]


def read_original(path: str | Path, form: str, **options: Any) -> Iterator[Example]:
    """The examples of a file in one of :data:`FORMATS`, in order. Two examples with one id are an error."""
    known = format_named(form)
    if wrong := sorted(set(options) - set(known.options)):
        raise ValueError(
            f"format {form!r} takes no {', '.join(wrong)}; it takes {', '.join(known.options) or 'no options'}"
        )
    require_file(path)
    return unique(known.read(path, **options), path)


def require_file(path: str | Path) -> None:
    """An error that says what to do where there is no file."""
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"no file at {path}; these files are their projects' own and are not shipped with memagent"
        )
