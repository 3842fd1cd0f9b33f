"""The definition of a sweep, from which its points are derived.

A sweep is a grid, a list of points or a sequence of stages over notebooks. papermill infers the parameters of a
notebook. Nothing here starts a process or uses MLflow.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from memagent_lib.data import data_hash
from memagent_lib.errors import UserError, nearest
from memagent_lib.paths import absolute, input_path
from memagent_lib.plugins import is_plugin
from memagent_lib.provenance import code_hash
from memagent_lib.settings import SettingsError, parse, read_toml
from memagent_lib.system import LOCAL
from memagent_lib.tracking import policy_name

OWN_PARAMETERS = ("tracking", "run_id", "point")
"""Parameters that the sweep itself sets in every notebook that has them."""
NOTEBOOKS = "notebooks"
"""The folder, in that of the sweep, of executed notebooks and the records of points."""
FOLDER_MARK = "{folder}"
POINT_MARK = "{point}"
_MOST_NAME_BYTES = 120  # of 255 that a file system has room for; a stage's name, a digest and suffixes come on top
# What papermill infers from an annotation, and the Python types that satisfy it.
_TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "dict": dict}


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
        if not re.fullmatch(r"[\w-]+", self.name):  # it becomes a part of file names
            raise SweepError(
                f"a stage's name is made of letters, digits, - and _; got {self.name!r}; set another name in [[stage]]"
            )
        for name, values in self.grid.items():
            if not isinstance(values, list | tuple) or not values:
                raise SweepError(f"stage {self.name}: grid.{name} must be a list of values, got {values!r}")
        if not self.points:
            raise SweepError(f"stage {self.name} has an empty list of points; give at least one, or leave points out")
        twice = sorted(set(self.grid).intersection(itertools.chain.from_iterable(self.points)))
        if twice:
            raise SweepError(
                f"stage {self.name} has {', '.join(twice)} in points and in grid; leave one of the two out"
            )

    def varied(self) -> Iterator[dict[str, Any]]:
        """Yield, for each point, the parameters that differ within the stage."""
        for point, values in itertools.product(self.points, itertools.product(*self.grid.values())):
            yield dict(point) | dict(zip(self.grid, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCluster:
    """The engines of every point that evaluates, and the Ray cluster for them (``local``: a Ray for each point).

    They change no result, so a point's key does not depend on them. 0 engines leave notebooks as they are.
    """

    engines: int = 0
    address: str = LOCAL

    def __post_init__(self) -> None:
        if self.engines < 0:
            raise SweepError(f"cluster.engines must be at least 1, or 0 for none; got {self.engines}")
        if self.address != LOCAL and not self.engines:
            raise SweepError(f"cluster.address {self.address!r} needs cluster.engines, the engines of each point")

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of notebooks that the engines set; none without engines."""
        return {"engines": self.engines, "cluster": self.address} if self.engines else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """A sweep: stages that run one after the other, with up to ``workers`` points of a stage at a time.

    A sweep of one notebook may set ``notebook``, ``grid`` and ``points`` instead of ``stage``. Every notebook gets
    those of ``parameters`` that it declares. In parameters that are texts, ``{folder}`` stands for the sweep's folder,
    and ``{point}`` for a file name made of the values that vary. ``tracking`` is an MLflow store: a folder or an
    address. ``cluster`` sets the parameters ``engines`` and ``cluster`` of every notebook that has them.
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
    cluster: SweepCluster = field(default_factory=SweepCluster)

    def __post_init__(self) -> None:
        if not self.stages:
            raise SweepError(f"the sweep {self.name!r} has no stages; give a notebook, or [[stage]] tables")
        if not self.notebook and (self.grid or list(self.points) != [{}]):
            raise SweepError(
                f"the sweep {self.name!r} has a grid or points, but no notebook of its own; move them into a [[stage]]"
            )
        names = [stage.name for stage in self.stages]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SweepError(f"two stages are called {', '.join(twice)}; names must differ")
        if self.workers < 1:
            raise SweepError(f"workers must be at least 1, got {self.workers}")
        cluster = self.cluster
        if cluster.engines and cluster.address == LOCAL and self.workers > 1:
            raise SweepError(
                f"{self.workers} workers would each start {cluster.engines} engines on the same cores; set workers to "
                "1, or start one Ray for all (ray start --head) and set cluster.address to its address"
            )

    @property
    def stages(self) -> tuple[SweepStage, ...]:
        """All stages in order. A stage made from ``notebook`` comes first."""
        if not self.notebook:
            return self.stage
        return (SweepStage(notebook=self.notebook, grid=self.grid, points=self.points), *self.stage)

    @property
    def path(self) -> Path:
        return absolute(self.folder or f"runs/{self.name}")

    @classmethod
    def load(cls, file: str | Path) -> SweepSpec:
        """Read a sweep from a TOML file with the fields of this class. ``name`` is the file's name by default."""
        try:
            return parse(cls, {"name": Path(file).stem} | read_toml(file, "sweep file"), str(file))
        except SettingsError as failure:
            raise SweepError(str(failure)) from failure


