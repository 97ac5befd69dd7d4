"""Rollouts played through the gateway by the packages `openai` and `anthropic`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.dialects import DIALECTS, DialectTotals, PlayedRollout, play

from strands_sglang.testing import Reply
from tests.provider_support import tokenizer
from tests.unit.gateway_support import CALL, CHAT_TOOLS

pytest.importorskip("openai", reason="the extra 'test' is not installed")
pytest.importorskip("anthropic", reason="the extra 'test' is not installed")


def ids(text: str) -> list[int]:
    return [*tokenizer().encode(text, add_special_tokens=False), tokenizer().eos_token_id]


def call(number: int) -> dict[str, Any]:
    given = {"name": "add", "arguments": {"a": 1, "b": 2}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": given}],
    }


def rollout(first: str, second: str = "It is 3.") -> PlayedRollout:
    """An earlier conversation of a call, then a question, a reply with a call, and an answer."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "0+3?"},
        call(0),
        {"role": "tool", "tool_call_id": "c0", "content": "3"},
        {"role": "assistant", "content": "3."},
        {"role": "user", "content": "1+2?"},
        call(1),
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": second},
    ]
    return PlayedRollout(
        messages=messages, tools=CHAT_TOOLS, replies={6: Reply(ids=ids(first)), 8: Reply(ids=ids(second))}
    )


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Any:
    return DIALECTS[request.param]


async def test_turns_that_the_template_prints_alike_come_back_alike(dialect: Any) -> None:
    totals = await play([rollout(f"Let me add.\n{CALL}")], dialect, tokenizer=tokenizer())
    assert totals == DialectTotals(turns=2, rollouts=1, kept_turns=2)


async def test_arguments_in_other_words_change_a_turn_and_the_gateway_keeps_it(dialect: Any) -> None:
    compact = CALL.replace(": ", ":").replace(", ", ",")
    played = [rollout(compact), rollout(f"Let me add.\n{CALL}")]
    totals = await play(played, dialect, tokenizer=tokenizer())
    assert totals == DialectTotals(turns=4, changed_turns=1, rollouts=2, changed_rollouts=1, kept_turns=4)


async def test_tokens_that_no_text_encodes_to_change_a_turn(dialect: Any) -> None:
    single = [token for char in "It is three." for token in tokenizer().encode(char, add_special_tokens=False)]
    made = rollout(f"Let me add.\n{CALL}", "It is three.")
    made = replace(made, replies={**made.replies, 8: Reply(ids=[*single, tokenizer().eos_token_id])})
    totals = await play([made], dialect, tokenizer=tokenizer())
    assert totals == DialectTotals(turns=2, changed_turns=1, rollouts=1, changed_rollouts=1, kept_turns=2)


async def test_a_client_that_loses_text_is_seen_in_both_counts(dialect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = dialect.keep

    def without_text(self: Any, reply: Any) -> list[str]:
        given = keep(self, reply)
        for message in self.history[-2:]:  # the reply's message, or its items
            if isinstance(message, dict) and message.get("role") == "assistant":
                message["content"] = [block for block in message["content"] if block.type != "text"]
            elif getattr(message, "content", None):
                message.content = "" if isinstance(message.content, str) else []
        return given

    monkeypatch.setattr(dialect, "keep", without_text)
    totals = await play([rollout(f"Let me add.\n{CALL}")], dialect, tokenizer=tokenizer())
    assert (totals.turns, totals.changed_turns, totals.kept_turns) == (2, 2, 0)


async def test_a_malformed_call_is_complained_about_in_words(dialect: Any) -> None:
    broken = '<tool_call>{"name": "add", "arguments": {"a": 1,</tool_call>'
    totals = await play([rollout(broken)], dialect, tokenizer=tokenizer())
    assert (totals.turns, totals.kept_turns, totals.refused) == (2, 2, 0)


async def test_what_the_template_cannot_express_is_refused(dialect: Any) -> None:
    options = {"chat_template": "{% for m in messages %}{{ raise_exception('no') }}{% endfor %}"}
    totals = await play([replace(rollout(CALL), options=options)], dialect, tokenizer=tokenizer())
    assert totals == DialectTotals(refused=1)
