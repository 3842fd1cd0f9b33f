"""The hash of a model follows its weights, whatever their format."""

import hashlib
import json

import pytest

from memagent_lib.provenance import model_hash


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.pt", "weights.pth"])
def test_other_weights_are_another_model(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    bare = model_hash(tmp_path)
    (tmp_path / name).write_bytes(b"one")
    first = model_hash(tmp_path)
    (tmp_path / name).write_bytes(b"two")
    assert len({bare, first, model_hash(tmp_path)}) == 3
    assert first == hashlib.sha256(b"one").hexdigest()[:16]


def test_safetensors_alone_count_where_both_formats_are(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    alone = model_hash(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"x")
    assert model_hash(tmp_path) == alone


def test_scaled_positions_are_another_model(tmp_path, monkeypatch):
    hashes = []
    for scaling in (None, {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "yarn", "factor": 2.0}):
        (tmp_path / "config.json").write_text(json.dumps({"rope_scaling": scaling}))
        hashes.append(model_hash(tmp_path))
    assert len(set(hashes)) == 3
    monkeypatch.chdir(tmp_path.parent)
    assert model_hash(tmp_path.name) == hashes[-1], "found where models are found"


def test_a_hub_name_is_its_own_hash():
    assert model_hash("Qwen/Qwen2.5-7B-Instruct") == "Qwen/Qwen2.5-7B-Instruct"


def test_a_copy_of_large_weights_is_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setattr("memagent_lib.provenance._LARGE_BYTES", 2)
    for name, content in (("one", b"weights"), ("copy", b"weights"), ("other", b"Weights")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    one, copy, other = (model_hash(tmp_path / name) for name in ("one", "copy", "other"))
    assert one == copy != other
