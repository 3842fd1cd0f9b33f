from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from papermill import inspect_notebook

from memagent_lib import Agent
from memagent_lib.backends import Scripted
from memagent_lib.data import Example, make, save
from memagent_lib.evaluation import EvaluationPlan
from memagent_lib.prompts import Encoder
from memagent_lib.sweeps.specification import OWN_PARAMETERS
from memagent_lib.tracking import Experiment, evaluate_files

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FORBIDDEN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try)
_PARAMETER_TYPES = ("int", "float", "str", "bool", "list", "dict")


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebooks_parameters_are_typed_and_explained(path: Path) -> None:
    cells = code_cells(path)
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    source = next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", []))
    known = inspect_notebook(str(path))
    assert list(known) == [node.target.id for node in ast.parse(source).body]
    assert all(p["inferred_type_name"] in _PARAMETER_TYPES and p["help"] for p in known.values())
    assert set(OWN_PARAMETERS) - {"point"} <= set(known)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_defines_nothing_and_each_cell_displays(path: Path) -> None:
    for cell in code_cells(path):
        assert not cell.source.lstrip().startswith(("!", "%"))
        tree = ast.parse(cell.source)
        assert not any(isinstance(node, FORBIDDEN) for node in ast.walk(tree))
        assert max(map(len, cell.source.splitlines())) <= 120
        last = tree.body[-1]
        figure = isinstance(last, ast.Assign) and ".figure" in ast.unparse(last)
        assert isinstance(last, ast.Expr) or figure or "parameters" in cell.metadata.get("tags", [])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_opens_its_store_before_it_does_any_work(path: Path) -> None:
    _, first, *later = (cell.source for cell in code_cells(path))
    assert "\n\nnotebook.prepare()\nexperiment = Experiment.open(tracking)\n" in first
    assert "Experiment.open" not in "".join(later)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_list_may_be_one_value_as_papermill_gives_it(path: Path) -> None:
    parameters = inspect_notebook(str(path)).values()
    lists = [p["name"] for p in parameters if p["inferred_type_name"] == "list"]
    source = code_cells(path)[1].source
    assert [name for name in lists if f"{name} = notebook.listed({name})\n" not in source] == []


def run_cells(notebook: str, **parameters: Any) -> dict[str, Any]:
    """Run a notebook's code cells in this process, without a kernel and its displays; return the names they define."""
    names: dict[str, Any] = {}
    for cell in code_cells(ROOT / "notebooks" / f"{notebook}.ipynb"):
        exec(compile(cell.source, notebook, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names |= parameters
    return names


def evaluated(
    agents: dict[str, list[Agent]], examples: list[Example], workspace: Path, readers: Sequence[str] = ("overwrite",)
) -> dict[str, str]:
    """Evaluate the agents of each policy; return the parameters that the notebooks after 03_evaluate share."""
    plan = EvaluationPlan([save(examples, workspace / "test.parquet")], readers=readers)
    for policy, of_policy in agents.items():
        for number, agent in enumerate(of_policy):
            with Experiment.open(workspace).run(f"evaluate {policy}") as run:
                evaluate_files(run, agent, plan, workspace / f"results/point={number}", policy=policy)
    return {"results": str(workspace / "results"), "tracking": str(workspace)}


def scripted(encoder: Encoder, memory_tokens: int, reply: str) -> Agent:
    budget = replace(encoder.budget, memory_tokens=memory_tokens)
    return Agent(Encoder(encoder.tokenizer, encoder.template, budget), Scripted(lambda prompt: reply))


def test_documents_of_no_set_length_are_drawn_and_compared(encoder: Encoder, workspace: Path) -> None:
    made = make("needle", 3, 0, encoder.tokenizer, chunks=2, chunk_tokens=48)
    examples = [replace(each, metadata={}) for each in made]  # as those of other projects
    right = f"\\boxed{{{examples[0].answers[0]}}}"
    agents = {"one": [scripted(encoder, 24, "nothing")], "other": [scripted(encoder, 24, right)]}
    shared = evaluated(agents, examples, workspace)
    drawn = {"figure_file": str(workspace / "f.png"), "table_file": str(workspace / "t.csv")}
    figure = run_cells("05_length_extrapolation", policies=["one"], **drawn, **shared)
    assert figure["differences"]["n"].tolist() == [3]
    pair = {"before": "one", "after": "other", "chunks": 0, "html": str(workspace / "memory.html")}
    inspected = run_cells("06_inspect_memory", **pair, **shared)
    assert {policy: len(found) for policy, found in inspected["readings"].items()} == {"one": 3, "other": 3}
    pair = {"before": "one", "after": "other", "html": str(workspace / "compared.html")}
    compared = run_cells("07_compare_runs", **pair, tracking=str(workspace))
    assert compared["opening"]["policy"] == "one" and "ma-timeline" in (workspace / "compared.html").read_text()


def test_two_settings_of_one_policy_are_inspected_by_name(encoder: Encoder, workspace: Path) -> None:
    examples = list(make("needle", 2, 0, encoder.tokenizer, chunks=2, chunk_tokens=48))
    shared = evaluated({"one": [scripted(encoder, size, "nothing") for size in (16, 24)]}, examples, workspace)
    shared |= {"chunks": 2, "html": str(workspace / "memory.html")}
    names = run_cells("06_inspect_memory", before="one, memory 24", after="one, memory 16", **shared)
    assert list(names["readings"]) == ["one, memory 24", "one, memory 16"]
    assert names["first"] == "one, memory 24" and "ma-timeline" in (workspace / "memory.html").read_text()
    with pytest.raises(ValueError, match="'one, memory 16', 'one, memory 24'"):
        run_cells("06_inspect_memory", before="one", after="one, memory 16", **shared)
