"""Shared fixtures: a tokenizer, a random model, an MLflow store, traces.

They are made here, so no test downloads any.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from memagent_lib import system
from memagent_lib.data.examples import Example, Span
from memagent_lib.evaluation import Result
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.rl import Credited, RunFolder, TrainingState, TrainingStatus, save_rollout
from memagent_lib.scoring import score
from memagent_lib.text import Chunk, Tokenizer
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "The code of the violet otter is 4821. A small boat drifts past the old mill. Rain taps on the roof all night.",
    "You are reading a long document piece by piece to answer a question. "
    "Rewrite the memory so that it serves the question.",
    "Question: What is the code of the bold owl?\nText: nothing\nMemory: nothing yet\n"
    "Write the new memory.\nWrite the answer.",
]

# vLLM's server sets the root logger and its handlers to this level, else to ERROR: no later test would see a warning.
os.environ["SAGEMAKER_CONTAINER_LOG_LEVEL"] = "WARNING"

# The same examples on every machine, however busy it is.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--checkout", help="the folder in which the notebooks run, and continue")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    from tokenizers import decoders

    raw.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS * 4, trainer)
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=raw,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            additional_special_tokens=special[1:],
            chat_template=CHAT,
        )
    )


@pytest.fixture(scope="session")
def encoder(tokenizer) -> Encoder:
    """An encoder with the wording of the pocket policy and small budgets."""
    return Encoder(
        tokenizer,
        Template.load("short"),
        Budget(chunk_tokens=48, memory_tokens=24, answer_tokens=12, question_tokens=32),
    )


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.hf.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def model_folder(tokenizer, tmp_path_factory) -> str:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer.hf),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.hf.eos_token_id,
        pad_token_id=tokenizer.hf.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that gives this machine a processor with other flags."""

    def with_flags(flags: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n", encoding="utf-8")
        monkeypatch.setattr(system, "CPU_INFO", tmp_path / "cpuinfo")

    return with_flags


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from memagent_lib.tracking import Experiment

    folder = tmp_path_factory.mktemp("store")
    Experiment.open(folder, "never used")
    return folder / "mlflow.db"


@pytest.fixture
def workspace(made_store: Path, tmp_path: Path) -> Path:
    """A folder that already has its ``mlflow.db``, because creating one takes MLflow seconds."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(made_store, folder / "mlflow.db")
    return folder


def reading(
    memories: list[str], answer: str, document: str, evidence: Span, answers: str = "4711", name: str = "one"
) -> Result:
    """Return a result as the overwrite reader leaves it, with one equal slice of the document per memory."""
    question = "What is the code of the bold owl?"
    size = -(-len(document) // len(memories))
    turns, memory = [], ""
    for index, said in enumerate(memories):
        start, end = index * size, min(len(document), (index + 1) * size)
        chunk = Chunk(index, document[start:end], start, end, 10)
        turns.append(
            Turn(
                Prompt(Kind.READ, question, memory, chunk),
                Reply(said, prompt_tokens=20, reply_tokens=len(said.split())),
            )
        )
        memory = said
    turns.append(Turn(Prompt(Kind.ANSWER, question, memory), Reply(answer, prompt_tokens=9, reply_tokens=3)))
    facts = {"chunks": len(memories)}
    example = Example(
        id=name,
        task="needle",
        question=question,
        document=document,
        answers=(answers,),
        evidence=(evidence,),
        metadata=facts,
    )
    trace = Trace(question, tuple(turns))
    return Result(example, "overwrite", 0.5, trace, score("boxed", answer, (answers,)))


@pytest.fixture
def make_reading() -> Callable[..., Result]:
    return reading


NEEDLE = "The code of the bold owl is 4711."
FILLER = "Rain taps on the roof all night. "


@pytest.fixture
def kept() -> Result:
    document = FILLER * 2 + NEEDLE + " " + FILLER * 3
    start = document.index(NEEDLE)
    memories = ["nothing", NEEDLE, NEEDLE, NEEDLE]
    return reading(memories, "\\boxed{4711}", document, Span(start, start + len(NEEDLE)), name="kept")


@pytest.fixture
def lost() -> Result:
    document = FILLER * 2 + NEEDLE + " " + FILLER * 3
    start = document.index(NEEDLE)
    memories = ["nothing", NEEDLE, "The code of the <b>bold</b> mole is 9.", "nothing <script>alert(1)</script>"]
    return reading(memories, "\\boxed{9}", document, Span(start, start + len(NEEDLE)), name="lost")


@pytest.fixture
def training(tmp_path: Path, kept: Result, lost: Result) -> RunFolder:
    """The files of a run: at step 3 a group of a wrong and a right rollout, and one that the update left out."""
    run = RunFolder(tmp_path / "train")
    run.traces.mkdir(parents=True)
    run.write_status(TrainingStatus(state=TrainingState.STOPPED, step=3))
    for name, result in (("s000003p00000_0", lost), ("s000003p00000_1", kept), ("s000003p00001_0", lost)):
        example = replace(lost.example, id="other" if "p00001" in name else "one")
        save_rollout(run.traces, replace(result, example=example), 3, name)
    rewards = [0.25, 1.25]
    pushed = {"s000003p00000_0": Credited(0.25, [-0.5] * 5, [9, 8, 7, 6, 0], rewards)}
    pushed["s000003p00000_1"] = Credited(1.25, [0.5, 0.5, 0.0, 0.5, 0.5], [1, 2, 3, 4, 5], rewards)
    run.write_credit(3, pushed)
    counts = {"rows/produced": 21, "rows/trained": 10, "rows/skipped": 5, "rows/padding": 2}
    run.metrics.write_text(json.dumps({"step": 3, "time": 1.0, "metrics": counts}) + "\n", encoding="utf-8")
    return run


@pytest.fixture
def long_reading() -> Callable[..., Result]:
    def make(turns: int, noted: int, lost: int, cut: int) -> Result:
        """Return a reading whose fact is noted at one turn and lost at another. One memory is cut at its limit."""
        size = 100
        document = "x" * (noted * size) + NEEDLE + "x" * ((turns - noted) * size - len(NEEDLE))
        memories = [NEEDLE if noted <= i < lost else f"memory {i}" for i in range(turns)]
        made = reading(memories, "\\boxed{9}", document, Span(noted * size, noted * size + len(NEEDLE)), name="long")
        steps = list(made.trace.turns)
        steps[cut] = replace(steps[cut], reply=replace(steps[cut].reply, finish_reason="length"))
        return replace(made, trace=Trace(made.trace.question, tuple(steps)))

    return make
