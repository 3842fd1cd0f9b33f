"""The pocket policy's recipe: what its teacher says, and that what is committed is what the recipe makes."""

import random
from pathlib import Path

import pytest

from experiments.pocket.forgetting import (
    CODE,
    CROWDED,
    DIGITS,
    ForgettingPhase,
    ForgettingTeacher,
    build_model,
    build_tokenizer,
    warm_up,
)
from memagent_lib.text import Tokenizer

COMMITTED = Path(__file__).parents[2] / "experiments" / "pocket" / "warm_start"
PHASE = ForgettingPhase(width=128, steps=2, drill=0.5, density=0.4, half_matching=0.5)


@pytest.fixture(scope="module")
def pocket_tokenizer() -> Tokenizer:
    return Tokenizer(build_tokenizer())


@pytest.fixture(scope="module")
def turns(pocket_tokenizer):
    """Question, text, memory and ideal reply of a thousand turns, by kind."""
    teacher, rng, found = ForgettingTeacher(pocket_tokenizer), random.Random(0), {}
    for _ in range(1000):
        turn = teacher.turn(rng, PHASE)
        prompt = pocket_tokenizer.decode(turn.prompt)
        parts = {name: prompt.partition(f"{name}: ")[2].partition("\n")[0] for name in ("Question", "Text", "Memory")}
        found.setdefault(turn.kind, []).append((parts, pocket_tokenizer.decode(turn.reply).removesuffix("<|im_end|>")))
    return found


def asked(parts) -> str:
    return parts["Question"].removeprefix("What is the code of the ").removesuffix("?")


def test_the_committed_tokenizer_is_the_recipes(pocket_tokenizer):
    assert pocket_tokenizer.hf.get_vocab() == Tokenizer.load(COMMITTED).hf.get_vocab()


def test_the_committed_model_has_the_recipes_shape(pocket_tokenizer):
    from transformers import AutoModelForCausalLM

    committed, born = AutoModelForCausalLM.from_pretrained(COMMITTED), build_model(pocket_tokenizer.hf)
    assert {n: p.shape for n, p in committed.named_parameters()} == {n: p.shape for n, p in born.named_parameters()}


def test_what_is_found_is_in_the_text_and_what_is_kept_is_in_the_memory(turns):
    for parts, reply in turns["find"]:
        assert reply in parts["Text"] and reply.startswith(f"The code of the {asked(parts)} is ")
        assert reply != parts["Memory"]
    for parts, _ in turns["keep"]:
        assert asked(parts) not in parts["Text"] and parts["Memory"].startswith(f"The code of the {asked(parts)} is ")


def test_a_known_code_is_kept_unless_the_text_is_crowded(turns):
    crowded = [(parts, reply) for parts, reply in turns["keep"] if parts["Text"].count(CODE) >= CROWDED]
    quiet = [(parts, reply) for parts, reply in turns["keep"] if parts["Text"].count(CODE) < CROWDED]
    assert all(reply == parts["Memory"] for parts, reply in quiet)
    forgotten = [reply.endswith("is unknown.") for _, reply in crowded]
    assert 0.6 < sum(forgotten) / len(forgotten) < 0.95 and len(forgotten) > 30


def test_a_wrong_code_in_memory_is_corrected_or_let_go(turns):
    wrong = [(parts, reply) for parts, reply in turns["find"] if parts["Memory"][-2:-1].isdigit()]
    assert wrong and all(parts["Memory"].startswith(f"The code of the {asked(parts)} is ") for parts, _ in wrong)
    strange = [(parts, reply) for parts, reply in turns["none"] if parts["Memory"][-2:-1].isdigit()]
    assert strange and all(
        asked(parts) not in parts["Memory"] and reply.endswith("is unknown.") for parts, reply in strange
    )


def test_a_drill_can_only_be_answered_by_looking_up(pocket_tokenizer):
    drill = ForgettingTeacher(pocket_tokenizer).drill(random.Random(0), PHASE)
    shown, said = pocket_tokenizer.decode(drill.prompt), pocket_tokenizer.decode(drill.reply)
    facts = said.removeprefix(" ").removesuffix(".").split(". ")
    assert len(facts) == 5 and all(fact in shown for fact in facts)
    assert drill.weights.count(1.0) == 5 and drill.weights.count(0.3) == 5 * (DIGITS - 1)


def test_weights_do_not_depend_on_the_number_of_processes(tmp_path, pocket_tokenizer, monkeypatch):
    import torch
    from torch import multiprocessing

    torch.set_num_threads(1)
    alone = build_model(pocket_tokenizer.hf)
    before = [p.detach().clone() for p in alone.parameters()]
    warm_up(alone, pocket_tokenizer, (PHASE,))
    multiprocessing.spawn(_half, (str(tmp_path),), nprocs=2)
    shared = torch.load(tmp_path / "weights.pt")
    for (name, a), was in zip(alone.named_parameters(), before, strict=True):
        moved = (a - was).norm()
        assert moved > 0 and (a - shared[name]).norm() < 0.05 * moved, name


def _half(rank: int, folder: str) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    tokenizer = Tokenizer(build_tokenizer())
    model = build_model(tokenizer.hf)
    warm_up(model, tokenizer, (PHASE,), rank=rank, processes=2)
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/weights.pt")
