"""A tokenizer on disk, for readings that run in a process of their own."""

import pytest


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.hf.save_pretrained(folder)
    return str(folder)
