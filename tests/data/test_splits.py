"""One file per split and length, with as many examples as asked for."""

from __future__ import annotations

import pytest

from memagent_lib.data import load, make_splits


def test_each_length_of_a_split_has_its_file(tmp_path, tokenizer) -> None:
    splits = {"train": ([1, 2], [3, 2]), "test": ([2], [4]), "other": ([], [64, 64, 32])}
    made = make_splits(tmp_path, "needle", splits, tokenizer, seed=1, chunk_tokens=64, distractors=0.5)
    assert made[["split", "chunks", "examples"]].values.tolist() == [["train", 1, 3], ["train", 2, 2], ["test", 2, 4]]
    files = [load(path) for path in made["file"]]
    assert [len(examples) for examples in files] == [3, 2, 4]
    documents = [example.document for examples in files for example in examples]
    assert len(set(documents)) == len(documents), "no document is in two files"


@pytest.mark.parametrize(
    ("lengths", "counts", "message"),
    [
        ([1, 2, 4], [3, 2], "test examples has 2 values for 3 lengths; set one for each, or one for all"),
        ([2, 4, 2], [3], "test has a length twice: 2, 4, 2; name each length once"),
        ([2, 4], [3, 0], "n must be at least 1, got 0"),
    ],
)
def test_wrong_sizes_are_refused_before_a_file_is_made(lengths, counts, message, tmp_path, tokenizer) -> None:
    with pytest.raises(ValueError, match=message):
        make_splits(tmp_path, "needle", {"train": ([1], [1]), "test": (lengths, counts)}, tokenizer, seed=1)
    assert list(tmp_path.iterdir()) == []
