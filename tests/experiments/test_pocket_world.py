"""The pocket world: what its documents hold, that they can be solved from their text, and that shortcuts do not pay."""

import random
import re

import pytest
from pocket import pocket_task

from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import QuestionKind, random_question
from memagent_lib.data import make
from memagent_lib.scoring import score
from memagent_lib.text import Tokenizer, chunks

FACT = re.compile(r"The (code|keeper|friend) of (?:the )?([\w ]+?) is (\w+)\.")
LENGTHS = (1, 2, 7)
N = 60


@pytest.fixture(scope="module")
def pocket_tokenizer() -> Tokenizer:
    return Tokenizer(build_tokenizer())


def examples(ask, tokenizer, chunk_count, n=N, **parameters):
    return list(make(pocket_task(ask), n, 5, tokenizer, chunks=chunk_count, **parameters))


def facts_of(text):
    return [match.groups() for match in FACT.finditer(text)]


def solve(question, text):
    """An independent reader of the whole text, from the words of the question alone."""
    facts, keys = facts_of(text), re.findall(r"the (\w+ \w+)(?= and|\?)", question)

    def all_of(relation, key):
        return [value for told, about, value in facts if (told, about) == (relation, key)]

    if "keeper" in question:
        return all_of("code", all_of("keeper", keys[-1])[0])
    if "friends" in question:
        at = re.search(r"friends of (\w+)", question)[1]
        while following := all_of("friend", at):
            at = following[0]
        return all_of("code", at)
    found = [value for key in keys for value in all_of("code", key)]
    return found[-1:] if "last" in question else found


def boxed(values):
    return rf"\boxed{{{', '.join(values)}}}"


@pytest.mark.parametrize("chunk_count", LENGTHS)
@pytest.mark.parametrize("ask", list(QuestionKind))
def test_a_text_answers_its_question_and_fills_its_chunks(ask, chunk_count, pocket_tokenizer):
    for example in examples(ask, pocket_tokenizer, chunk_count):
        assert len(chunks(example.document, pocket_tokenizer, 96)) == chunk_count
        assert score(example.rule, boxed(solve(example.question, example.document)), example.answers).value == 1, (
            example.id
        )


@pytest.mark.parametrize("ask", list(QuestionKind))
def test_evidence_is_whole_statements_and_needed_ones_only(ask, pocket_tokenizer):
    for example in examples(ask, pocket_tokenizer, 4):
        told = [example.document[start:end] for start, end in example.evidence]
        assert all(FACT.fullmatch(text) for text in told)
        assert set(solve(example.question, " ".join(told))) == set(example.answers)
        assert len(told) == len(set(told)) == example.metadata["facts"]


@pytest.mark.parametrize("ask", list(QuestionKind))
def test_without_its_evidence_a_text_does_not_answer(ask, pocket_tokenizer):
    for example in examples(ask, pocket_tokenizer, 4):
        text = example.document
        for start, end in example.evidence:
            text = text.replace(example.document[start:end], "")
        try:
            found = solve(example.question, text)
        except IndexError:
            continue
        assert not set(found) & set(example.answers)  # of updates, an older one is still told


def test_a_seed_has_the_same_questions_at_every_length(pocket_tokenizer):
    for ask in QuestionKind:
        short, long = examples(ask, pocket_tokenizer, 2, 5), examples(ask, pocket_tokenizer, 9, 5)
        assert [e.question for e in short] == [e.question for e in long]
        assert [e.answers for e in short] == [e.answers for e in long]
        assert examples(ask, pocket_tokenizer, 9, 5) == long


def half_named(facts, question, rng):
    names = set(re.findall(r"\w+", question))
    return [rng.choice([value for _, key, value in facts if len(names & set(key.split())) == 1] or ["none"])]


SHORTCUTS = {
    "the first code told": lambda facts, question, rng: [facts[0][2]],
    "the last code told": lambda facts, question, rng: [facts[-1][2]],
    "any code": lambda facts, question, rng: [rng.choice(facts)[2]],
    "the code told most often": lambda facts, question, rng: [
        max((value for *_, value in facts), key=[f[2] for f in facts].count)
    ],
    "a code of something with half the name": half_named,
}


@pytest.mark.parametrize("ask", list(QuestionKind))
@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_answers_that_ignore_the_question_do_not_pay(ask, shortcut, pocket_tokenizer):
    right, rng = [], random.Random(shortcut)
    for example in examples(ask, pocket_tokenizer, 16, 150):
        codes = [fact for fact in facts_of(example.document) if fact[0] == "code"]
        right.append(
            score(example.rule, boxed(SHORTCUTS[shortcut](codes, example.question, rng)), example.answers).value
        )
    assert sum(right) / len(right) < 0.1


def test_the_first_of_several_updates_is_not_the_answer(pocket_tokenizer):
    right = []
    for example in examples(QuestionKind.UPDATE, pocket_tokenizer, 8, 60):
        key = re.search(r"the (\w+ \w+)\?", example.question)[1]
        told = [value for relation, about, value in facts_of(example.document) if (relation, about) == ("code", key)]
        assert 2 <= len(told) <= 4 and len(set(told)) == len(told)
        right.append(told[0] in example.answers)
    assert not any(right)