class PointState(StrEnum):
    """The state of a point. All states but ``WAITING`` have MLflow's names."""

    WAITING = "not run"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """One notebook with one set of parameters.

    ``varied`` has the parameters that differ within the stage; ``defaults`` has the notebook's own values as text.
    ``key`` is a hash of everything that the result depends on, except the contents of data files.
    """

    stage: str
    varied: Mapping[str, Any]
    notebook: Path
    parameters: dict[str, Any]
    defaults: dict[str, str]
    key: str
    folder: Path
    file_name: str
    """The label as a file name. It is empty if no parameter varies."""

    @cached_property
    def label(self) -> str:
        return _label(self.varied)

    @property
    def name(self) -> str:
        return f"{self.stage} {self.label}".strip()

    @property
    def run_name(self) -> str:
        """The name of the point's MLflow run: its stage and what varies, in words, without folders and brackets."""
        words = []
        for name, value in self.varied.items():
            values = value if isinstance(value, list) else [value]
            plain = [str(each).removeprefix(f"{FOLDER_MARK}/") for each in values]
            text = " + ".join(policy_name(each) if "/" in each else each for each in plain)
            if name == "policy":
                words.insert(0, text)
            # A policy's name stands for its model.
            elif name != "model" or "policy" not in self.varied:
                words.append(f"{name} {text}")
        return f"{self.stage} {', '.join(words)}".strip()

    @property
    def output(self) -> Path:
        """The path of the executed notebook. The point's record is in the same folder."""
        name = f"{self.stage}--{self.file_name}" if self.label else self.stage
        return self.folder / NOTEBOOKS / f"{name}.ipynb"


def plan(spec: SweepSpec) -> list[list[SweepPoint]]:
    """Return the points of each stage.

    A point's key covers its notebook, its parameters, the library's code and all points of earlier stages. Raises
    :class:`SweepError` for unknown parameters, wrong types and missing files.
    """
    declared = {stage.name: notebook_parameters(input_path(stage.notebook)) for stage in spec.stages}
    unused = sorted(set(spec.parameters) - set().union(*declared.values()))
    if unused:
        raise SweepError(
            f"no notebook of the sweep {spec.name!r} has the parameter {', '.join(unused)}; leave it out of "
            "[parameters], or add it to a notebook's parameters cell"
        )
    engines = set(spec.cluster.parameters)
    if engines and not any(engines <= set(known) for known in declared.values()):
        raise SweepError(
            f"no notebook of the sweep {spec.name!r} has the parameters engines and cluster, as [cluster] needs"
        )
    planned = []
    before = code_hash()  # extended after every stage, because points depend on all stages before theirs
    for stage in spec.stages:
        names = _file_names([_label(varied) for varied in stage.varied()], spec.path / NOTEBOOKS, stage.name)
        points = [_point(spec, stage, varied, declared[stage.name], before, names) for varied in stage.varied()]
        if len({point.output for point in points}) < len(points):
            raise SweepError(f"stage {stage.name} has the same point twice; remove one of the two")
        planned.append(points)
        before = _digest([before, *(point.key for point in points)])
    return planned


