"""The driver: opening, cancelling, streaming, and what a reading of a huge file costs."""

import asyncio
import gc
import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace

import pytest

from memagent_lib.agent import Agent, AgentSettings, open_agent, run_sync
from memagent_lib.backends import Scripted
from memagent_lib.driver import Observer
from memagent_lib.prompts import Budget, Template
from memagent_lib.readers import reader_named
from memagent_lib.text import Chunk

SENTENCE = "A small boat drifts past the old mill. "


def test_an_interrupt_cancels_the_work():
    started, cancelled = threading.Event(), threading.Event()

    async def work():
        started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt():
        started.wait(60)
        time.sleep(0.5)  # until the main thread waits
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            run_sync(work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert cancelled.wait(60)


def len_of(text: str) -> str:
    return f"{len(text)}"


@pytest.mark.parametrize("name", ["overwrite", "recall"])
def test_a_lean_reading_has_few_chunk_texts_in_memory(encoder, name):
    """A gigabyte is read in the memory of a page: of a hundred chunks, only those around the turn have their text."""
    in_memory = []

    def count(_):
        gc.collect()  # futures and frames of past turns are cycles, collected whenever Python likes
        chunks = (each for each in gc.get_objects() if type(each) is Chunk)
        in_memory.append(sum("\u2042" in chunk.text for chunk in chunks))

    # A mark before every word, so that each chunk has one and chunks of other tests have none.
    blocks = (f" Note {number}: {SENTENCE}".replace(" ", " \u2042") for number in range(100))
    gc.freeze()  # the million objects of a process with torch are not visited at every turn
    try:
        trace = Agent(encoder, Scripted(len_of), reader_named(name)).read(
            blocks, "q", observer=Observer(lean=True, on_turn=count)
        )
    finally:
        gc.unfreeze()
    assert len(trace.reads) >= 100
    # Threads at work hold some more texts for a moment, which never lowers a count: the least one shows growth.
    assert 1 <= max(in_memory) <= len(trace.reads) // 10
    assert min(in_memory[len(in_memory) // 2 :]) <= 3


# Opening.


def test_arguments_win_over_a_model_folders_settings(model_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    budget = Budget(chunk_tokens=40, memory_tokens=20, answer_tokens=10, question_tokens=30)
    AgentSettings(template="short", budget=budget, reader="gated").save(folder)
    assert json.loads((folder / "memagent.json").read_text())["template"] == "short"
    own = open_agent(folder, Scripted(len_of))
    assert (own.encoder.template.name, own.encoder.budget, own.reader.name) == ("short", budget, "gated")
    other = open_agent(folder, Scripted(len_of), reader="recall", template="chunk_first", budget={"chunk_tokens": 64})
    assert other.encoder.budget == replace(budget, chunk_tokens=64)
    assert (other.encoder.template.name, other.reader.name) == ("chunk_first", "recall")


def test_a_template_that_does_not_ship_is_saved_with_the_model(tmp_path):
    mine = replace(Template.load("short"), name="mine", blind="Answer {question}")
    AgentSettings(template=mine.saved).save(tmp_path)
    assert Template.of(AgentSettings.load(tmp_path).template) == mine
    (tmp_path / "memagent.json").write_text('{"budget": {"chunk": 3}}')
    with pytest.raises(ValueError, match=r"memagent\.json: budget has no key chunk"):
        AgentSettings.load(tmp_path)


def test_a_question_without_text_is_refused(encoder):
    for question in ("", " ", None):
        with pytest.raises(ValueError, match="question"):
            Agent(encoder, Scripted(len_of)).read("Some text.", question)
