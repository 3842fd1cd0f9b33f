"""List the modules and files that a recipe would load, without loading any of them.

A recipe is code: its reader, its judges and many settings of verl name Python files and modules that a run imports, and
checkpoints that the run unpickles. Only the recipe's tables and the names of judges in its data files are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.data import stream_records
from memagent_lib.paths import absolute
from memagent_lib.plugins import is_plugin

# A setting of verl whose name ends in one of these may name something to load. The list is longer than verl needs
# today, because a harmless setting in the result costs only a line.
_ENDINGS = ("path", "_lib", "_target_", "module", "_cls", "_class", "_class_name", "_fn", "_function", "_hook", "_dir")
_ENVIRONMENT = "runtime_env"
"""The setting for what Ray gives to its processes: modules, a working directory, environment variables."""
_CODE_SIGNS = (".py", "pkg://", "file://")


class Loaded(NamedTuple):
    """A module or file that a recipe names (``value``), and the setting or data file that names it (``setting``)."""

    setting: str
    value: str


def loaded_by(tables: Mapping[str, Any]) -> list[Loaded]:
    """Return the modules and files that a recipe would load: those that its settings name, then its judges.

    Data files that do not exist are passed over, so the judges that they will name are missing.
    """
    found = [Loaded(name, str(value)) for name, value in _settings(tables) if _loads(name, value)]
    data = tables.get("data")
    if isinstance(data, Mapping):
        return found + list(_judges(data))
    return found


def _settings(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each single value with its dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _settings(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _settings(inner, name)
    else:
        yield name, value


def _loads(name: str, value: Any) -> bool:
    table, _, setting = name.partition(".")
    if setting.endswith("trust_remote_code"):  # a switch, not a path
        return bool(value)
    if not isinstance(value, str) or not value:
        return False
    if table == "verl":
        named = setting.endswith(_ENDINGS) or _ENVIRONMENT in setting
        return named or any(sign in value for sign in _CODE_SIGNS)
    own = {"model.path", "model.average_with"}
    return name in own or is_plugin(value) or (name == "reading.template" and value.endswith(".toml"))


def _judges(data: Mapping[str, Any]) -> Iterator[Loaded]:
    """Yield the judges from users' files that the examples in the data files name."""
    for path in dict.fromkeys(str(value) for _, value in _settings(data)):
        file = absolute(path)
        if path.endswith(".parquet") and file.is_file():
            rules = dict.fromkeys((record["extra_info"] or {}).get("rule") or "" for record in stream_records(file))
            yield from (Loaded(f"the judge of {Path(path).name}", rule) for rule in rules if is_plugin(rule))
