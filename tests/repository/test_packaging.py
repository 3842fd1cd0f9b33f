"""The files that install the project agree with one another, with what the code imports and with what is installed."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "memagent_lib" / "constraints"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SETS = {
    "plain": PROJECT["dependencies"],
    "cpu": PROJECT["dependencies"] + EXTRAS["cpu"] + EXTRAS["dev"],
    "gpu": PROJECT["dependencies"] + EXTRAS["gpu"] + EXTRAS["dev"],
}
OURS = {"memagent_lib", "experiments"}


def requirements(lines: Iterable[str]) -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


def pins(name: str) -> dict[str, str]:
    """The exact versions of a set, by distribution."""
    lines = (CONSTRAINTS / f"{name}.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(distribution): pinned for distribution, pinned in pairs}


def imported(*folders: str) -> Iterator[tuple[str, str]]:
    """Every file and the top-level modules from elsewhere that it imports, at any depth."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            for top in {name.partition(".")[0] for name in names}:
                if top not in sys.stdlib_module_names:
                    yield str(path.relative_to(ROOT)), top


def undeclared(declared: Iterable[str], *folders: str, own: set[str] = OURS) -> set[str]:
    known = requirements(declared).keys()
    distributions = packages_distributions()
    missing = set()
    for file, module in imported(*folders):
        # An optional package need not be installed: then the module is taken to have its distribution's name.
        owners = {canonicalize_name(name) for name in distributions.get(module, [module])}
        if module not in own and not owners & known:
            missing.add(f"{file} imports {module} of {', '.join(sorted(owners)) or 'no installed package'}")
    return missing


def test_all_that_is_imported_is_declared() -> None:
    installed = PROJECT["dependencies"] + EXTRAS["cpu"]
    assert undeclared(installed, "memagent_lib", "experiments/pocket") == set()
    # A study runs in a clone, and one of them drives a browser, as the tests do.
    assert undeclared(installed + EXTRAS["dev"], "experiments") == set()
    support = {path.stem for path in (ROOT / "tests" / "support").glob("*.py")}
    assert undeclared(SETS["cpu"], "tests", own=OURS | support) == set()


@pytest.mark.parametrize("name", SETS)
def test_a_constraints_file_pins_every_requirement(name: str) -> None:
    pinned = pins(name)
    for distribution, requirement in requirements(SETS[name]).items():
        assert requirement.specifier.contains(pinned[distribution]), requirement


def test_the_sets_share_the_versions_of_the_workbench() -> None:
    plain = pins("plain").items()
    assert plain <= pins("cpu").items()
    assert plain <= pins("gpu").items()


def test_the_installed_packages_are_the_pinned_ones() -> None:
    pinned = pins("cpu")
    for distribution in requirements(SETS["cpu"]):
        assert version(distribution) == pinned[distribution], distribution


def test_the_cpu_pins_need_no_further_package() -> None:
    """The line that `doctor` names installs them with --no-deps, so one that is missing would be missed at run time."""
    pinned = pins("cpu")
    needed = [Requirement(line) for name in pinned for line in requires(name) or []]
    here = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    # An index has only their CUDA builds, which fail to load beside a CPU build of torch.
    assert {canonicalize_name(each.name) for each in here} - pinned.keys() == {
        "torchvision",
        "torchaudio",
        "torchcodec",
    }


def test_the_conda_environment_takes_the_pins_of_the_plain_set() -> None:
    packages = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert packages[-1] == {"pip": ["--constraint memagent_lib/constraints/plain.txt", "--editable ."]}
    assert "python=3.11" in packages


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split("\0")[:-1]


def test_the_top_level_is_what_was_agreed() -> None:
    agreed = {"notebooks", "memagent_lib", "experiments", "tests", "environment.yml", "README.md"}
    agreed |= {"pyproject.toml", "Makefile", "LICENSE"}
    assert {name.split("/")[0] for name in tracked() if not name.startswith(".")} <= agreed


def test_committed_files_are_small_and_name_no_machine() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in tracked() if (ROOT / name).is_file()}
    adapters = [name for name in sizes if Path(name).name == "adapter_model.safetensors"]
    binary = [name for name in sizes if Path(name).suffix in {".png", ".parquet", ".safetensors"}]
    others = {name: size for name, size in sizes.items() if name not in adapters}
    assert all(sizes[name] < 12_000_000 for name in adapters)
    assert max(others.values()) < 4_000_000
    assert sum(sizes[name] for name in binary if name not in adapters) < 6_100_000
    assert max(size for name, size in others.items() if name not in binary) < 100_000
    assert not [name for name in sizes if " " in name]
    here = str(Path(sys.prefix).parent) + "/"
    for name in sizes:
        assert here not in (ROOT / name).read_text(errors="ignore"), name
