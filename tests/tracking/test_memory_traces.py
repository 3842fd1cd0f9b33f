from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from memagent_lib.journal import digest
from memagent_lib.tracking import Experiment
from memagent_lib.tracking.traces import log_traces, selected_turns


def found(experiment: Experiment, where: str = "") -> list:
    return experiment.client.search_traces([experiment.experiment_id], filter_string=where, include_spans=False)


def test_a_trace_has_a_span_per_turn_without_its_chunks_text(workspace: Path, lost) -> None:
    run = Experiment.open(workspace).start("one")
    assert log_traces(run, [lost]) == (0, 0)
    (trace,) = found(run.experiment)
    trace = run.experiment.client.get_trace(trace.info.trace_id)
    root, *turns = sorted(trace.data.spans, key=lambda span: span.start_time_ns)
    assert [span.name for span in (root, *turns)] == ["overwrite", "read 1", "read 2", "read 3", "read 4", "answer"]
    assert {span.parent_id for span in turns} == {root.span_id}
    assert (root.inputs["question"], root.outputs) == (lost.trace.question, {"answer": "\\boxed{9}"})
    for span, turn in zip(turns, lost.trace.turns, strict=True):
        assert span.inputs["memory"] == turn.prompt.memory
        assert list(span.outputs.values()) == [turn.reply.text]
        if chunk := turn.prompt.chunk:
            position = {
                "start": chunk.start,
                "end": chunk.end,
                "tokens": chunk.tokens,
                "hash": digest(chunk.text),
            }
            assert span.inputs["chunk"] == position
    assert [span.attributes["evidence"] for span in turns] == [False, True, False, False, False]
    assert lost.trace.turns[0].prompt.chunk.text not in trace.to_json()
    usage = {"input_tokens": lost.trace.prompt_tokens, "output_tokens": lost.trace.reply_tokens}
    assert usage.items() <= trace.info.token_usage.items()


def test_traces_are_found_by_question_score_chunk_and_fate(workspace: Path, kept, lost, long_reading) -> None:
    long = long_reading(6, 1, 4, cut=2)
    run = Experiment.open(workspace).start("one")
    log_traces(run, [kept, lost, replace(long, example=replace(long.example, question="Who signs?"))], policy="p")
    hash_of_kept = digest(kept.trace.turns[1].prompt.chunk.text)

    def examples(where: str) -> set[str]:
        return {trace.info.tags["example"] for trace in found(run.experiment, where)}

    assert examples("tags.question ILIKE '%BOLD owl%'") == {"kept", "lost"}
    assert examples("feedback.score < 1") == {"lost", "long"}
    assert examples(f"span.attributes.chunk_hash LIKE '%{hash_of_kept}%'") == {"kept", "lost"}
    assert examples("tags.finish_reason = 'length'") == {"long"}
    assert examples("span.name = 'read 3' AND span.attributes.finish_reason LIKE '%length%'") == {"long"}
    assert examples("tags.fate = 'noted and lost'") == {"lost", "long"}
    assert examples("tags.policy = 'p'") == {"kept", "lost", "long"}
    assert examples("trace.text ILIKE '%bold</b> MOLE%'") == {"lost"}


def test_a_long_trace_is_thinned_and_its_gaps_are_counted(workspace: Path, long_reading) -> None:
    result = long_reading(723, noted=241, lost=602, cut=400)
    kept = selected_turns(result, 20)
    assert len(kept) <= 20
    assert {0, 1, 240, 241, 400, 601, 602, 722, 723} <= set(kept)
    assert max(after - before for before, after in pairwise(kept)) < 723 / 6

    run = Experiment.open(workspace).start("one")
    assert log_traces(run, [result], max_turns=20) == (0, 724 - len(kept))
    trace = run.experiment.client.get_trace(found(run.experiment)[0].info.trace_id)
    assert [span.attributes["turn"] - 1 for span in trace.data.spans if span.parent_id] == kept
    root = next(span for span in trace.data.spans if span.parent_id is None)
    assert (root.attributes["turns"], root.attributes["turns_left_out"]) == (724, 724 - len(kept))
