"""Rollouts with the real Qwen3 tokenizer and the real chat templates of its family."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from provider_support import add, call
from strands import Agent

from strands_env.eval.drift import DriftKind, find_drift
from strands_sglang import SGLangModel
from strands_sglang.testing import Reply, ScriptedClient
from tests.qwen_support import qwen3_tokenizer

TEMPLATES = ["qwen3-0.6b", "qwen3-4b-instruct-2507", "qwen3-4b-thinking-2507", "qwen2.5-7b-instruct"]


def split_tokens(text: str, rng: random.Random) -> list[int]:
    """The text in tokens as a model may sample them: cut at random places, each piece encoded by itself."""
    tokenizer = qwen3_tokenizer()
    ids: list[int] = []
    while text:
        size = rng.randint(1, 12)
        ids += tokenizer.encode(text[:size], add_special_tokens=False)
        text = text[size:]
    return [*ids, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_the_tokenizer_is_the_real_one() -> None:
    tokenizer = qwen3_tokenizer()
    assert tokenizer.encode("Hello", add_special_tokens=False) == [9707]
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 151645


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_rollout_stays_exact_and_reads_as_the_template_prints_it(name: str, shared: Path) -> None:
    tokenizer = qwen3_tokenizer()
    rng = random.Random(name)
    markup = call(19, 23).replace("<tool_call>", "<tool_call>\n").replace("</tool_call>", "\n</tool_call>")
    texts = [f"Let me see… 数字!\n{markup}", f"{markup}\n{markup}", "Es ist 42 🌤."]
    if "thinking" in name:  # its generation prompt opens the block
        texts = [f"Hm.\n</think>\n\n{text}" for text in texts]
    client = ScriptedClient([Reply(ids=split_tokens(text, rng)) for text in texts], tokenizer=tokenizer)
    template = (shared / "data" / "chat_templates" / f"{name}.jinja").read_text()
    model = SGLangModel(tokenizer=tokenizer, client=client, chat_template=template)
    agent = Agent(model=model, tools=[add], callback_handler=None, context_manager=False, retry_strategy=None)
    result = await agent.invoke_async("What is 19 + 23?")
    assert str(result).strip().endswith("Es ist 42 🌤.")
    (trajectory,) = model.trajectories
    for request in client.requests:
        assert trajectory.token_ids[: len(request.input_ids)] == request.input_ids
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "What is 19 + 23?"},
        {"role": "assistant", "content": texts[0]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": texts[1]},
        {"role": "tool", "content": "42"},
        {"role": "tool", "content": "42"},
    ]
    specs = SGLangModel.format_tool_specs(agent.tool_registry.get_all_tool_specs())
    whole = tokenizer.apply_chat_template(
        chat, tools=specs, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    # Where generation prompts open a thinking block, no re-render of the history can show it.
    printed = tokenizer.decode(client.requests[-1].input_ids)
    if "<think>\n" not in printed.rsplit("<|im_start|>assistant", 1)[-1]:
        assert printed == whole
    assert (
        trajectory.turns[0].completion.output_ids.tolist()
        == client.requests[1].input_ids[len(client.requests[0].input_ids) :][
            : len(trajectory.turns[0].completion.output_ids)
        ]
    )


def test_drift_is_found_where_it_is_and_classified() -> None:
    tokenizer = qwen3_tokenizer()
    clean = tokenizer.encode("The answer is 42.\n", add_special_tokens=False)
    assert find_drift(clean, tokenizer) == []
    pieces = ["an", "swer"]
    split = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
    (span,) = find_drift([*clean, *split, *clean], tokenizer)
    assert (span.start, span.kind) == (len(clean), DriftKind.OTHER_MERGE)
    assert span.retokenized_ids == tuple(tokenizer.encode("answer", add_special_tokens=False))
    broken = tokenizer.encode("𓀀", add_special_tokens=False)[:1]
    kinds = {span.kind for span in find_drift([*clean, *broken], tokenizer)}
    assert kinds == {DriftKind.BROKEN_UTF8}
    spelled = [i for piece in ("<|im", "_end|>") for i in tokenizer.encode(piece, add_special_tokens=False)]
    kinds = {span.kind for span in find_drift([*clean, *spelled, *clean], tokenizer)}
    assert kinds == {DriftKind.SPECIAL_TOKEN}
