"""Rollouts played through the gateway by the packages `openai` and `anthropic`, and `drift --dialects`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from strands_env.commands.arguments import DIALECTS as NAMES
from strands_env.commands.cli import main
from strands_env.core import TokenObservation, Trajectory
from strands_env.eval import dialects
from strands_env.eval.dialects import DIALECTS, DialectTotals, PlayedRollout, play
from strands_sglang.testing import Reply
from tests.provider_support import tokenizer
from tests.unit.eval_support import sample
from tests.unit.gateway_support import CALL, CHAT_TOOLS
from tests.unit.test_commands_runs import saved

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


@pytest.fixture(params=NAMES)
def dialect(request: pytest.FixtureRequest) -> Any:
    return DIALECTS[request.param]


def test_every_name_of_the_command_is_a_dialect() -> None:
    assert tuple(DIALECTS) == NAMES


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


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Any) -> str:
    """A run of one sample with one turn, sampled a character at a time."""
    made = sample(1.0)
    answer = [token for char in "answer" for token in tokenizer().encode(char, add_special_tokens=False)]
    tokens = TokenObservation(
        token_ids=[*ids("question"), *answer, tokenizer().eos_token_id],
        prompt_length=len(ids("question")),
        loss_mask=[*[0] * len(ids("question")), *[1] * (len(answer) + 1)],
    )
    made.step_result.observation.tokens = tokens
    made.step_result.trajectories = [Trajectory(agent_name="agent", tokens=tokens, is_main=True)]
    return saved(tmp_path / "run", made)


def test_the_command_has_a_line_for_every_dialect(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", run, "--tokenizer", "tiny", "--dialects"]) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        (line,) = [line for line in shown.splitlines() if line.startswith(DIALECTS[name].title)]
        assert "1 of 1 turns and 1 of 1 rollouts change; the gateway kept 1 of 1 turns" in line


def test_a_dialect_whose_package_is_absent_says_so(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects.ChatCompletions, "installed", classmethod(lambda cls: None))
    assert main(["drift", run, "--tokenizer", "tiny", "--dialects", "messages"]) == 0
    assert "Messages: not installed (pip install anthropic)" in capsys.readouterr().out
    assert main(["drift", run, "--tokenizer", "tiny", "--json", "--dialects", "chat"]) == 0
    assert json.loads(capsys.readouterr().out)["dialects"] == {"chat": None}


def test_a_turn_that_the_gateway_changes_fails_the_command(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects.ChatCompletions, "keep", lambda self, reply: self.history.append(call(1)) or [])
    assert main(["drift", run, "--tokenizer", "tiny", "--dialects", "chat"]) == 1
    assert "the gateway kept 0 of 1 turns" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dialects", "foo"], "unknown 'foo'; choose one of chat, messages, responses"),
        (["--dialects", "mesages"], "did you mean 'messages'?"),
    ],
)
def test_wrong_dialects(run: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drift", run, *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
