"""Our own essays, HotpotQA file and SQuAD file, in the formats of their projects."""

from __future__ import annotations

import json
import random

import pytest

from memagent_lib.data import ExampleKey, Length, prose_stock
from memagent_lib.data.tasks.multihop import MultiHop


def hotpot_records(task: MultiHop, n: int, seed: int) -> list[dict]:
    """Questions about the generated world, in the form of HotpotQA's distractor file."""
    records = []
    for index in range(n):
        plan = task.plan(ExampleKey("hotpot", seed, index, Length(documents=50)))
        context = []
        support = []
        for statement in plan.statements:
            title, _, body = statement.text.partition("\n")
            sentences = [f"{part}." for part in body.removesuffix(".").split(". ")]
            context.append([title, [sentences[0], *(f" {sentence}" for sentence in sentences[1:])]])
            support += [[title, sentences.index(statement.text[start:end])] for start, end in statement.evidence]
        question = plan.question
        answer = plan.answers[0]
        kind = "comparison" if task.shape == "comparison" else "bridge"
        record = {"_id": f"world-{seed}-{index}", "question": question, "answer": answer, "type": kind, "level": "hard"}
        records.append(record | {"supporting_facts": support, "context": context})
    return records


@pytest.fixture(scope="session")
def essays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("essays")
    stock = random.Random(5).sample(prose_stock(), 900)
    for number, (start, end) in enumerate([(0, 400), (400, 650), (650, 900)]):
        (folder / f"{number}.txt").write_text("\n\n".join(stock[start:end]) + "\n", encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="session")
def hotpot_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("hotpot") / "hotpot_dev_distractor_v1.json"
    comparisons = hotpot_records(MultiHop(shape="comparison", decoys=8), 20, seed=4)
    records = hotpot_records(MultiHop(decoys=4), 40, seed=3) + comparisons
    path.write_text(json.dumps(records), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def squad_file(tmp_path_factory):
    def paragraph(city: str, k: int) -> dict:
        patron = f"Its patron is Saint {city[::-1].title()}."
        text = f"{city} has {k + 3} bridges. {patron} Number {k} of the old guide calls it dull."
        answer = f"Saint {city[::-1].title()}"
        right = {"id": f"{city}-q", "question": f"Who is the patron of {city}?", "is_impossible": False}
        right["answers"] = [
            {"text": answer, "answer_start": text.index(answer)},
            {"text": answer[6:], "answer_start": text.index(answer) + 6},
        ]
        never = {"id": f"{city}-x", "question": f"Who burnt {city}?", "is_impossible": True, "answers": []}
        return {"context": text, "qas": [right, never]}

    cities = ["Amford", "Belwick", "Corby", "Dunmere", "Eastead", "Farham", "Gorton", "Hexdale", "Ilminster", "Jarport"]
    data = [
        {"title": f"part {i}", "paragraphs": [paragraph(c, k) for k, c in enumerate(cities[i : i + 5])]} for i in (0, 5)
    ]
    path = tmp_path_factory.mktemp("squad") / "dev-v2.0.json"
    path.write_text(json.dumps({"version": "v2.0", "data": data}), encoding="utf-8")
    return str(path)
