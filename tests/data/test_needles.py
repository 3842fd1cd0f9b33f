"""The needle task, examples and their file, by hand."""

import re

import pytest

from memagent_lib.data import Example, Span, load, make, save
from memagent_lib.text import chunks


@pytest.fixture(scope="module")
def needles(tokenizer):
    return list(make("needle", 12, 5, tokenizer, chunks=3, chunk_tokens=200))


def test_needles_are_a_pure_function_of_their_seed(tokenizer, needles):
    assert list(make("needle", 4, 5, tokenizer, chunks=3, chunk_tokens=200)) == needles[:4]
    assert next(make("needle", 1, 6, tokenizer, chunks=3, chunk_tokens=200)).document != needles[0].document


def test_needles_fill_their_chunks_and_have_one_evidence_span(tokenizer, needles):
    for example in needles:
        assert len(chunks(example.document, tokenizer, 200)) == 3
        (span,) = example.evidence
        needle = example.document[span.start : span.end]
        assert needle.endswith(f"is {example.answers[0]}.")
        assert example.document.count(needle.rsplit(" is ", 1)[0] + " is") == 1
    assert len({e.metadata["depth"] for e in needles}) == len(needles)


def test_half_alike_is_the_share_of_codes_that_begin_alike(tokenizer):
    shares = []
    for half_alike in (0.0, 0.5, 1.0):
        found = []
        for example in make("needle", 40, 3, tokenizer, chunks=4, half_alike=half_alike):
            (value,) = example.answers
            others = [code for code in re.findall(r" is (\d{4})\.", example.document) if code != value]
            found += [code[0] == value[0] for code in others]
        shares.append(sum(found) / len(found))
    assert shares == pytest.approx([0.1, 0.55, 1.0], abs=0.05)  # one in ten begins alike by chance


def test_examples_survive_parquet_and_doubled_ids_do_not(tmp_path, needles):
    assert load(save(needles, tmp_path / "x" / "needles.parquet")) == needles
    with pytest.raises(ValueError, match="two examples are called"):
        save([needles[0], needles[0]], tmp_path / "twice.parquet")


def test_an_example_that_cannot_be_scored_is_refused():
    good = {"id": "1", "task": "t", "question": "q", "document": "d", "answers": ("a",)}
    for wrong, message in [
        ({"answers": ()}, "no accepted answer"),
        ({"question": " "}, "empty question"),
        ({"rule": "vibes"}, "no judge 'vibes'"),
        ({"evidence": (Span(0, 9),)}, "outside"),
    ]:
        with pytest.raises(ValueError, match=message):
            Example(**(good | wrong))