def _point(
    spec: SweepSpec,
    stage: SweepStage,
    varied: dict[str, Any],
    known: Mapping[str, dict[str, str]],
    before: str,
    names: Mapping[str, str],
) -> SweepPoint:
    notebook = input_path(stage.notebook)
    file_name = names[_label(varied)]
    shared = {name: value for name, value in spec.parameters.items() if name in known}
    marks = {FOLDER_MARK: str(spec.path), POINT_MARK: file_name or "all"}
    parameters = _filled(shared | dict(stage.parameters) | varied, marks)
    parameters = {name: _as_declared(value, known.get(name, {})) for name, value in parameters.items()}
    _check(stage, notebook, known, parameters)
    twice = sorted(set(parameters) & set(spec.cluster.parameters))
    if twice:
        raise SweepError(f"stage {stage.name}: {', '.join(twice)} is set by [cluster] too; remove one of the two")
    return SweepPoint(
        stage=stage.name,
        varied=varied,
        notebook=notebook,
        parameters=parameters,
        defaults={name: declared["default"] for name, declared in known.items()},
        # Covers no data that a parameter names; what earlier stages wrote is covered by `before`.
        key=_digest([_source_of(notebook), parameters, before, *_sources_named(parameters, spec.path)]),
        folder=spec.path,
        file_name=file_name,
    )


def _source_of(notebook: Path) -> list[tuple[str, str, list[str]]]:
    """Return the text, type and tags of each cell, and leave out outputs and widget state, which change no result."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [("".join(cell["source"]), cell["cell_type"], cell.get("metadata", {}).get("tags", [])) for cell in cells]


def _sources_named(value: Any, folder: Path) -> Iterator[str]:
    """Yield a hash of each recipe or plug-in that a parameter names and that is not in the sweep's ``folder``.

    They are named as ``FILE.toml`` or ``FILE.py:NAME``, or so after ``KEY=``, at any depth.
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _sources_named(each, folder)
    elif isinstance(value, str):
        name = value.rpartition("=")[2]
        if is_plugin(name):
            name = name.rpartition(":")[0]
        if name.endswith((".py", ".toml")):
            file = input_path(name)
            if file.is_file() and not file.is_relative_to(folder):
                yield data_hash(file)


def notebook_parameters(notebook: Path) -> dict[str, dict[str, str]]:
    """Return the parameters of a notebook by name, as papermill infers them from its parameters cell.

    Each has ``inferred_type_name``, ``default`` and ``help``. Raises :class:`SweepError` unless exactly one cell has
    the tag ``parameters``, and the notebook's kernel is installed.
    """
    import nbformat
    from jupyter_client.kernelspec import find_kernel_specs
    from papermill import inspect_notebook

    if not notebook.is_file():
        raise SweepError(f"no notebook {notebook}; give its path from the working directory or the project's root")
    try:
        book = nbformat.read(notebook, 4)
    except (ValueError, KeyError, AttributeError) as failure:
        raise SweepError(f"{notebook} is not a notebook: {failure}") from failure
    tagged = sum("parameters" in cell.metadata.get("tags", ()) for cell in book.cells)
    if tagged != 1:
        count = f"{tagged} cells" if tagged else "no cell"
        fix = "give one cell that tag (JupyterLab: the cog at the right, Common Tools)"
        raise SweepError(f"{notebook} has {count} tagged 'parameters'; {fix}")
    kernel = book.metadata.get("kernelspec", {}).get("name")
    if not kernel:
        raise SweepError(f"{notebook} names no kernel to run it; open it in JupyterLab, choose one and save it")
    installed = find_kernel_specs()
    if kernel.lower() not in installed:
        raise SweepError(
            f"{notebook} needs the kernel {kernel!r}, and {', '.join(sorted(installed)) or 'none'} is installed; open "
            "it in JupyterLab, choose one of these and save it"
        )
    return inspect_notebook(str(notebook))


