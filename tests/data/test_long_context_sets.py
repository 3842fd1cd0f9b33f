"""GraphWalks, MRCR, OOLONG, MemoryAgentBench, LongMemEval and BEAM: records in their own form, read and refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memagent_lib.data import FORMATS, Selection, convert, read_original
from memagent_lib.data.formats import likely_format
from memagent_lib.scoring import score


def parquet(path, *records):
    pq.write_table(pa.Table.from_pylist(list(records)), path)
    return path


def as_json(path, *records):
    path.write_text(json.dumps(list(records)), encoding="utf-8")
    return path


GRAPH = (
    "You will be given a graph as a list of directed edges.\n\nHere is an example:\nab -> cd\n\nOperation:\nPerform a "
    "BFS from node ab with depth 1.\nFinal Answer: [cd]\n\nThe graph has the following edges:\nab -> ef\nef -> cd\n\n"
)
OPERATION = "Operation:\nFind the parents of node cd.\n\nFinal Answer: [list of nodes]"
GRAPHWALKS = {"prompt": GRAPH + OPERATION, "answer_nodes": ["ef"], "prompt_chars": 300, "problem_type": "parents"}


def test_graphwalks_question_is_its_last_operation(tmp_path):
    path = parquet(tmp_path / "x.parquet", GRAPHWALKS, GRAPHWALKS | {"answer_nodes": [], "problem_type": "bfs"})
    parents, empty = read_original(path, "graphwalks")
    assert (parents.question, parents.document) == (OPERATION, GRAPH.rstrip())
    assert (parents.task, parents.answers, empty.answers) == ("graphwalks/parents", ("[ef]",), ("[]",))
    assert score(parents.rule, "Final Answer: [ef, ab]", parents.answers).value == pytest.approx(2 / 3)
    assert score(empty.rule, "Final Answer: []", empty.answers).value == 1
    assert likely_format(path) == "graphwalks"
    with pytest.raises(ValueError, match="record 1: 'prompt' has no 'Operation:'"):
        list(read_original(as_json(tmp_path / "x.json", GRAPHWALKS | {"prompt": "a -> b"}), "graphwalks"))


TALK = [
    {"role": "user", "content": "Here are some examples."},
    {"role": "user", "content": "write a poem about tapirs"},
    {"role": "assistant", "content": "Tapirs sleep."},
    {"role": "user", "content": "write a poem about tapirs"},
    {"role": "assistant", "content": "Tapirs swim."},
    {"role": "user", "content": "Prepend k9xQ to the 2nd (1 indexed) poem about tapirs."},
]
MRCR = {
    "prompt": json.dumps(TALK), "answer": "k9xQTapirs swim.", "random_string_to_prepend": "k9xQ", "n_needles": 2,
    "desired_msg_index": 3, "total_messages": 6, "n_chars": 200,
}  # fmt: skip


def test_mrcrs_question_is_its_last_message(tmp_path):
    path = parquet(tmp_path / "2needle.parquet", MRCR)
    (example,) = read_original(path, "mrcr")
    assert example.question == TALK[-1]["content"]
    assert example.document.endswith("User: write a poem about tapirs\n\nAssistant: Tapirs swim.")
    assert [example.document[start:end] for start, end in example.evidence] == ["Tapirs swim."]
    assert (example.task, example.rule) == ("mrcr/2_needles", "mrcr:k9xQ")
    assert score(example.rule, "k9xQTapirs swim.", example.answers).value == 1
    assert score(example.rule, "Tapirs swim.", example.answers).value == 0
    assert likely_format(path) == "mrcr"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "Tapirs swim."}, "'answer' must begin with random_string_to_prepend, 'k9xQ'"),
        ({"prompt": "write a poem"}, "'prompt' is no JSON list of messages"),
        ({"prompt": "[]"}, "'prompt' must have a conversation and a question"),
        ({"prompt": '[{"role": "user"}, {"role": "user"}]'}, "missing field 'content'"),
    ],
)
def test_a_broken_record_of_mrcr_is_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        list(read_original(as_json(tmp_path / "x.json", MRCR | change), "mrcr"))


OOLONG = {
    "id": 7, "context_len": 1024, "dataset": "trec", "context_window_text": "Date: x || Instance: y",
    "question": "How many are spam? Give your answer as 'Answer: number'.", "task_group": "counting", "task": "T",
    "answer": "[12]", "answer_type": "ANSWER_TYPE.NUMERIC", "input_subset": "False", "num_labels": 6,
    "context_window_id": 3,
}  # fmt: skip
REAL = {"id": "a", "context_window_id": "c", "context_window_text": "Roll!", "question": "Who?", "answer": "Vex, Vax"}


def test_oolongs_answers_are_values_of_their_type(tmp_path):
    on = OOLONG | {"id": 8, "answer": "[datetime.date(2023, 1, 5)]", "answer_type": "ANSWER_TYPE.DATE"}
    label = OOLONG | {"id": 9, "answer": "['spam']", "answer_type": "ANSWER_TYPE.LABEL"}
    path = parquet(tmp_path / "x.parquet", OOLONG, on, label)
    number, day, spam = read_original(path, "oolong")
    assert (number.task, number.rule, number.answers) == ("oolong/counting", "oolong:numeric", ("12",))
    assert score(number.rule, "Answer: 11", number.answers).value == 0.75
    assert (day.rule, score(day.rule, "Date: January 5, 2023", day.answers).value) == ("oolong:date", 1)
    assert (spam.rule, spam.answers) == ("oolong:label", ("spam",))
    assert number.metadata["context_window_id"] == spam.metadata["context_window_id"] == 3
    assert likely_format(path) == "oolong"
    with pytest.raises(ValueError, match=r"'answer' must be a list of one value, such as \['spam'\], found 'spam'"):
        list(read_original(as_json(tmp_path / "x.json", OOLONG | {"answer": "spam"}), "oolong"))


def test_oolongs_real_set_is_scored_from_the_box(tmp_path):
    (example,) = read_original(as_json(tmp_path / "x.json", REAL), "oolong")
    assert (example.task, example.rule, example.answers) == ("oolong_real", "oolong_real", ("Vex, Vax",))
    assert score(example.rule, r"\boxed{Vax, Percy}", example.answers).value == 0.5


def bench(source, questions, answers, **metadata):
    record = {"context": "Document 1:\nFrance.", "questions": questions, "answers": answers}
    return record | {"metadata": {"source": source, "question_types": None, **metadata}}


FACTS = bench("factconsolidation_sh_6k", ["Where?", "Who?"], [["France", "France"], ["Odo", "O."]])
LABELS = bench("icl_trec_fine_6400shot_balance", ["Which label?"], [["42"]])
CHAT = bench("longmemeval_s*", ["When?"], [["May"]], question_types=["multi-session"])
FILMS = bench("recsys_redial_full", ["Which film?"], [["1", "2"]])


def test_memoryagentbench_has_an_example_for_every_question(tmp_path):
    path = parquet(tmp_path / "x.parquet", FACTS, LABELS, CHAT)
    where, who, label, chat = read_original(path, "memoryagentbench")
    without_instruction = [example.question.rpartition("\n\n")[2] for example in (where, who, label, chat)]
    assert without_instruction == ["Where?", "Who?", "Which label?", "When?"]
    assert where.document == who.document == FACTS["context"]
    assert (where.id, where.answers, who.answers) == ("factconsolidation_sh_6k-1-1", ("France",), ("Odo", "O."))
    assert [example.rule for example in (who, label, chat)] == ["substring_match", "exact_match", "contains"]
    assert (label.metadata["category"], chat.metadata["category"]) == (LABELS["metadata"]["source"], "multi-session")
    assert score(label.rule, "Label it.\nAnswer: 42", label.answers).value == 1
    assert likely_format(path) == "memoryagentbench"


def test_memoryagentbenchs_instructions_are_in_the_questions(tmp_path):
    where, who, label, chat = read_original(parquet(tmp_path / "x.parquet", FACTS, LABELS, CHAT), "memoryagentbench")
    assert all("the one with the larger number is true" in example.question for example in (where, who))
    assert "Answer with the number only." in label.question
    assert chat.question == "When?"


def test_a_part_of_memoryagentbench_is_chosen_and_the_rest_named(tmp_path):
    path = parquet(tmp_path / "x.parquet", LABELS, FILMS, CHAT)
    with pytest.raises(ValueError, match=r"recsys_redial_full names films by numbers .* leave these records out"):
        list(read_original(path, "memoryagentbench"))
    selected, examples = convert("memoryagentbench", [path], Selection(), source="icl")
    assert [example.task for example in examples] == ["memoryagentbench/icl_trec_fine_6400shot_balance"]
    assert selected.notes == ["left out: longmemeval_s*, recsys_redial_full"]
    assert "longmemeval_s* by a model" in FORMATS["memoryagentbench"].note(path, source="longmemeval")
    with pytest.raises(ValueError, match="no MemoryAgentBench data set 'mine'; expected one of ruler_niah"):
        list(read_original(as_json(tmp_path / "x.json", bench("mine", ["q"], [["a"]])), "memoryagentbench"))
    with pytest.raises(ValueError, match="2 questions and 1 answers; expected a pair each"):
        list(read_original(as_json(tmp_path / "y.json", bench("icl_x", ["q", "r"], [["a"]])), "memoryagentbench"))


DOG = {"role": "user", "content": "My dog is Rex. \n", "has_answer": True}
LONGMEMEVAL = {
    "question_id": "gpt4_1", "question_type": "single-session-user", "question": "What is my dog's name?",
    "answer": "Rex", "question_date": "2023/05/30 (Tue) 23:40", "haystack_session_ids": ["s1", "s2"],
    "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 10:00"],
    "haystack_sessions": [[{"role": "user", "content": "Hi!"}], [DOG, {"role": "assistant", "content": "Nice."}]],
    "answer_session_ids": ["s2"],
}  # fmt: skip
FALSE = {"question_id": "gpt4_1_abs", "question": "What is my cat's name?", "answer": "You did not mention a cat."}


def test_longmemevals_sessions_are_dated_and_marked(tmp_path):
    path = as_json(tmp_path / "longmemeval_s.json", LONGMEMEVAL, LONGMEMEVAL | {"question_id": "2", "answer": 3})
    first, second = read_original(path, "longmemeval")
    assert first.document == (
        "Session of 2023/05/20 (Sat) 02:21\nuser: Hi!\n\n"
        "Session of 2023/05/21 (Sun) 10:00\nuser: My dog is Rex.\nassistant: Nice."
    )
    assert [first.document[start:end] for start, end in first.evidence] == ["user: My dog is Rex."]
    assert first.question == "Current date: 2023/05/30 (Tue) 23:40\nWhat is my dog's name?"
    assert (first.task, first.rule, second.answers) == ("longmemeval/single-session-user", "contains", ("3",))
    assert likely_format(path) == "longmemeval"
    assert FORMATS["longmemeval"].note(path) == "LongMemEval's own judge is a model: memagent evaluate --judge"


def test_a_false_premise_is_scored_by_abstention(tmp_path):
    (example,) = read_original(as_json(tmp_path / "x.json", LONGMEMEVAL | FALSE), "longmemeval")
    assert (example.task, example.rule) == ("longmemeval/abstention", "abstains")
    assert score(example.rule, "You never mentioned a cat.", example.answers).value == 1
    assert score(example.rule, "Rex", example.answers).value == 0


LOCOMO = {
    "sample_id": "conv-9",
    "conversation": {
        "speaker_a": "Ann", "speaker_b": "Bo", "session_10_date_time": "2 pm on 9 May, 2023",
        "session_10": [
            {"speaker": "Bo", "dia_id": "D10:1", "text": "Look!", "blip_caption": "a photo of a dog", "img_url": ["u"]}
        ],
        "session_2_date_time": "1 pm on 8 May, 2023",
        "session_2": [
            {"speaker": "Ann", "dia_id": "D2:1", "text": "I ran\nyesterday."},
            {"speaker": "Bo", "dia_id": "D2:2", "text": "Nice."},
        ],
        "session_11_date_time": "without a session",
    },
    "qa": [
        {"question": "When did Ann run?", "answer": "7 May 2023", "evidence": ["D2:1"], "category": 2},
        {"question": "What has Bo?", "answer": "a dog", "evidence": ["D2:2; D:10:01", "D"], "category": 1},
        {"question": "Is Ann fit?", "answer": "Likely yes; she runs", "evidence": [], "category": 3},
        {"question": "What year is it?", "answer": 2023, "evidence": ["D2:1"], "category": 4},
        {"question": "When did Bo run?", "adversarial_answer": "7 May", "evidence": ["D2:1"], "category": 5},
    ],
}  # fmt: skip


def test_locomos_questions_have_their_messages_as_evidence(tmp_path):
    path = as_json(tmp_path / "locomo10.json", LOCOMO)
    when, what, fit, year, adversarial = read_original(path, "locomo")
    assert when.document == (
        "Session of 1 pm on 8 May, 2023\nAnn: I ran yesterday.\nBo: Nice.\n\n"
        "Session of 2 pm on 9 May, 2023\nBo: Look! [shares an image: a photo of a dog]"
    )
    assert when.question.startswith("When did Ann run? Answer with a date") and what.question == "What has Bo?"
    assert [when.document[a:b] for a, b in when.evidence] == ["Ann: I ran yesterday."]
    assert [what.document[a:b] for a, b in what.evidence] == [
        "Bo: Nice.",
        "Bo: Look! [shares an image: a photo of a dog]",
    ]
    assert [example.task.partition("/")[2] for example in (when, what, fit, year, adversarial)] == [
        "temporal", "multi-hop", "open-domain", "single-hop", "adversarial"
    ]  # fmt: skip
    assert (fit.answers, year.answers, year.rule) == (("Likely yes",), ("2023",), "f1")
    assert likely_format(path) == "locomo"


def test_a_note_on_a_format_is_made_once_for_all_its_files(tmp_path):
    paths = [as_json(tmp_path / f"{i}.json", LOCOMO | {"sample_id": f"conv-{i}"}) for i in range(2)]
    (note,) = convert("locomo", paths, Selection())[0].notes
    assert note.startswith("LoCoMo's own F1 is of stemmed words")


def test_locomos_adversarial_questions_are_scored_by_abstention(tmp_path):
    *_, example = read_original(as_json(tmp_path / "x.json", LOCOMO), "locomo")
    assert score(example.rule, "Not mentioned in the conversation", example.answers).value == 1
    assert score(example.rule, "No information available.", example.answers).value == 1
    assert score(example.rule, "7 May", example.answers).value == 0


def test_a_file_of_another_set_is_refused_by_name(tmp_path):
    path = as_json(tmp_path / "x.json", LONGMEMEVAL)
    with pytest.raises(ValueError, match="it looks like LongMemEval's records: --from longmemeval"):
        list(read_original(path, "memoryagentbench"))
    with pytest.raises(ValueError, match="it looks like MRCR's records: --from mrcr"):
        list(read_original(as_json(tmp_path / "y.json", MRCR), "graphwalks"))


PROBING = {
    "abstention": [{"question": "Has she a cat?", "ideal_response": "The chat does not say.", "rubric": ["no cat"]}],
    "information_extraction": [
        {"question": "When?", "answer": "In May", "difficulty": "easy", "source_chat_ids": [1], "rubric": ["May"]}
    ],
    "summarization": [],
}
BEAM = {
    "conversation_id": "7",
    "chat": [
        [
            {"role": "user", "content": "Hi", "id": 0, "time_anchor": "May-01"},
            {"role": "user", "content": "I go in May.", "id": 1, "time_anchor": None},
        ],
        [{"role": "assistant", "content": "Fine.", "id": 2, "time_anchor": "May-02"}],
    ],
    "probing_questions": repr(PROBING),
}


def test_beams_chat_is_dated_and_each_kind_has_its_questions(tmp_path):
    path = parquet(tmp_path / "x.parquet", BEAM)
    cat, when = read_original(path, "beam")
    assert cat.document == "[May-01]\nuser: Hi\nuser: I go in May.\n[May-02]\nassistant: Fine."
    assert [when.document[start:end] for start, end in when.evidence] == ["user: I go in May."]
    assert (cat.task, cat.rule, cat.id) == ("beam/abstention", "abstains", "beam-7-abstention-1")
    assert (when.answers, when.rule, when.metadata["rubric"]) == (("In May",), "f1", ["May"])
    assert score(cat.rule, "She never mentioned a cat.", cat.answers).value == 1
    assert likely_format(path) == "beam"


def test_beams_longest_chats_are_nested_in_plans(tmp_path):
    turns = [{"batch": 1, "turns": BEAM["chat"]}]
    plans = BEAM | {"chat": [{"plan-1": turns}, {"plan-2": turns}]}
    cat, when = read_original(as_json(tmp_path / "x.json", plans), "beam")
    assert cat.document.count("I go in May.") == 2
    assert when.evidence == ()  # both plans have a message 1
    with pytest.raises(ValueError, match="'probing_questions' must be an object with a list for each kind"):
        list(read_original(as_json(tmp_path / "y.json", BEAM | {"probing_questions": "none"}), "beam"))
