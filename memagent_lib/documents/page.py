"""A reading as one page of HTML that needs nothing else: the answer, its evidence with the place, the memory's history.

Everything that comes from a document or a model is escaped. Knows finished readings; asks no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from memagent_lib.diagnostics import MemoryChange, MemoryPiece

if TYPE_CHECKING:
    from memagent_lib.documents.file_reading import FileReading

SHOWN_STEPS = 400
SHOWN_EVIDENCE = 40
# Colours are translucent over whatever the page has, so the same sheet reads in a light and in a dark notebook.
_CSS = """
html:has(> body > .memagent) { color-scheme: light dark; }
.memagent { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: inherit; }
.memagent h1 { font-size: 1.35rem; line-height: 1.3; margin-top: 2.4rem; white-space: pre-wrap; }
.memagent h2 { font-size: 1.05rem; margin-top: 2rem; }
.memagent .answer { font-size: 1.15rem; padding: .8rem 1rem; border-left: 4px solid #4488cc; background: rgba(68, 136, 204, .12); }
.memagent .answer, .memagent blockquote, .memagent .memory { white-space: pre-wrap; overflow-wrap: anywhere; }
.memagent blockquote { margin: .6rem 0; padding: .3rem .9rem; border-left: 3px solid rgba(128, 128, 128, .5); color: inherit; }
.memagent .place, .memagent .facts { opacity: .75; font-size: .85rem; }
.memagent mark { background: rgba(240, 190, 0, .4); color: inherit; }
.memagent ins { background: rgba(0, 158, 115, .25); text-decoration: none; } .memagent del { background: rgba(213, 94, 0, .2); }
.memagent .own { border-bottom: 1px dotted rgba(128, 128, 128, .9); }
.memagent details { border-top: 1px solid rgba(128, 128, 128, .3); padding: .45rem 0; } .memagent summary { cursor: pointer; }
.memagent .memory { margin: .4rem 0; } .memagent .warn { color: #c47a00; }
"""
_BOX = re.compile(
    r'\\(?:<span class="own">)?boxed(?:</span>)?\{(.*)\}', re.DOTALL
)  # the answer's box, around marked words


def page(reading: FileReading) -> str:
    title = escape(reading.questions[0])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title></head><body>{fragment(reading)}</body></html>\n"
    )


def fragment(reading: FileReading) -> str:
    """The page's body, which a notebook shows as it is."""
    answers = "".join(_answer(reading, question) for question in reading.questions)
    return f'<style>{_CSS}</style><div class="memagent">{answers}{_facts(reading)}{_history(reading)}</div>'


def _answer(reading: FileReading, question: str) -> str:
    answer, pieces = reading.provenance.answers.get(question, (reading.answers.get(question, ""), ()))
    evidence = reading.evidence(question)
    shown = "".join(_quoted(phrase, place) for phrase, place in evidence[:SHOWN_EVIDENCE])
    traced = any(piece.source for piece in pieces)
    head = (
        "Evidence" if traced else "What the memory held at the end; no word of the answer could be traced to the source"
    )
    more = (
        f'<p class="facts">and {len(evidence) - SHOWN_EVIDENCE} more places</p>'
        if len(evidence) > SHOWN_EVIDENCE
        else ""
    )
    nothing = '<p class="warn">Nothing in the memory can be traced to the source.</p>' if not evidence else ""
    said = _BOX.sub(r"\1", _marked(answer, pieces, "mark"))
    return f'<h1>{escape(question)}</h1><div class="answer">{said}</div><h2>{head}</h2>{shown}{more}{nothing}'


def _quoted(phrase, place: str) -> str:
    first = phrase.start - phrase.quote_start
    last = phrase.end - phrase.quote_start
    quote = phrase.quote
    fate = f"in memory from turn {phrase.brought + 1}" + (
        f" to turn {phrase.dropped}" if phrase.dropped is not None else " to the end"
    )
    return (
        f"<blockquote>{escape(quote[:first])}<mark>{escape(quote[first:last])}</mark>{escape(quote[last:])}"
        f'<div class="place">{escape(place)} · {fate}</div></blockquote>'
    )


def _facts(reading: FileReading) -> str:
    trace, document = reading.trace, reading.document
    facts = [
        f"{len(trace.reads):,} chunks read",
        f"{trace.prompt_tokens:,} prompt and {trace.reply_tokens:,} reply tokens",
        f"reader {trace.reader}",
        f"{reading.seconds:,.1f} s",
        "files: "
        + ", ".join(document.names[:20])
        + (f" and {len(document.names) - 20} more" if len(document.names) > 20 else ""),
    ]
    warnings = []
    if trace.cut_memories:
        warnings.append(f"{trace.cut_memories:,} memories were cut at their token limit")
    if document.replaced:
        warnings.append(f"{document.replaced:,} characters stand for bytes that were not valid text")
    if document.skipped:
        warnings.append(f"{len(document.skipped):,} files were left out because they are empty or binary")
    warned = "".join(f'<p class="warn">{escape(w)}.</p>' for w in warnings)
    return f'<h2>The reading</h2><p class="facts">{escape(" · ".join(facts))}</p>{warned}'


def _history(reading: FileReading) -> str:
    steps = [step for step in reading.provenance.steps if step.pieces or step.dropped or step.signal]
    unchanged = len(reading.provenance.steps) - len(steps)
    shown = steps if len(steps) <= SHOWN_STEPS else steps[: SHOWN_STEPS // 2] + steps[-SHOWN_STEPS // 2 :]
    told = f"{len(steps):,} turns changed the memory, {unchanged:,} left it as it was"
    told += f"; the first and last {SHOWN_STEPS // 2} changes are shown" if len(shown) < len(steps) else ""
    legend = "<ins>brought in by this chunk</ins> <del>dropped</del> <span class='own'>the model's own words</span>"
    turns = "".join(_turn(reading, step) for step in shown)
    return f'<h2>The memory, turn by turn</h2><p class="facts">{told}. {legend}</p>{turns}'


def _turn(reading: FileReading, step: MemoryChange) -> str:
    place = escape(str(reading.document.place(step.chunk[0])))
    dropped = "".join(f"<del>{escape(words)}</del> " for words in step.dropped)
    notes = [note for note in (step.signal, "cut at its limit" if step.cut else "") if note]
    told = f' <span class="warn">{escape(", ".join(notes))}</span>' if notes else ""
    gains = sum(piece.fresh for piece in step.pieces)
    opened = " open" if gains else ""
    return (
        f"<details{opened}><summary>Turn {step.turn + 1} · {place} · +{gains} −{len(step.dropped)}{told}</summary>"
        f'<div class="memory">{_marked(step.memory, step.pieces, "ins")}</div>{dropped}</details>'
    )


def _marked(text: str, pieces: Iterable[MemoryPiece], tag: str) -> str:
    """``text`` with its pieces marked: fresh ones (in an answer: all that have a source) by ``tag``, the model's own words as such."""
    parts, at = [], 0
    for piece in pieces:
        parts.append(escape(text[at : piece.start]))
        words = escape(text[piece.start : piece.end])
        if piece.source is None:
            words = f'<span class="own">{words}</span>'
        elif piece.fresh or tag == "mark":
            words = f'<{tag} title="characters {piece.source[0]:,} to {piece.source[1]:,} of the text">{words}</{tag}>'
        parts.append(words)
        at = piece.end
    return "".join(parts) + escape(text[at:])
