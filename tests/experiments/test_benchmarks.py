"""Benchmarks, one file each: a record in the form that the project publishes, read as an example with its own judge."""

from __future__ import annotations

import json

import pytest
from foreign_records import OPTIONS, RECORDS

from memagent_lib.cli import main
from memagent_lib.data import FORMATS, Selection, convert, format_names, load, read_original
from memagent_lib.plugins import shipped_module, shipped_names
from memagent_lib.scoring import score


def written(path, *records):
    path.write_text(json.dumps(list(records)), encoding="utf-8")
    return path


def read(folder, form, *records, name="x.json", **options):
    return list(read_original(written(folder / name, *records), form, **options))


def test_every_format_has_a_record_and_a_file_or_an_entry():
    assert set(format_names()) == RECORDS.keys() == {*FORMATS, *shipped_names("benchmarks")}
    assert all(
        shipped_module("benchmarks", name).__doc__.count("memagent data --from") for name in set(RECORDS) - set(FORMATS)
    )


@pytest.mark.parametrize("form", RECORDS)
def test_a_bare_name_reads_its_record_as_an_example(form, tmp_path, capsys):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(RECORDS[form]) if form == "squad" else f"[{json.dumps(RECORDS[form])}]")
    out = tmp_path / "x.parquet"
    options = [f"{name}={value}" for name, value in OPTIONS.get(form, {}).items()]
    assert main(["data", "--from", form, str(path), *options, "--out", str(out)]) == 0
    (example,) = load(out)
    assert example.question and example.document and score(example.rule, example.answers[0], example.answers)
    assert main(["data", "--from", form, str(path), "no_such_option=1", "--out", str(out)]) == 2
    assert f"format '{form}' takes no no_such_option" in capsys.readouterr().err


GRAPH = "Edges of an example:\nab -> cd\n\nOperation:\nWalk.\nFinal Answer: [cd]\n\nThe edges:\nab -> ef\nef -> cd\n\n"
OPERATION = "Operation:\nFind the parents of node cd.\n\nFinal Answer: [list of nodes]"


def test_graphwalks_question_is_its_last_operation(tmp_path):
    record = {"prompt": GRAPH + OPERATION, "answer_nodes": ["ef"], "prompt_chars": 300, "problem_type": "parents"}
    parents, empty = read(tmp_path, "graphwalks", record, record | {"answer_nodes": []})
    assert (parents.question, parents.document) == (OPERATION, GRAPH.rstrip())
    assert (parents.task, parents.answers, empty.answers) == ("graphwalks/parents", ("[ef]",), ("[]",))


TALK = [
    {"role": "user", "content": "write a poem about tapirs"},
    {"role": "assistant", "content": "Tapirs sleep."},
    {"role": "user", "content": "write a poem about tapirs"},
    {"role": "assistant", "content": "Tapirs swim."},
    {"role": "user", "content": "Prepend k9xQ to the 2nd (1 indexed) poem about tapirs."},
]


def test_mrcrs_question_is_its_last_message(tmp_path):
    record = {"prompt": json.dumps(TALK), "answer": "k9xQTapirs swim.", "random_string_to_prepend": "k9xQ"}
    (example,) = read(tmp_path, "mrcr", record | {"n_needles": 2})
    assert example.question == TALK[-1]["content"]
    assert example.document.endswith("User: write a poem about tapirs\n\nAssistant: Tapirs swim.")
    assert [example.document[start:end] for start, end in example.evidence] == ["Tapirs swim."]
    assert (example.task, example.rule) == ("mrcr/2_needles", "mrcr:k9xQ")


OOLONG = {
    "id": 7, "dataset": "trec", "context_window_text": "Date: x || Instance: y", "context_window_id": 3,
    "question": "How many are spam?", "task_group": "counting", "answer": "[12]", "answer_type": "ANSWER_TYPE.NUMERIC",
}  # fmt: skip


def test_oolongs_answers_are_values_of_their_type(tmp_path):
    day = OOLONG | {"id": 8, "answer": "[datetime.date(2023, 1, 5)]", "answer_type": "ANSWER_TYPE.DATE"}
    label = OOLONG | {"id": 9, "answer": "['spam']", "answer_type": "ANSWER_TYPE.LABEL"}
    real = {
        "id": "a",
        "context_window_id": "c",
        "context_window_text": "Roll!",
        "question": "Who?",
        "answer": "Vex, Vax",
    }
    found = read(tmp_path, "oolong", OOLONG, day, label, real)
    assert [(e.rule, e.answers) for e in found] == [
        ("oolong:numeric", ("12",)),
        ("oolong:date", ("2023-01-05",)),
        ("oolong:label", ("spam",)),
        ("oolong/real", ("Vex, Vax",)),
    ]
    assert found[0].metadata["context_window_id"] == 3


def bench(source, questions, answers, **metadata):
    record = {"context": "Document 1:\nFrance.", "questions": questions, "answers": answers}
    return record | {"metadata": {"source": source, "question_types": None, **metadata}}


