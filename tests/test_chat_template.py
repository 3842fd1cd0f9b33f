"""Arguments of a model's chat template reach every prompt, or are refused by name before the first turn."""

import json
import shutil
from pathlib import Path

import pytest
from hostile import serving
from training_loop import loop_of, recipe_of

from memagent_lib.agent import open_agent
from memagent_lib.backends import Scripted

POCKET = Path("experiments/pocket/trained")
OFF = "<think>\n\n</think>\n\n"
QWEN3 = (
    "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    r"{{ '\n<think>\n\n</think>\n\n' }}{% endif %}"
)


@pytest.fixture
def qwen3(tmp_path) -> Path:
    """The pocket tokenizer with the switch of Qwen3's chat template."""
    folder = tmp_path / "qwen3"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copyfile(POCKET / name, folder / name)
    (folder / "chat_template.jinja").write_text(QWEN3)
    return folder


def opened(model: Path, **options):
    return open_agent(model, Scripted(lambda text: "memory"), template="short", budget={"chunk_tokens": 48}, **options)


def test_an_argument_changes_the_frame_of_every_prompt(qwen3):
    agent = opened(qwen3, chat_template={"enable_thinking": False})
    agent.read("The code is 4711.", "q")
    tokenizer = agent.encoder.tokenizer
    assert all(tokenizer.backend.decode(r.ids, skip_special_tokens=False).endswith(OFF) for r in agent.backend.requests)
    messages = [{"role": "user", "content": agent.backend.requests[0].text}]
    assert list(agent.backend.requests[0].ids) == tokenizer.hf.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, enable_thinking=False
    )
    assert tokenizer.chat_tokens > opened(qwen3).encoder.tokenizer.chat_tokens
    assert tokenizer.thoughts.closed and not opened(qwen3).encoder.tokenizer.thoughts.closed


PLAIN = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
PLACES = {
    "chat_template.json": {"chat_template": PLAIN},
    "tokenizer_config.json": {
        "chat_template": [{"name": "rag", "template": ""}, {"name": "default", "template": PLAIN}]
    },
    "additional_chat_templates/default.jinja": PLAIN,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_chat_template_is_found_in_every_place(qwen3, place, caplog):
    (qwen3 / "chat_template.jinja").unlink()
    opened(qwen3)
    assert "prompts are plain text" in caplog.text
    (qwen3 / place).parent.mkdir(exist_ok=True)
    written = PLACES[place]
    (qwen3 / place).write_text(written if isinstance(written, str) else json.dumps(written))
    tokenizer = opened(qwen3).encoder.tokenizer
    assert tokenizer.backend.decode(tokenizer.chat("x y"), skip_special_tokens=False) == "<|im_start|>x y"
    assert tokenizer.hf.chat_template == PLAIN


def test_templates_without_a_default_are_refused(qwen3):
    (qwen3 / "chat_template.jinja").unlink()
    named = [{"name": "rag", "template": PLAIN}]
    (qwen3 / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    with pytest.raises(ValueError, match=r"by name \(rag\)"):
        opened(qwen3)


def test_an_argument_that_the_template_does_not_use_is_refused(qwen3):
    # PrimeIntellect-ai/verifiers#538, mlx-swift-lm#154: enable_thinking=false had no effect, and nothing told so
    with pytest.raises(ValueError, match="no argument thinking; it uses enable_thinking"):
        opened(qwen3, chat_template={"thinking": False})
    with pytest.raises(ValueError, match="no argument enable_thinking; it uses none"):
        opened(POCKET, chat_template={"enable_thinking": False})


def test_tokenizer_and_template_are_part_of_an_identity(qwen3):
    before = opened(qwen3).identity
    assert opened(qwen3).identity == before
    (qwen3 / "chat_template.jinja").write_text(QWEN3.replace("user", "human"))
    mended = opened(qwen3).identity
    assert [name for name in before if before[name] != mended[name]] == ["tokenizer"]
    table = json.loads((qwen3 / "tokenizer.json").read_text())
    (qwen3 / "tokenizer.json").write_text(json.dumps(table | {"normalizer": {"type": "Lowercase"}}))
    other = opened(qwen3).identity
    assert [name for name in before if other[name] != mended[name]] == ["tokenizer"]


def test_verls_own_key_reaches_the_agent_loop(qwen3, tmp_path):
    # verl-project/verl#1307
    pytest.importorskip("verl")
    budget = {"chunk_tokens": 48, "memory_tokens": 24, "answer_tokens": 24, "question_tokens": 32}
    for chosen in ({}, {"enable_thinking": False}):
        verl = {f"data.apply_chat_template_kwargs.{name}": value for name, value in chosen.items()}
        recipe = recipe_of(qwen3, budget, verl=verl)
        tokenizer = loop_of(tmp_path / str(len(chosen)), None, recipe).agent.encoder.tokenizer
        assert tokenizer.chat_arguments == chosen
        (qwen3 / "memagent.json").write_text(
            '{"chat_template": {"enable_thinking": true}}'
        )  # which a recipe's replaces
    assert tokenizer.backend.decode(tokenizer.chat("x"), skip_special_tokens=False).endswith(OFF)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_server_that_renders_the_template_gets_the_arguments(qwen3, api):
    with serving() as server:
        options = {"base_url": server.url, "api": api, "extra": {"min_p": 0.1}, "budget": {"chunk_tokens": 48}}
        switch = {"enable_thinking": False}
        agent = open_agent("small", "openai", tokenizer=qwen3, template="short", chat_template=switch, **options)
        agent.read("The code is 4711.", "q")
        agent.close()
    sent = [body.get("chat_template_kwargs") for body in server.bodies]
    assert sent == [switch if api == "chat" else None] * 2
    assert all(body["min_p"] == 0.1 for body in server.bodies)


@pytest.mark.parametrize("template", ["{% for m in %}", "{{ strange(messages) }}", "{{ messages + 1 }}"])
def test_a_template_that_cannot_be_rendered_is_named(qwen3, template):
    (qwen3 / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match=f"template of {qwen3}"):
        opened(qwen3).read("The code is 4711.", "q")
