"""The definition of a sweep, from which its points are derived.

A sweep is a grid, a list of points or a sequence of stages over notebooks. Nothing here starts a process
or uses MLflow.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from memagent_lib.data import data_hash
from memagent_lib.errors import UserError, nearest, one_line
from memagent_lib.journal import digest
from memagent_lib.paths import absolute, display, input_path
from memagent_lib.plugins import is_plugin, plugin_hash, shipped_plugin
from memagent_lib.provenance import code_hash
from memagent_lib.settings import parse, read_toml

OWN_PARAMETERS = ("tracking", "run_id", "point")
"""Parameters that the sweep itself sets in every notebook that has them."""
FOLDER_MARK = "{folder}"
POINT_MARK = "{point}"
_IDEAS = ("readers", "tasks", "benchmarks")
_MOST_NAME_BYTES = 120  # of 255 that a file system has room for; a stage's name, a digest and suffixes come on top


class SweepError(UserError, ValueError):
    """A sweep cannot start, which is found before any notebook runs, or its results cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStage:
    """One notebook, run once for every combination of an entry of ``points`` with values from ``grid``.

    All points share ``parameters``, which ``points`` and ``grid`` override.
    """

    notebook: str
    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    points: Sequence[Mapping[str, Any]] = ({},)  # one point, which changes no parameter

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", Path(self.notebook).stem)  # the class is frozen

    def varied(self) -> Iterator[dict[str, Any]]:
        """Yield, for each point, the parameters that differ within the stage."""
        for point, values in itertools.product(self.points, itertools.product(*self.grid.values())):
            yield dict(point) | dict(zip(self.grid, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """A sweep: stages that run one after the other, with up to ``workers`` points of a stage at a time.

    Every notebook gets those of ``parameters`` that it declares. In parameters that are texts, ``{folder}`` stands for
    the sweep's folder, and ``{point}`` for a file name made of the values that vary. ``tracking`` is an MLflow store: a
    folder or an address.
    """

    name: str
    stage: tuple[SweepStage, ...] = ()
    folder: str = ""
    tracking: str = "runs"
    workers: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stage:
            raise SweepError(f"the sweep {self.name!r} has no stages; give a notebook, or [[stage]] tables")

    @property
    def path(self) -> Path:
        return absolute(self.folder or f"runs/{self.name}")

    @classmethod
    def load(cls, file: str | Path) -> SweepSpec:
        """Read a sweep from a TOML file with the fields of this class. ``name`` is the file's name by default.

        A sweep of one notebook may have ``notebook``, ``grid`` and ``points`` instead of ``[[stage]]``.
        """
        table = {"name": Path(file).stem} | read_toml(file, "sweep file")
        if "notebook" in table:
            of_stage = {name: table.pop(name) for name in ("notebook", "grid", "points") if name in table}
            table["stage"] = [of_stage, *table.get("stage", [])]
        return parse(cls, table, str(file))


class PointState(StrEnum):
    """The state of a point."""

    WAITING = "not run"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """One notebook with one set of parameters.

    ``varied`` has the parameters that differ within the stage, and ``label`` names them. ``declared`` names all
    parameters of the notebook. ``key`` is a hash of everything that the result depends on, except the contents of data
    files. ``output`` is the path of the executed notebook.
    """

    stage: str
    varied: Mapping[str, Any]
    label: str
    file_name: str
    notebook: Path
    parameters: dict[str, Any]
    declared: Sequence[str]
    key: str
    output: Path

    @property
    def name(self) -> str:
        return f"{self.stage} {self.label}".strip()

    @property
    def record(self) -> Path:
        """The file with the point's state."""
        return self.output.with_suffix(".json")

    def to_record(self) -> dict[str, Any]:
        """Return what must be known about a point to read its state and results."""
        names = ("stage", "varied", "parameters", "key")
        record = self.record.relative_to(self.record.parents[1])
        return {name: getattr(self, name) for name in names} | {"point": self.label, "record": str(record)}


def plan(spec: SweepSpec) -> list[list[SweepPoint]]:
    """Return the points of each stage.

    A point's key covers its notebook, its parameters, the library's code and all points of earlier stages. Raises
    :class:`SweepError` for unknown parameters and for two points of one name.
    """
    declared = {stage.name: notebook_parameters(input_path(stage.notebook)) for stage in spec.stage}
    unused = sorted(set(spec.parameters) - set().union(*declared.values()))
    if unused:
        raise SweepError(f"no notebook of the sweep {spec.name!r} has the parameter {', '.join(unused)}")
    planned = []
    before = code_hash()  # extended after every stage, because points depend on all stages before theirs
    for stage in spec.stage:
        points = [_point(spec, stage, varied, declared[stage.name], before) for varied in stage.varied()]
        if not points:
            raise SweepError(f"stage {stage.name} has no point: points, or a list in grid, is empty")
        for point in points:
            _require_effect(stage, point)
        planned.append(points)
        before = _digest([before, *(point.key for point in points)])
    outputs = [point.output for point in itertools.chain.from_iterable(planned)]
    twice = sorted({output.stem for output in outputs if outputs.count(output) > 1})
    if twice:
        raise SweepError(f"two points or stages are called {', '.join(twice)}; names must differ")
    return planned


def _point(
    spec: SweepSpec, stage: SweepStage, varied: dict[str, Any], declared: Sequence[str], before: str
) -> SweepPoint:
    notebook = input_path(stage.notebook)
    varied = _filled(varied, {})
    label = _label(varied)
    file_name = _file_name(label)
    shared = {name: value for name, value in spec.parameters.items() if name in declared}
    marks = {FOLDER_MARK: display(spec.path), POINT_MARK: file_name or "all"}
    parameters = _filled(shared | dict(stage.parameters) | varied, marks)
    # papermill only warns of an unknown parameter.
    for name in parameters:
        if name not in declared or name in OWN_PARAMETERS:
            listed = ", ".join(known for known in declared if known not in OWN_PARAMETERS)
            raise SweepError(f"stage {stage.name} sets {name}, but can set {listed}{nearest(name, declared)}")
    return SweepPoint(
        stage=stage.name,
        varied=varied,
        label=label,
        file_name=file_name,
        notebook=notebook,
        parameters=parameters,
        declared=declared,
        # Covers no data that a parameter names; what earlier stages wrote is covered by `before`.
        key=_digest([_source_of(notebook), parameters, before, *_sources_named(parameters, spec.path)]),
        output=spec.path / "notebooks" / f"{'--'.join(filter(None, (stage.name, file_name)))}.ipynb",
    )


def notebook_parameters(notebook: Path) -> list[str]:
    """Return the names that the cell tagged ``parameters`` assigns; papermill infers only those of plain lines.

    Raises :class:`SweepError` for a file that is not a notebook.
    """
    from papermill import inspect_notebook

    try:
        declared = _parameters_cell(_source_of(notebook))
        inferred = inspect_notebook(str(notebook))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as broken:
        raise SweepError(f"{notebook} is not a notebook that can be run ({one_line(broken)})") from broken
    return list(dict.fromkeys([*inferred, *(name for statement in declared for name in _assigned(statement))]))


def _require_effect(stage: SweepStage, point: SweepPoint) -> None:
    """Raise :class:`SweepError` for a parameter whose value would change nothing.

    papermill sets parameters after their cell, so a default that is computed from one there stays as it was.
    """
    cells = _source_of(point.notebook)
    for statement in _parameters_cell(cells):
        made = _assigned(statement)
        stale = sorted(_read(statement) & point.parameters.keys())
        if stale and made and not made & point.parameters.keys():
            made = ", ".join(sorted(made))
            raise SweepError(f"stage {stage.name} sets {stale[0]}, whose default makes {made}; set {made} too")
    used, replaced = set(), set()
    for source in (source for source, kind, tags in cells if kind == "code" and "parameters" not in tags):
        for statement in _statements(source):
            used |= _read(statement) - replaced
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                replaced |= _assigned(statement)
    unused = sorted(point.varied.keys() - used)
    if unused:
        why = "reads before it assigns it" if unused[0] in replaced else "reads"
        raise SweepError(f"stage {stage.name} varies {unused[0]}, which no cell of {point.notebook.name} {why}")


def _parameters_cell(cells: Sequence[tuple[str, str, list[str]]]) -> list[ast.stmt]:
    """Return the statements of the cell tagged ``parameters``; none if it is not Python."""
    source = next((source for source, _, tags in cells if "parameters" in tags), "")
    return [statement for statement in _statements(source) if isinstance(statement, ast.stmt)]


def _statements(source: str) -> list[ast.stmt | str]:
    """Return the statements of a cell, or its text as it is if it is not Python, such as one with ``%run``."""
    try:
        return list(ast.parse(source).body)
    except SyntaxError:
        return [source]


def _assigned(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _read(code: ast.stmt | str) -> set[str]:
    """Return the names that a statement reads; of a text that is not Python, all its words."""
    if isinstance(code, str):
        return set(re.findall(r"\w+", code))
    return {node.id for node in ast.walk(code) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _source_of(notebook: Path) -> list[tuple[str, str, list[str]]]:
    """Return the text, type and tags of each cell, and leave out outputs and widget state, which change no result."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [("".join(cell["source"]), cell["cell_type"], cell.get("metadata", {}).get("tags", [])) for cell in cells]


def _sources_named(parameters: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield a hash of each recipe, template or plug-in that the parameters, or a recipe that they name, name.

    They are named as ``FILE.toml``, ``FILE.py:NAME`` or a bare name of ``experiments``, or so after ``KEY=``, at any
    depth. Files in the sweep's own ``folder`` are results.
    """
    texts = [json.dumps(parameters, ensure_ascii=False, default=str)]
    seen = set()
    for text in texts:  # which grow
        for name in re.findall(r'(?<=["=])[^"=]+(?=")', text):
            bare = _IDEAS if name.isidentifier() else ()
            for source in (name, *filter(None, (shipped_plugin(ideas, name) for ideas in bare))):
                if not re.search(r"\.(toml|py:\w+)$", source):
                    continue
                file = input_path(source.rpartition(":")[0] or source)
                if file in seen or not file.is_file() or file.is_relative_to(folder):
                    continue
                seen.add(file)
                yield plugin_hash(source) if is_plugin(source) else data_hash(file)
                texts += [] if is_plugin(source) else [file.read_text(encoding="utf-8")]


def _filled(parameters: Mapping[str, Any], marks: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters with each mark replaced by its text, in every string at any depth."""
    text = json.dumps(parameters, default=str)  # a date of TOML is a text for papermill
    for mark, value in marks.items():
        text = text.replace(mark, json.dumps(value)[1:-1])
    return json.loads(text)


def _label(varied: Mapping[str, Any]) -> str:
    """Return the parameters that vary as one line, with paths relative to the sweep's folder."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in varied.items()}
    label = ", ".join(f"{name}={value}" for name, value in values.items())
    return label.replace(f"{FOLDER_MARK}/", "")


def _file_name(label: str) -> str:
    """Return a label as a file name. One that is not a short file name itself has a digest at its end."""
    plain = re.sub(r"[^\w=.,-]+", "_", label)
    if plain == label and len(plain.encode()) <= _MOST_NAME_BYTES:
        return plain
    short = plain.encode()[: _MOST_NAME_BYTES - 50].decode(errors="ignore")
    return f"{short}-{_digest(label)[:8]}"


def _digest(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True, default=str))[:16]