def test_memoryagentbench_has_an_example_for_every_question(tmp_path):
    facts = bench("factconsolidation_sh_6k", ["Where?", "Who?"], [["France", "France"], ["Odo", "O."]])
    labels = bench("icl_trec_fine_6400shot_balance", ["Which label?"], [["42"]])
    chat = bench("longmemeval_s*", ["When?"], [["May"]], question_types=["multi-session"])
    films = bench("recsys_redial_full", ["Which film?"], [["1", "2"]])
    where, who, label, talk = read(tmp_path, "memoryagentbench", facts, labels, chat)
    assert "the one with the larger number is true" in where.question and "number only" in label.question
    assert (where.answers, who.answers, talk.question) == (("France",), ("Odo", "O."), "When?")
    assert [e.rule for e in (who, label, talk)] == ["memoryagentbench/substring", "memoryagentbench/exact", "contains"]
    assert talk.metadata["category"] == "multi-session"
    with pytest.raises(ValueError, match=r"record 1.*recsys_redial_full.*source="):
        read(tmp_path, "memoryagentbench", films)
    _, chosen = convert("memoryagentbench", written(tmp_path / "y.json", labels, films), Selection(), source="icl")
    assert len(list(chosen)) == 1


DOG = {"role": "user", "content": "My dog is Rex. \n", "has_answer": True}
LONGMEMEVAL = {
    "question_id": "gpt4_1", "question_type": "single-session-user", "question": "What is my dog's name?",
    "answer": "Rex", "question_date": "2023/05/30 (Tue) 23:40", "haystack_dates": ["2023/05/20", "2023/05/21"],
    "haystack_sessions": [[{"role": "user", "content": "Hi!"}], [DOG, {"role": "assistant", "content": "Nice."}]],
}  # fmt: skip


def test_longmemevals_sessions_are_dated_and_its_judge_asks_by_kind(tmp_path):
    false = {"question_id": "gpt4_1_abs", "question": "What is my cat's name?", "answer": "You did not mention a cat."}
    days = {"question_id": "gpt4_2", "answer": "7 days. 8 days (including the last day) is also acceptable."}
    dog, cat, week = read(tmp_path, "longmemeval", LONGMEMEVAL, LONGMEMEVAL | false, LONGMEMEVAL | days)
    assert (dog.answers, week.answers) == (("Rex",), ("7 days", "8 days"))
    assert dog.document == (
        "Session of 2023/05/20\nuser: Hi!\n\nSession of 2023/05/21\nuser: My dog is Rex.\nassistant: Nice."
    )
    assert [dog.document[start:end] for start, end in dog.evidence] == ["user: My dog is Rex."]
    assert dog.question == "Current date: 2023/05/30 (Tue) 23:40\nWhat is my dog's name?"
    assert (dog.task, dog.rule) == ("longmemeval/single-session-user", "contains")
    assert (cat.task, cat.rule) == ("longmemeval/abstention", "abstains")
    prompt = shipped_module("benchmarks", "longmemeval").judge_prompt
    assert "Question: What is my dog's name?" in prompt(dog, "{reply}") and "Response: {reply}" in prompt(
        dog, "{reply}"
    )
    assert "cannot be answered" in prompt(cat, "I do not know")
    with pytest.raises(ValueError, match="record 1"):
        read(tmp_path, "longmemeval", LONGMEMEVAL | {"haystack_dates": ["one"]})


LOCOMO = {
    "sample_id": "conv-9",
    "conversation": {
        "speaker_a": "Ann", "session_10_date_time": "9 May",
        "session_10": [{"speaker": "Bo", "dia_id": "D10:1", "text": "Look!", "blip_caption": "a photo of a dog"}],
        "session_2_date_time": "8 May",
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
        {"question": "When did Bo run?", "adversarial_answer": "7 May", "evidence": ["D2:1"], "category": 5},
    ],
}  # fmt: skip


def test_locomos_questions_have_their_messages_as_evidence(tmp_path):
    when, what, fit, adversarial = read(tmp_path, "locomo", LOCOMO)
    photo = "Bo: Look! [shares an image: a photo of a dog]"
    assert when.document == f"Session of 8 May\nAnn: I ran yesterday.\nBo: Nice.\n\nSession of 9 May\n{photo}"
    assert when.question.startswith("When did Ann run? Answer with a date") and what.question == "What has Bo?"
    assert [what.document[a:b] for a, b in what.evidence] == ["Bo: Nice.", photo]
    assert (fit.answers, fit.rule, adversarial.rule) == (("Likely yes",), "f1", "abstains")
    assert score(adversarial.rule, "No information available.", adversarial.answers).value == 1


PROBING = {
    "abstention": [{"question": "Has she a cat?", "ideal_response": "The chat does not say.", "rubric": ["no cat"]}],
    "information_extraction": [{"question": "When?", "answer": "In May", "source_chat_ids": [1], "rubric": ["May"]}],
    "summarization": [],
}
CHAT = [
    [
        {"role": "user", "content": "Hi", "id": 0, "time_anchor": "May-01"},
        {"role": "user", "content": "I go in May.", "id": 1, "time_anchor": None},
    ],
    [{"role": "assistant", "content": "Fine.", "id": 2, "time_anchor": "May-02"}],
]


