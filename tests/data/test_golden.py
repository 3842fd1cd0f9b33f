"""What a seed means, fixed for good: a digest changes only when a data set does, and then every published number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import pytest
from pocket import fair_task, pocket_task

from experiments.pocket.word_tokenizer import build_tokenizer
from memagent_lib.data import Example, make, preset
from memagent_lib.text import Tokenizer

CHUNKS = {"chunks": 2, "chunk_tokens": 4200}
TOKENS = {"length_tokens": 9000}
DOCUMENTS = {"documents": 40}
GOLDEN = {
    "needle": "84e2efd96ce6 0b4c47cecf79",
    "niah_single_1": "179ea2ff9a1d b2c1d43b90ca",
    "niah_single_2": "0658b50a5b43 6fdf04be7349",
    "niah_single_3": "69027af4a434 0765b82dd4a0",
    "niah_multikey_1": "b7addf656c27 f4e91521e69e",
    "niah_multikey_2": "79ecd8861c94 49d69da43b4f",
    "niah_multikey_3": "d7e2d74a3163 893be4c30188",
    "niah_multivalue": "381d0318eb21 5233661a7b1a",
    "niah_multiquery": "2915c260fb07 1644a78d7b10",
    "vt": "65f69ce715ef fbf84890d9d0",
    "cwe": "a7032b604b76 b6528722e425",
    "fwe": "433838338981 3a95c2acfb74",
    "qa_1": "7ec337aded10 79a630b87d07",
    "qa_2": "c4a751c5a4a8 dda43dee618a 45886b73ce95",
    "ruler_hqa": "08f0fa002707 6db20f3e5071 06267d9363bf",
    "multihop_2": "058dbba6ec16 38f0f46e1d1b 089cbf2de914",
    "multihop_3": "ffa52daa8a64 c45b91abcc94 7142ab7f7440",
    "multihop_4": "3dcfe2b20130 64db9f06bbd9 b35c14571418",
    "comparison": "abed255d93b2 30196ceb7de0 89738d3b1ef0",
    "comparison_4": "c2e612aa9f15 e0586af99add 9818999cdb28",
    "keychain": "860970bd2b0c 1e8af8a3d7a4 b4c6b282a1ef",
    "updates": "35ef450c04d2 cbd7f2698afe",
    "ordering": "b00ffa2721f0 bfe5056e46d1",
    "prose_needle": "0509a7fef9ce e33c957e2a06",
    "prose_update": "d6ea25d34756 5f82b41f0d25",
    "prose_hop": "71ab26879a39 5d970d657a18",
    "prose_unstated": "3812ae476741 c59583b4397b",
}
"""Digests of two examples of every task at each of its :func:`sizes`."""
POCKET = {
    "fair_needle": "e23fecb963a9",
    "fair_multivalue": "bb8505cd47c3",
    "fair_multikey": "c16ecd3c95c6",
    "fair_bridge": "d9c3426a5206",
    "fair_update": "3fe0e3c8635d",
    "fair_chain": "9b2580c80c02",
    "fair_mix": "cfc6f8d0b282",
    "pocket_needle": "e3aaa5b7ddbd",
    "pocket_multivalue": "464b66a6fe8c",
    "pocket_multikey": "03ee8bfcf545",
    "pocket_bridge": "f6d0fd5be6e9",
    "pocket_update": "50f99a954758",
    "pocket_chain": "8f77c85dc178",
    "pocket_mix": "ce9f49e386d0",
}


def digest(examples: Iterable[Example]) -> str:
    """Return a digest of everything that a row of a file has: ids, documents to the last byte, evidence, metadata."""
    text = json.dumps([example.to_record() for example in examples], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def sizes(name: str) -> list[dict[str, int]]:
    if name == "needle" or name.startswith("prose"):
        chunk_tokens = preset(name).chunk_tokens
        return [{"chunks": count, "chunk_tokens": 4 * chunk_tokens} for count in (1, 4)]
    pooled = ("multihop", "comparison", "keychain", "qa_", "ruler_hqa")
    if name == "qa_1":
        return [{"documents": 9}, {"length_tokens": 700}]
    return [CHUNKS, TOKENS, *([DOCUMENTS] if name.startswith(pooled) else [])]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_seed_is_the_same_data_on_every_machine(name, tokenizer, essays, hotpot_file, squad_file):
    files = {"haystack_path": essays, "pool_path": squad_file if name == "qa_1" else hotpot_file}
    needed = {option: path for option, path in files.items() if preset(name).needs.startswith(option)}
    made = [digest(make(name, 2, 7, tokenizer, **size, **needed)) for size in sizes(name)]
    assert " ".join(made) == GOLDEN[name]


@pytest.mark.parametrize("name", POCKET)
def test_a_seed_is_the_same_pocket_world_on_every_machine(name):
    tokenizer = Tokenizer(build_tokenizer())
    world, _, kind = name.partition("_")
    task = (fair_task if world == "fair" else pocket_task)(kind)
    assert digest(make(task, 4, 7, tokenizer, chunks=4)) == POCKET[name]


def test_a_long_document_is_the_same_to_the_last_byte(tokenizer):
    assert digest(make("niah_single_1", 1, 7, tokenizer, length_tokens=200_000)) == "aefe1a9cb885"
    assert digest(make("multihop_2", 1, 7, tokenizer, length_tokens=200_000)) == "9a3a16e0b7de"
