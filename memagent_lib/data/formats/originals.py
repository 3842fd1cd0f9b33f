"""All formats by name. Recognise a file's format, and read the file or raise an error that says what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats import (
    babilong,
    beam,
    graphwalks,
    hotpot,
    infinitebench,
    locomo,
    longbench,
    longbench_v2,
    longmemeval,
    memagent,
    memoryagentbench,
    mrcr,
    oolong,
    plain,
    ruler,
    squad,
)
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import require_file, table_records, unique
from memagent_lib.data.pools import Pool
from memagent_lib.errors import nearest

FORMATS: Mapping[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        babilong, beam, graphwalks, hotpot, infinitebench, locomo, longbench, longbench_v2, longmemeval, memagent,
        memoryagentbench, mrcr, oolong, plain, ruler, squad,
    )
}  # fmt: skip
"""All formats. A new one is a module that defines ``FORMAT``, and an entry here."""


def format_named(name: str) -> Format:
    """Return the format called ``name``. Raises ``ValueError`` if there is none."""
    if name not in FORMATS:
        raise ValueError(f"no format {name!r}; choose from {', '.join(FORMATS)}{nearest(name, FORMATS)}")
    return FORMATS[name]


def likely_format(path: str | Path) -> str | None:
    """Return the name of the format that recognises a file's first record, or None.

    If several formats do, the one that declares the most fields is returned.
    """
    fitting = _recognising(path)
    return fitting[0].name if fitting else None


def _recognising(path: str | Path) -> list[Format]:
    """Return the formats that recognise a file's first record, those with the most fields first and ``plain`` last."""
    try:
        first = next(table_records(path, "records"), None)
    except ValueError:
        return []
    fitting = [known for known in FORMATS.values() if first and known.recognises(first.fields)]
    # `plain` accepts nearly any record with a question, so it must not win over a format that is more specific.
    return sorted(fitting, key=lambda known: (known.name == "plain", -len(known.fields)))


def read_original(path: str | Path, form: str, **options: Any) -> Iterator[Example]:
    """Yield the examples of a file in the format ``form``, a key of :data:`FORMATS`, in order.

    Wrong options and missing files raise an error at once. Iteration raises ``ValueError`` for a record that cannot be
    read and for a repeated id.
    """
    require_options(form, options)
    require_file(path, form)
    return _examples(format_named(form), path, options)


def require_options(form: str, options: Mapping[str, Any]) -> None:
    """Raise ``ValueError``, which lists the format's options, unless the format accepts all of ``options``."""
    known = format_named(form)
    wrong = sorted(set(options) - set(known.options))
    if wrong:
        raise ValueError(
            f"format {form!r} takes no {', '.join(wrong)}; it takes {', '.join(known.options) or 'no options'}"
        )


def read_pool(path: str | Path, form: str) -> Pool | None:
    """Return a file's documents and questions as a pool, or None if its format has no pool."""
    known = format_named(form)
    require_file(path, form)
    with _errors_name(path, known):
        return known.pool(path) if known.pool else None


def _examples(known: Format, path: str | Path, options: Mapping[str, Any]) -> Iterator[Example]:
    with _errors_name(path, known):
        yield from unique(known.read(path, **options), path)


@contextmanager
def _errors_name(path: str | Path, known: Format) -> Iterator[None]:
    """Turn any error of a format's reader into a ``ValueError`` that names the file.

    A record of an unexpected shape can make the reader fail anywhere.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        what = str(error) if isinstance(error, ValueError) else f"not as in {known.files} ({error})"
        if str(path) not in what:
            what = f"{path}: {what}"
        fitting = _recognising(path)
        if fitting and fitting[0] is not known:  # else a later record is broken in a file of the right format
            what += f"; it looks like {fitting[0].files}: --from {fitting[0].name}"
        raise ValueError(what) from error
