"""Static pages: one reading, or two of the same example side by side. They need no kernel, no script and no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from memagent_lib.data.examples import Example
from memagent_lib.diagnostics import Fate
from memagent_lib.evaluation.evaluator import Result
from memagent_lib.files import write_atomically
from memagent_lib.trace import Kind
from memagent_lib.workbench.inspector.story import StoryTurn, changes, notable, story

STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
_FATE_CLASS = {Fate.AHEAD: "ahead", Fate.HELD: "held", Fate.MISSED: "missed", Fate.LOST: "lost", None: "none"}
_ANSWER_CHARS = 200


@dataclass(frozen=True)
class Page:
    """A piece of HTML that a notebook shows and a file keeps."""

    title: str
    body: str

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>{self.body}"

    def save(self, path: str | Path) -> Path:
        """Write a page of its own that opens anywhere, in light and in dark."""
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(self.title)}</title>'
        body = f"<body>{self._repr_html_()}</body>"
        return write_atomically(path, f'<!doctype html><html class="ma-page"><head>{head}</head>{body}</html>')


def document(example: Example, most_chars: int = 4000) -> Page:
    """An example's question and document with its evidence marked; of a long document, the part around the evidence."""
    text, spans = example.document, sorted(example.evidence)
    middle = spans[0].start if spans else 0
    start = max(0, min(middle - most_chars // 2, len(text) - most_chars))
    end = min(len(text), start + most_chars)
    inside = tuple(
        (max(s.start, start) - start, min(s.end, end) - start) for s in spans if s.start < end and start < s.end
    )
    shown = f"{'… ' * (start > 0)}{_marked(text[start:end], inside)}{' …' * (end < len(text))}"
    return Page(example.id, f'<div class="ma">{_example(example)}<p class="ma-chunk">{shown}</p></div>')


def page(result: Result, name: str = "") -> Page:
    """One reading: the question, its timeline, and the turns that matter."""
    return Page(result.example.id, _frame(result, [(name, result)]))


def compare(left: Result, right: Result, names: tuple[str, str] = ("before", "after")) -> Page:
    """The same example read twice, side by side."""
    if left.example.id != right.example.id:
        raise ValueError(f"two readings of one example are compared, got {left.example.id!r} and {right.example.id!r}")
    return Page(left.example.id, _frame(left, list(zip(names, (left, right), strict=True))))


def pick(left: Sequence[Result], right: Sequence[Result]) -> tuple[Result, Result]:
    """Two readings of one example that show best what differs: wrong on the left, right on the right, noted there and lost."""
    by_id = {r.example.id: r for r in right if r.trace is not None}
    pairs = [(r, by_id[r.example.id]) for r in left if r.trace is not None and r.example.id in by_id]
    if not pairs:
        raise ValueError(
            f"the two sets of results ({len(left)} and {len(right)}) have no example in common; read the same data with both"
        )

    def worth(pair: tuple[Result, Result]) -> tuple[bool, bool, float]:
        a, b = pair
        return (_value(a) < _value(b), Fate.LOST in a.diagnosis.fates, _value(b) - _value(a))

    return max(pairs, key=worth)


def _value(result: Result) -> float:
    return result.score.value if result.score else 0.0


def _frame(result: Result, readings: Iterable[tuple[str, Result]]) -> str:
    columns = "".join(f'<section class="ma-reading">{_reading(name, r)}</section>' for name, r in readings)
    return f'<div class="ma">{_example(result.example)}<div class="ma-columns">{columns}</div>{_legend()}</div>'


def _example(e: Example) -> str:
    facts = ", ".join(
        f"{escape(str(k))} {escape(str(v))}" for k, v in e.metadata.items() if k in ("chunks", "depth", "hops", "task")
    )
    about = f"{escape(e.id)} · {facts} · {len(e.document):,} characters · accepted: {escape(' | '.join(e.answers))}"
    return f'<p class="ma-question">{escape(e.question)}</p><p class="ma-facts">{about}</p>'


def _reading(name: str, result: Result) -> str:
    turns = story(result)
    right = _value(result) >= 1
    verdict = f'<b class="{"ma-right" if right else "ma-wrong"}">{"right" if right else "wrong"}</b>'
    answer = result.trace.answer
    shown = escape(answer[:_ANSWER_CHARS]) + ("…" if len(answer) > _ANSWER_CHARS else "")
    chosen = notable(turns)
    parts, at = [], -1
    for step in chosen:
        if (skipped := step.index - at - 1) > 0:
            parts.append(f'<p class="ma-skip">{skipped:,} turn{"s" * (skipped > 1)} not shown</p>')
        parts.append(_turn(step))
        at = step.index
    return f"<h4>{escape(name)} {verdict} <code>{shown}</code></h4>{timeline(turns)}{''.join(parts)}"


def timeline(turns: Sequence[StoryTurn], width: int = 600) -> str:
    """One bar per turn, its colour the fate of the fact, its height the reply's length; a triangle where the evidence stands."""
    longest = max((_length(s) for s in turns), default=1) or 1
    label = f"{len(turns)} turns; " + ", ".join(f"{f}: {n}" for f in Fate if (n := sum(s.fate is f for s in turns)))
    bars = "".join(_bar(s, width / len(turns), _length(s) / longest) for s in turns)
    return f'<svg class="ma-timeline" viewBox="0 0 {width} 40" role="img" aria-label="{escape(label)}">{bars}</svg>'


def _length(step: StoryTurn) -> int:
    return step.turn.reply.reply_tokens or len(step.turn.reply.text)


def _bar(step: StoryTurn, pitch: float, share: float) -> str:
    x, w, h = step.index * pitch, max(0.6, pitch - (1 if pitch > 3 else 0)), 6 + 20 * share
    title = f"<title>turn {step.index}: {step.fate or 'no memory'}{', cut at the limit' if step.turn.reply.cut else ''}</title>"
    bar = f'<rect class="ma-{_FATE_CLASS[step.fate]}" x="{x:.1f}" y="{30 - h:.1f}" width="{w:.1f}" height="{h:.1f}">{title}</rect>'
    if not step.evidence:
        return bar
    m = x + w / 2
    return f'{bar}<path class="ma-mark" d="M{m - 4:.1f} 39 L{m + 4:.1f} 39 L{m:.1f} 32 Z"><title>evidence in turn {step.index}</title></path>'


def _turn(step: StoryTurn) -> str:
    prompt, reply = step.turn.prompt, step.turn.reply
    what = {Kind.READ: "chunk", Kind.ANSWER: "the answer"}.get(prompt.kind, str(prompt.kind))
    where = (
        f" {prompt.chunk.index} <small>characters {prompt.chunk.start:,} to {prompt.chunk.end:,}</small>"
        if prompt.chunk
        else ""
    )
    cut = '<small class="ma-cut">cut at the token limit</small>' if reply.cut else ""
    head = f'<p class="ma-turn-head">{_dot(step.fate)}{what}{where} <small>{step.fate or "no memory"}</small> {cut}</p>'
    said = _difference(prompt.memory, reply.text) if prompt.kind is Kind.READ else escape(reply.text)
    name = "memory" if prompt.kind is Kind.READ else "says"
    return f'<article class="ma-turn">{head}{_chunk(step)}<p class="ma-memory"><small>{name}</small> {said or "<i>empty</i>"}</p></article>'


def _chunk(step: StoryTurn, margin: int = 160) -> str:
    """The evidence and some text around it; without evidence, the chunk's beginning."""
    chunk = step.turn.prompt.chunk
    if chunk is None or not chunk.text:
        return ""
    start = max(0, step.evidence[0][0] - margin) if step.evidence else 0
    end = min(len(chunk.text), (step.evidence[-1][1] if step.evidence else 0) + margin)
    inside = [(a - start, b - start) for a, b in step.evidence]
    shown = _marked(chunk.text[start:end], inside)
    return f'<p class="ma-chunk">{"… " * (start > 0)}{shown}{" …" * (end < len(chunk.text))}</p>'


def _marked(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Escaped text with the spans, which are in order, marked."""
    parts, at = [], 0
    for start, end in spans:
        parts += [escape(text[at:start]), f"<mark>{escape(text[start:end])}</mark>"]
        at = end
    return "".join(parts) + escape(text[at:])


def _difference(before: str, after: str) -> str:
    tags = {"same": "{}", "new": "<ins>{}</ins>", "gone": "<del>{}</del>"}
    return "".join(tags[piece.change].format(escape(piece.text)) for piece in changes(before, after))


def _dot(fate: Fate) -> str:
    return f'<span class="ma-dot ma-{_FATE_CLASS[fate]}"></span>'


def _legend() -> str:
    fates = "".join(f"<span>{_dot(f)}{f}</span>" for f in Fate)
    marks = "<span><mark>evidence</mark></span><span><ins>new</ins> <del>gone</del></span>"
    return (
        f'<p class="ma-legend">{fates}{marks}<span>▲ where the evidence stands; height: length of the reply</span></p>'
    )
