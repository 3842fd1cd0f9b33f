"""The smallest valid record of every format, and the options that the name of a real file would imply."""

SQUAD_ENTRY = {"id": "1", "question": "q", "is_impossible": False, "answers": [{"text": "c", "answer_start": 0}]}
RECORDS = {
    "babilong": {"input": "x", "question": "q", "target": "garden"},
    "hotpot": {
        "_id": "1", "question": "q", "answer": "a",
        "supporting_facts": [["T", 0]], "context": [["T", ["s"]]], "type": "t",
    },
    "infinitebench": {"id": 0, "context": "c", "input": "q", "answer": ["Amy"], "options": ["Bob", "Amy"]},
    "longbench": {"dataset": "trec", "input": "q", "context": "c", "answers": ["A"], "all_classes": ["A"], "_id": "1"},
    "longbench_v2": {
        "_id": "1", "domain": "x", "difficulty": "easy", "question": "q", "context": "c", "answer": "B",
        "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d",
    },
    "memagent": {"input": "q", "context": "c", "answers": ["a"], "num_docs": 1, "index": 0},
    "plain": {"id": "one", "question": "q", "document": "d", "answers": ["a"]},
    "ruler": {"index": 0, "input": "text\nQuestion: q?", "outputs": ["a"]},
    "squad": {"data": [{"paragraphs": [{"context": "c", "qas": [SQUAD_ENTRY]}]}]},
}  # fmt: skip
OPTIONS = {"babilong": {"task": "qa1"}, "infinitebench": {"task": "longbook_choice_eng"}}