def test_beams_chat_is_dated_and_each_kind_has_its_questions(tmp_path):
    record = {"conversation_id": "7", "chat": CHAT, "probing_questions": repr(PROBING)}
    cat, when = read(tmp_path, "beam", record)
    assert cat.document == "[May-01]\nuser: Hi\nuser: I go in May.\n[May-02]\nassistant: Fine."
    assert [when.document[start:end] for start, end in when.evidence] == ["user: I go in May."]
    assert (cat.task, cat.rule, cat.id) == ("beam/abstention", "abstains", "beam-7-abstention-1")
    assert (when.answers, when.rule, when.metadata["rubric"]) == (("In May",), "f1", ["May"])
    plans = [{"plan-1": [{"turns": CHAT}]}, {"plan-2": [{"turns": CHAT}]}]
    cat, when = read(tmp_path, "beam", record | {"chat": plans})
    assert cat.document.count("I go in May.") == 2 and when.evidence == ()  # both plans have a message 1


LONGBENCH = {"input": "q", "context": "c", "answers": ["red fox"], "language": "en", "all_classes": None}


def test_longbench_is_scored_by_its_own_metrics_in_both_forms(tmp_path):
    mirror = {"question": "Question: Who paid?\n\n", "answer_prefix": "Answer:", "dataset": "narrativeqa", "_id": "7"}
    found = read(
        tmp_path,
        "longbench",
        LONGBENCH | {"dataset": "hotpotqa", "_id": "id1"},
        LONGBENCH | {"dataset": "gov_report", "input": ""},
        LONGBENCH | {"dataset": "trec_e", "all_classes": ["Animal", "Place"], "answers": ["Animal"]},
        LONGBENCH | {"dataset": "passage_retrieval_en", "answers": ["Paragraph 3"]},
        {name: value for name, value in LONGBENCH.items() if name != "input"} | mirror,
    )
    assert [e.rule.removeprefix("longbench/") for e in found] == [
        "f1", "rouge_l", "classes:Animal|Place", "number_share", "f1"
    ]  # fmt: skip
    assert found[0].id == "hotpotqa-id1" and found[4].question == "Question: Who paid?"
    assert "Which type has this question?" in found[2].question and found[3].question.endswith("q")
    chinese = LONGBENCH | {"dataset": "dureader"}
    with pytest.raises(ValueError, match=r"record 1.*dureader.*rule="):
        read(tmp_path, "longbench", chinese)
    (own,) = read(tmp_path, "longbench", chinese, rule="infinitebench/characters")
    assert own.rule == "infinitebench/characters"


CHOICES = ["Ada", "Odo", "Ann", "Bob"]
LONGBENCH_V2 = {"_id": "66", "length": "short", "question": "Who paid?", "context": "Odo paid.", "answer": "B"}


@pytest.mark.parametrize(
    "form",
    [
        {f"choice_{letter}": choice for letter, choice in zip("ABCD", CHOICES, strict=True)},  # zai-org/LongBench-v2
        {"choices": CHOICES, "answer": 1},  # recursal/longbench-v2
    ],
)
def test_longbench_v2_shows_its_options_in_both_forms(form, tmp_path):
    (example,) = read(tmp_path, "longbench_v2", LONGBENCH_V2 | form)
    assert example.question == "Who paid?\nA. Ada\nB. Odo\nC. Ann\nD. Bob"
    assert (example.answers, example.rule, example.metadata["length"]) == (("Odo", "B"), "choice", "short")


def test_babilongs_labels_leave_out_those_of_the_question(tmp_path):
    (tmp_path / "qa3").mkdir()
    record = {"input": "Long story.", "question": "Where was the milk before the kitchen?", "target": "garden"}
    (example,) = read(tmp_path / "qa3", "babilong", record, name="0000.json")
    assert example.rule == "babilong:bathroom|bedroom|garden|hallway|office"
    assert score(example.rule, "Before the kitchen the milk was in the garden.", example.answers).value == 1
    assert score(example.rule, "In the garden or the office.", example.answers).value == 0
    with pytest.raises(ValueError, match="task="):
        read(tmp_path, "babilong", record, name="data.json")


@pytest.mark.parametrize(
    ("task", "reply", "answer", "value"),
    [
        ("kv_retrieval", 'It is "c14c-83".', "c14c-83", 1),
        ("code_run", "so the return value is: -9", -9, 1),
        ("math_calc", "4, 14, 7", [4, 14, 6, 2], 0.5),
        ("longdialogue_qa_eng", "ACE, I think", ["ACE", "ACE ROTHSTEIN"], 1),
    ],
)
def test_infinitebenchs_tasks_have_their_judges(task, reply, answer, value, tmp_path):
    record = {"id": 0, "context": "c", "input": "q", "options": [], "answer": answer}
    (example,) = read(tmp_path, "infinitebench", record, name=f"{task}.json")
    assert score(example.rule, reply, example.answers).value == value
