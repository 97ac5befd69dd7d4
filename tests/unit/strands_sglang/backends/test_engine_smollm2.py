"""The default model: only where it is cached already, or where STRANDS_ROLLOUT_TEST_SMOLLM2=1 asks for the download."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import jinja2
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from strands_sglang.backends.engine import EmbeddedEngine
from strands_sglang.backends.engine.loader import default_model_cached, load_model
from strands_sglang.backends.engine.smollm2 import CHAT_TEMPLATE, SYSTEM_PROMPT, few_shot_messages
from strands_sglang.conversation.messages import format_messages
from tests.servers.engine_server import generate
from tests.unit.engine_support import assert_exact

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "876+61"}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "calculator", "description": "Calculate.", "parameters": {}}}]

needs_model = pytest.mark.skipif(
    not default_model_cached() and os.environ.get("STRANDS_ROLLOUT_TEST_SMOLLM2") != "1",
    reason="default model not cached; STRANDS_ROLLOUT_TEST_SMOLLM2=1 downloads it (93 MB)",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine("smollm2", threads=1, seed=0)
    yield engine
    asyncio.run(engine.close())


def render(question: str) -> str:
    messages: list[Any] = [*few_shot_messages(), {"role": "user", "content": [{"text": question}]}]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value)
    return environment.from_string(CHAT_TEMPLATE).render(
        messages=format_messages(messages, SYSTEM_PROMPT), tools=TOOLS, add_generation_prompt=True
    )


def test_the_examples_render_to_the_calls_they_teach() -> None:
    text = render("What is 1 + 1?")
    assert text.startswith(f"<|im_start|>system\n{SYSTEM_PROMPT} Tools: calculator.<|im_end|>\n")
    assert f"<|im_start|>assistant\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>937</tool_response>" in text
    assert text.endswith("<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n<|im_start|>assistant\n")


@needs_model
async def test_the_model_calls_the_calculator(engine: EmbeddedEngine) -> None:
    prompt = engine.tokenizer.encode(render("What is 271 * 55?"))
    answer = await generate(engine, prompt, sampling_params={"temperature": 0, "max_new_tokens": 48})
    assert answer["text"] == CALL.replace("876+61", "271*55")
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


@needs_model
async def test_its_logprobs_agree_with_a_separate_forward_pass(engine: EmbeddedEngine) -> None:
    prompt = engine.tokenizer.encode(render("What is 12 + 30?"))
    params = {"temperature": 1.0, "sampling_seed": 1, "max_new_tokens": 16, "ignore_eos": True}
    answer = await generate(engine, prompt, sampling_params=params, return_logprob=True, logprob_start_len=0)
    assert_exact(answer, prompt, load_model("smollm2").model)