def test_half_matching_names_are_common_and_never_the_right_one(pocket_tokenizer):
    half = whole = 0
    for example in examples(QuestionKind.NEEDLE, pocket_tokenizer, 8):
        adjective, noun = re.search(r"the (\w+) (\w+)\?", example.question).groups()
        keys = [key for relation, key, _ in facts_of(example.document) if " " in key and relation == "code"]
        half += sum((adjective in key) != (noun in key) for key in keys) / len(keys)
        whole += keys.count(f"{adjective} {noun}")
    assert whole == N and half / N > 0.2


@pytest.mark.parametrize("ask", list(QuestionKind))
def test_texts_state_other_relations_of_the_same_key(ask, pocket_tokenizer):
    """The relation counts, too: a thing whose code is asked has a keeper. Of a chain it would be another link."""
    beside = facts = 0
    for example in examples(ask, pocket_tokenizer, 8, same_key=0.2):
        told = facts_of(example.document)
        needed = facts_of(" ".join(example.document[start:end] for start, end in example.evidence))
        needed += [fact for fact in told if fact[:2] in {one[:2] for one in needed}]  # earlier updates
        others = [fact for fact in told if fact not in needed]
        beside += sum(key in {key for _, key, _ in needed} for _, key, _ in others)
        facts += len(others)
        assert set(solve(example.question, example.document)) == set(example.answers)
    assert beside == 0 if ask is QuestionKind.CHAIN else 0.1 < beside / facts < 0.3


def test_bridges_come_in_both_orders_and_fit_a_memory(pocket_tokenizer):
    orders = []
    for example in examples(QuestionKind.BRIDGE, pocket_tokenizer, 12):
        first = example.document[slice(*example.evidence[0])]
        orders.append(first.startswith("The code"))
        people = {key for relation, key, _ in facts_of(example.document) if relation == "code" and " " not in key}
        assert len(people) == 3
    assert 0.3 < sum(orders) / len(orders) < 0.7


@pytest.mark.parametrize("ask", list(QuestionKind))
def test_the_answer_to_what_no_text_states_is_unknown(ask, pocket_tokenizer):
    for example in examples(ask, pocket_tokenizer, 4, untold=1.0, half_matching=0.9):
        assert (example.answers, example.evidence) == (("unknown",), ())
        asked = re.findall(r"the (\w+ \w+)(?= and|\?)", example.question) or [example.question.split()[-1][:-1]]
        needed = {QuestionKind.BRIDGE: "keeper", QuestionKind.CHAIN: "friend"}.get(ask, "code")
        told = {(relation, key) for relation, key, _ in facts_of(example.document)}
        assert not told & {(needed, key) for key in asked}
        assert len(chunks(example.document, pocket_tokenizer, 96)) == 4


def test_a_share_of_untold_documents_leaves_the_others_solvable(pocket_tokenizer):
    half = examples("needle", pocket_tokenizer, 2, untold=0.5)
    assert 20 <= sum(example.answers == ("unknown",) for example in half) <= 40
    told = [example for example in half if example.answers != ("unknown",)]
    assert all(solve(example.question, example.document) == list(example.answers) for example in told)


def test_statements_that_are_apart_are_in_chunks_of_their_own(pocket_tokenizer):
    def of_one_chunk(examples):
        """In how many documents a chunk tells two values of the asked key."""
        crowded = 0
        for example in examples:
            key = re.findall(r"the (\w+ \w+)\?", example.question)[0]
            told = [match.start() for match in re.finditer(f"The code of the {key} is", example.document)]
            ends = [chunk.end for chunk in chunks(example.document, pocket_tokenizer, 96)]
            at = [sum(end <= start for end in ends) for start in told]
            assert len(at) >= 2 and solve(example.question, example.document) == list(example.answers)
            crowded += len(set(at)) < len(at)
        return crowded

    assert of_one_chunk(examples("update", pocket_tokenizer, 8)) > 10
    assert of_one_chunk(examples("update", pocket_tokenizer, 8, apart=0.15)) == 0


def test_a_bad_parameter_is_refused(pocket_tokenizer):
    with pytest.raises(ValueError, match="ask must be one of needle"):
        list(make(pocket_task("needle"), 1, 0, pocket_tokenizer, chunks=1, ask="haystack"))
    with pytest.raises(ValueError, match=r"apart must be at most 0\.2.*got 0\.3"):
        list(make(pocket_task("update"), 1, 0, pocket_tokenizer, chunks=8, apart=0.3))
    with pytest.raises(ValueError, match="whole chunks"):
        list(make(pocket_task("needle"), 1, 0, pocket_tokenizer, length_tokens=500))


def test_chains_have_two_to_four_links():
    rng = random.Random(0)
    assert {len(random_question(QuestionKind.CHAIN, rng).triples) for _ in range(100)} == {2, 3, 4}
