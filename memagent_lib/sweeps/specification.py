"""What a sweep is: a grid, a list of points or a sequence of stages over notebooks, and the points that follow from it.

Knows what parameters a notebook takes, from papermill. Knows no process and no MLflow.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from memagent_lib.errors import UserError
from memagent_lib.paths import absolute
from memagent_lib.provenance import code_hash
from memagent_lib.settings import SettingsError, parse, read_toml

OWN_PARAMETERS = ("tracking", "run_id", "point")
"""What the sweep itself gives to every notebook that has them."""
FOLDER_MARK, POINT_MARK = "{folder}", "{point}"
_TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "dict": dict}


class SweepError(UserError, ValueError):
    """A sweep that cannot start, said before anything runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStage:
    """One notebook at every entry of ``points`` times every combination of ``grid``, over ``parameters``."""

    notebook: str
    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    points: Sequence[Mapping[str, Any]] = ({},)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", Path(self.notebook).stem)
        if not re.fullmatch(r"[\w-]+", self.name):
            raise SweepError(f"a stage's name is made of letters, digits, - and _; got {self.name!r}")
        for name, values in self.grid.items():
            if not isinstance(values, list | tuple) or not values:
                raise SweepError(f"stage {self.name}: grid.{name} must be a list of values, got {values!r}")
        if not self.points:
            raise SweepError(f"stage {self.name} has an empty list of points")

    def varied(self) -> Iterator[dict[str, Any]]:
        """What differs between the stage's points, point by point."""
        for point, values in itertools.product(self.points, itertools.product(*self.grid.values())):
            yield dict(point) | dict(zip(self.grid, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """A sweep: stages run one after the other, the points of a stage side by side. Of one notebook, ``notebook``,
    ``grid`` and ``points`` are the one stage.

    ``parameters`` go to every stage whose notebook has them; in their texts ``{folder}`` is the sweep's folder and
    ``{point}`` a name of what varies. ``tracking`` is an MLflow store: a folder or an address.
    """

    name: str
    stage: tuple[SweepStage, ...] = ()
    notebook: str = ""
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    points: Sequence[Mapping[str, Any]] = ({},)
    folder: str = ""
    tracking: str = "runs"
    workers: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stages:
            raise SweepError(f"the sweep {self.name!r} has no stages; give a notebook, or [[stage]] tables")
        names = [stage.name for stage in self.stages]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SweepError(f"two stages are called {', '.join(twice)}; names must differ")
        if self.workers < 1:
            raise SweepError(f"workers must be at least 1, got {self.workers}")

    @property
    def stages(self) -> tuple[SweepStage, ...]:
        """All stages, in order."""
        if not self.notebook:
            return self.stage
        return (SweepStage(notebook=self.notebook, grid=self.grid, points=self.points), *self.stage)

    @property
    def path(self) -> Path:
        return absolute(self.folder or f"runs/{self.name}")

    @classmethod
    def load(cls, file: str | Path) -> SweepSpec:
        """Read a TOML file of the fields above; a sweep without a name has the file's."""
        try:
            return parse(cls, {"name": Path(file).stem} | read_toml(file, "sweep file"), str(file))
        except SettingsError as failure:
            raise SweepError(str(failure)) from failure


class PointState(StrEnum):
    """How a point stands; what has a run in MLflow is called as it is there."""

    WAITING = "not run"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """One notebook at one set of parameters; ``varied`` differ in its stage. ``key`` changes when the result might."""

    stage: str
    varied: Mapping[str, Any]
    notebook: Path
    parameters: dict[str, Any]
    defaults: dict[str, str]
    key: str
    folder: Path

    @cached_property
    def label(self) -> str:
        return _label(self.varied)

    @property
    def name(self) -> str:
        return f"{self.stage} {self.label}".strip()

    @property
    def file_name(self) -> str:
        """The label as the name of a file or folder; empty where nothing varies."""
        return _file_name(self.label)

    @property
    def output(self) -> Path:
        """Where the executed copy goes; the point's record is beside it."""
        return self.folder / "notebooks" / f"{self.stage}{'--' * bool(self.label)}{self.file_name}.ipynb"


def plan(spec: SweepSpec) -> list[list[SweepPoint]]:
    """The points of each stage. Unknown parameters, wrong types and missing notebooks are errors."""
    declared = {stage.name: notebook_parameters(absolute(stage.notebook)) for stage in spec.stages}
    if unused := sorted(set(spec.parameters) - set().union(*declared.values())):
        raise SweepError(f"no notebook of the sweep {spec.name!r} has the parameter {', '.join(unused)}")
    planned, before = [], code_hash()
    for stage in spec.stages:
        points = [_point(spec, stage, varied, declared[stage.name], before) for varied in stage.varied()]
        if len({p.output for p in points}) < len(points):
            raise SweepError(f"stage {stage.name} has the same point twice")
        planned.append(points)
        before = _digest([before, *(p.key for p in points)])
    return planned


def _point(
    spec: SweepSpec, stage: SweepStage, varied: dict[str, Any], known: Mapping[str, dict[str, str]], before: str
) -> SweepPoint:
    notebook = absolute(stage.notebook)
    shared = {name: value for name, value in spec.parameters.items() if name in known}
    given = shared | dict(stage.parameters) | varied
    given = _filled(given, {FOLDER_MARK: str(spec.path), POINT_MARK: _file_name(_label(varied)) or "all"})
    _check(stage, notebook, known, given)
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    said = [("".join(c["source"]), c["cell_type"], c.get("metadata", {}).get("tags", [])) for c in cells]
    defaults = {name: each["default"] for name, each in known.items()}
    return SweepPoint(stage.name, varied, notebook, given, defaults, _digest([said, given, before]), spec.path)


def notebook_parameters(notebook: Path) -> dict[str, dict[str, str]]:
    """What papermill finds in the parameters cell, by name: ``inferred_type_name``, ``default`` and ``help``."""
    import nbformat
    from papermill import inspect_notebook

    if not notebook.is_file():
        raise SweepError(f"no notebook {notebook}")
    try:
        book = nbformat.read(notebook, 4)
    except (ValueError, KeyError, AttributeError) as failure:
        raise SweepError(f"{notebook} is not a notebook: {failure}") from failure
    tagged = sum("parameters" in cell.metadata.get("tags", ()) for cell in book.cells)
    if tagged != 1:
        fix = "give one cell that tag (JupyterLab: the cog at the right, Common Tools)"
        raise SweepError(f"{notebook} has {tagged or 'no'} cell{'s' * (tagged > 1)} tagged 'parameters'; {fix}")
    if not book.metadata.get("kernelspec", {}).get("name"):
        raise SweepError(f"{notebook} does not say which kernel runs it; open it in JupyterLab, choose one and save it")
    return inspect_notebook(str(notebook))


def _check(stage: SweepStage, notebook: Path, known: Mapping[str, dict[str, str]], given: Mapping[str, Any]) -> None:
    """papermill only warns of a parameter that the notebook does not have, and takes a value of any type."""
    if unknown := sorted(set(given) - set(known)):
        raise SweepError(f"{notebook.name} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
    if own := sorted(set(given) & set(OWN_PARAMETERS)):
        raise SweepError(f"stage {stage.name}: {', '.join(own)} is given by the sweep itself")
    for name, value in given.items():
        says = known[name]["inferred_type_name"]
        wanted = _TYPES.get(says.partition("[")[0])
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
            raise SweepError(f"{notebook.name}: {name} must be {says}, got {value!r}")


def _filled(value: Any, marks: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for mark, text in marks.items():
            value = value.replace(mark, text)
        return value
    if isinstance(value, list | tuple):
        return [_filled(each, marks) for each in value]
    return {name: _filled(each, marks) for name, each in value.items()} if isinstance(value, Mapping) else value


def _label(varied: Mapping[str, Any]) -> str:
    """What varies, in a line. Paths in the sweep's folder are shown from there."""
    shown = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in varied.items())
    return ", ".join(shown).replace(f"{FOLDER_MARK}/", "")


def _file_name(label: str) -> str:
    """A label as a file name: readable, and never the same for two labels. Of paths it shows the last part."""
    plain = re.sub(r"[^\w=.,-]+", "_", re.sub(r"[^=, ]*/", "", label))
    return plain if plain == label and len(plain) <= 80 else f"{plain[:70]}-{_digest(label)[:8]}"


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
