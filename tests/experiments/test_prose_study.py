"""The study of prose: what becomes of a policy's own notes, and its figure."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from pocket import TRAINED

from experiments.studies.prose.__main__ import SEEDS, TASKS, figure
from experiments.studies.prose.own_notes import HERE, OwnNotes, corrected
from memagent_lib.agent import open_agent
from memagent_lib.backends import Scripted
from memagent_lib.data import make
from memagent_lib.evaluation import evaluate, rate_of, read_rows
from memagent_lib.readers import READERS
from memagent_lib.sft import lessons_from_traces
from memagent_lib.text import Tokenizer

CHUNK = "It bends. Ada Reed is a tailor of repute. If you need a clerk, send for Paul Hart. Ada Reed is now a weaver."
TAILOR, WEAVER = "Ada Reed: Ada Reed is a tailor of repute.", "Ada Reed: Ada Reed is now a weaver."
LINK = "Una Ross: Max Ford is the doctor of Una Ross."
CLERK = "Paul Hart: If you need a clerk, send for Paul Hart."


@pytest.mark.parametrize(
    ("reply", "memory", "expected"),
    [
        (TAILOR, "", [TAILOR]),
        ("Ada Reed: Ada Reed is now a sailor.", TAILOR, [WEAVER]),
        ("Paul Hart: Paul Hart is a", TAILOR, [CLERK]),
        (f"{CLERK} Ada Reed: Ada Reed is a poet of repute. {CLERK}", "", [CLERK, TAILOR]),
        ("Una Ross: Una Ross has a", LINK, [LINK]),
        ("Max Ford: Max Ford is a Una Ross: it is", LINK, ["Max Ford: Max Ford is the doctor of Una Ross."]),
        ("Ida Cole: Ida Cole is a tailor.", "Una Ross: Una Ross has room 7.", ["Una Ross: Una Ross has room 7."]),
        ("Una Ross: Una Ross has room 9.", "Una Ross: Una Ross has room 7.", ["Una Ross: Una Ross has room 7."]),
        ("Ida Cole: Ida Cole is a tailor.", "", []),
        ("(none)", "", []),
    ],
)
def test_a_note_becomes_the_statement_about_the_same_person_that_is_most_like_it(reply, memory, expected):
    assert corrected(reply, memory, CHUNK) == expected


def test_linked_statements_are_noted_too():
    chunk = "Ida Cole has room 3. By trade Max Ford is a tailor. It bends."
    notes = [LINK, "Max Ford: By trade Max Ford is a tailor."]
    assert corrected(LINK, LINK, chunk, linked=True) == notes
    assert corrected(LINK, " ".join(notes), "It bends.", linked=True) == notes


@pytest.mark.parametrize("task", ["prose_needle", "prose_unstated"])
def test_a_policy_that_names_the_right_person_and_makes_up_the_rest_gives_exact_lessons(task):
    def policy(prompt):
        person = re.search("Question: .*?([A-Z][a-z]+ [A-Z][a-z]+)", prompt)[1]
        return f"{person}: {person} makes it up."

    examples = {each.question: each for each in make(task, 6, 1, Tokenizer.load(TRAINED), chunks=2, chunk_tokens=400)}
    backend = OwnNotes(Scripted(policy), Tokenizer.load(TRAINED), examples)
    agent = open_agent(tokenizer=TRAINED, backend=backend, template=HERE / "wording.toml")
    results = evaluate(agent, examples.values(), progress=False)
    assert all(result.correct for result in results if task == "prose_needle" or result.example.answers == ("unknown",))
    for prompt, reply in lessons_from_traces(results, READERS["overwrite"], {}):
        document = examples[prompt.question].document
        assert reply.startswith("\\boxed{") or reply == "(none)" or reply.partition(": ")[2] in document


def rows(scores, n):
    """Return ``n`` rows a task and length in chunks, of which the share in ``scores`` is right."""
    made = [
        {"task": task, "chunks": chunks, "example": f"{chunks}-{i}", "score": float(i < share * n)}
        for (task, chunks), share in scores.items()
        for i in range(n)
    ]
    return pd.DataFrame(made).assign(policy="trained", reader="overwrite", document="d")


def test_the_figure_has_what_was_read_here_as_dots_on_the_saved_lines():
    saved = rows({(f"prose_{task}", chunks): 0.5 for task in ("hop", "unstated", "needle") for chunks in (2, 8)}, n=4)
    own = rows({("prose_needle", 2): 0.75, ("prose_needle", 8): 0.25, ("prose_hop", 2): 1}, n=8)
    blind = own.assign(reader="blind", score=0.0)
    panels = figure(saved, pd.concat([own, blind])).figure.axes
    assert [panel.get_title(loc="left").strip() for panel in panels] == ["prose needle", "prose hop"]
    dots = [[tuple(each.lines[0].get_xydata()[0]) for each in panel.containers] for panel in panels]
    assert dots == [[(2, 0.75), (8, 0.25)], [(2, 1)]]
    assert all("here, n = 8" in {note.get_text() for note in panel.texts} for panel in panels)


def test_the_readme_has_the_saved_scores():
    saved = read_rows(HERE / "scores")
    trained = saved[saved["policy"].isin(SEEDS) & (saved["reader"] == "overwrite") & saved["task"].isin(TASKS)]
    rates = [rate_of(cell) for _, cell in trained.groupby(["policy", "task", "chunks"])]
    cells = [f"**{100 * rate.value:.0f} [{100 * rate.low:.0f}, {100 * rate.high:.0f}]**" for rate in rates]
    assert len(cells) >= 12
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert [cell for cell in cells if cell not in text] == []
