"""The smallest valid record of every format, and the options that the name of a real file would imply."""

SQUAD_ENTRY = {"id": "1", "question": "q", "is_impossible": False, "answers": [{"text": "c", "answer_start": 0}]}
RECORDS = {
    "babilong": {"input": "x", "question": "q", "target": "garden"},
    "beam": {
        "conversation_id": "1", "chat": [[{"role": "user", "content": "c", "id": 0}]],
        "probing_questions": "{'abstention': [{'question': 'q', 'ideal_response': 'a'}]}",
    },
    "graphwalks": {
        "prompt": "The edges:\na -> b\n\nOperation:\nFind the parents of node b.", "answer_nodes": ["a"],
        "problem_type": "parents", "prompt_chars": 51,
    },
    "hotpot": {
        "_id": "1", "question": "q", "answer": "a",
        "supporting_facts": [["T", 0]], "context": [["T", ["s"]]], "type": "t",
    },
    "infinitebench": {"id": 0, "context": "c", "input": "q", "answer": ["Amy"], "options": ["Bob", "Amy"]},
    "locomo": {
        "sample_id": "conv-1", "qa": [{"question": "q", "answer": "a", "evidence": ["D1:1"], "category": 4}],
        "conversation": {"session_1_date_time": "d", "session_1": [{"speaker": "A", "dia_id": "D1:1", "text": "c"}]},
    },
    "longbench": {"dataset": "trec", "input": "q", "context": "c", "answers": ["A"], "all_classes": ["A"], "_id": "1"},
    "longbench_v2": {
        "_id": "1", "domain": "x", "difficulty": "easy", "question": "q", "context": "c", "answer": "B",
        "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d",
    },
    "longmemeval": {
        "question_id": "1", "question_type": "multi-session", "question": "q", "answer": "a", "question_date": "d",
        "haystack_dates": ["d"], "haystack_sessions": [[{"role": "user", "content": "c", "has_answer": True}]],
    },
    "memagent": {"input": "q", "context": "c", "answers": ["a"], "num_docs": 1, "index": 0},
    "memoryagentbench": {
        "context": "c", "questions": ["q"], "answers": [["a"]], "metadata": {"source": "ruler_qa1_197K"},
    },
    "mrcr": {
        "prompt": '[{"role": "user", "content": "c"}, {"role": "user", "content": "q"}]', "answer": "xyc",
        "random_string_to_prepend": "xy", "n_needles": 2,
    },
    "oolong": {
        "id": 1, "context_window_text": "c", "context_window_id": 0, "question": "q", "task_group": "counting",
        "answer": "['a']", "answer_type": "ANSWER_TYPE.LABEL",
    },
    "plain": {"id": "one", "question": "q", "document": "d", "answers": ["a"]},
    "ruler": {"index": 0, "input": "text\nQuestion: q?", "outputs": ["a"]},
    "squad": {"data": [{"paragraphs": [{"context": "c", "qas": [SQUAD_ENTRY]}]}]},
}  # fmt: skip
OPTIONS = {"babilong": {"task": "qa1"}, "infinitebench": {"task": "longbook_choice_eng"}}