def _as_declared(value: Any, declared: Mapping[str, str]) -> Any:
    """Return a single value as a list of one if the notebook declares a list."""
    is_list = declared.get("inferred_type_name", "").partition("[")[0] == "list"
    return [value] if is_list and isinstance(value, str | int | float) else value


def _check(
    stage: SweepStage, notebook: Path, known: Mapping[str, dict[str, str]], parameters: Mapping[str, Any]
) -> None:
    """Raise :class:`SweepError` for an unknown parameter, of which papermill only warns, or a wrong type."""
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        listed = f"it has {', '.join(known)}{nearest(unknown[0], known)}"
        raise SweepError(f"{notebook.name} has no parameter {', '.join(unknown)}; {listed}")
    own = sorted(set(parameters) & set(OWN_PARAMETERS))
    if own:
        raise SweepError(f"stage {stage.name}: {', '.join(own)} is set by the sweep itself; remove it")
    for name, value in parameters.items():
        annotation = known[name]["inferred_type_name"]
        wanted = _TYPES.get(annotation.partition("[")[0])
        mistaken_bool = isinstance(value, bool) and wanted is not bool  # in Python a bool is an int
        if wanted and (mistaken_bool or not isinstance(value, wanted)):
            raise SweepError(f"{notebook.name}: {name} must be {annotation}, got {value!r}")


def _filled(value: Any, marks: Mapping[str, str]) -> Any:
    """Return ``value`` with each mark replaced by its text, in every string at any depth."""
    if isinstance(value, str):
        for mark, text in marks.items():
            value = value.replace(mark, text)
        return value
    if isinstance(value, list | tuple):
        return [_filled(each, marks) for each in value]
    if isinstance(value, Mapping):
        return {name: _filled(each, marks) for name, each in value.items()}
    return value


def _label(varied: Mapping[str, Any]) -> str:
    """Return the parameters that vary as one line, with paths relative to the sweep's folder."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in varied.items()}
    label = ", ".join(f"{name}={value}" for name, value in values.items())
    return label.replace(f"{FOLDER_MARK}/", "")


def _file_names(labels: Sequence[str], notebooks: Path, stage: str) -> dict[str, str]:
    """Return a readable file name for each label of a stage, different for every label.

    Of a path it has the last part, or as many as tell the label from the others. A point that has run before under a
    name with the last part alone, as earlier versions named it, keeps that name and so its results.
    """
    needed = _parts_needed(labels)
    names = {}
    for label in labels:
        short = _file_name(label, 1)
        has_run = (notebooks / f"{stage}--{short}.json").exists()
        names[label] = short if has_run else _file_name(label, needed.get(label, 1))
    return names


def _parts_needed(labels: Sequence[str]) -> dict[str, int]:
    """Return how many parts at the end of its paths tell a label from all others, for each label that they do."""
    needed: dict[str, int] = {}
    for parts in range(1, max(label.count("/") for label in labels) + 2):
        counts = Counter(_plain(label, parts) for label in labels)
        needed = {label: parts for label in labels if counts[_plain(label, parts)] == 1} | needed
    return needed


def _plain(label: str, parts: int) -> str:
    """Return a label in characters of file names, with that many ``parts`` at the end of every path in it."""
    short = re.sub(r"[^=, ]+", lambda path: "/".join(path[0].split("/")[-parts:]), label)
    return re.sub(r"[^\w=.,-]+", "_", short)


def _file_name(label: str, parts: int) -> str:
    plain = _plain(label, parts)
    if plain == label and len(plain) <= 80 and len(plain.encode()) <= _MOST_NAME_BYTES:
        return plain
    short = plain[:70].encode()[:_MOST_NAME_BYTES].decode(errors="ignore")
    return f"{short}-{_digest(label)[:8]}"  # the digest tells labels apart that are equal after the cut


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
