"""The tables of `benchmarks/drift_families.py` and `drift_programs.py`, and rollouts played by the package `openai`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.testing import Reply
from tests.conftest import ROOT
from tests.provider_support import tokenizer
from tests.unit.gateway_support import CALL, CHAT_TOOLS

pytest.importorskip("openai", reason="the extra 'test' is not installed")
pytest.importorskip("transformers", reason="needs the extra `local`")

from benchmarks import drift_families, drift_programs
from benchmarks.drift_families import Count, PlayedRollout, play
from benchmarks.shape import markers, write_between

KEEPS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETS = KEEPS.replace("{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else '' }}")
SILENT = KEEPS.replace("m.tool_calls or []", "[]")


def rows(tmp_path: Path, **templates: str) -> dict[str, Any]:
    """Each template's row, over one conversation of a call and an answer."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "user", "content": "1+2"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "Thanks."},
    ]
    conversation = {"tools": "one", "kwargs": {}, "messages": messages}
    document = {"tools": {"one": CHAT_TOOLS}, "conversations": {"one": conversation}}
    (tmp_path / "conversations.json").write_text(json.dumps(document))
    lines = ["file\tfamily\tbos_token\teos_token\tstop_tokens\tspecial_tokens"]
    for name, text in templates.items():
        (tmp_path / f"{name}.jinja").write_text(text)
        lines.append(f'{name}.jinja\tF\t\t\t["</s>"]\t["<assistant>", "<user>", "<tool>"]')
    (tmp_path / "index.tsv").write_text("\n".join(lines))
    return {row.name: row for row in drift_families.rows(tmp_path)}


def test_what_a_template_keeps_forgets_or_never_prints_is_counted(tmp_path: Path) -> None:
    found = rows(tmp_path, keeps=KEEPS, forgets=FORGETS, silent=SILENT)
    assert {name: str(row.printed) for name, row in found.items()} == {
        "keeps": "0 of 2, 0 of 1",
        "forgets": "1 of 2, 1 of 1",
        "silent": "1 of 2, 1 of 1",
    }
    assert str(found["keeps"].compact) == "1 of 2, 1 of 1"  # {"a":1,"b":2} comes back with spaces
    assert str(found["silent"].compact) == "–"
    played = {name: (row.client.changed_turns, row.client.turns, row.client.kept_turns) for name, row in found.items()}
    assert played == {
        "keeps": (0, 2, 2),
        "forgets": (0, 0, 0),  # the gateway refuses a template that loses replies
        "silent": (0, 0, 0),  # no model writes a turn without its call
    }


@pytest.mark.parametrize(
    ("name", "kept", "table"),
    [
        ("drift_families", drift_families.FAMILIES, drift_families.table),
        ("drift_programs", drift_programs.KEPT, drift_programs.table),
    ],
)
def test_the_page_holds_the_counts_that_are_kept(name: str, kept: Path, table: Any) -> None:
    page = (ROOT / "benchmarks" / "drift.md").read_text("utf-8")
    assert write_between(page, *markers(name), table(json.loads(kept.read_text("utf-8")))) == page


def test_the_gateway_kept_every_turn() -> None:
    families = json.loads(drift_families.FAMILIES.read_text("utf-8"))
    assert families and all(row["client"]["kept_turns"] == row["client"]["turns"] for row in families)
    assert all(each["kept_by_gateway"] for each in json.loads(drift_programs.KEPT.read_text("utf-8")))


# ---- through a client ------------------------------------------------------------------------------------------------


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


async def test_a_turn_in_other_words_or_tokens_is_counted_and_the_gateway_keeps_it() -> None:
    alike = rollout(f"Let me add.\n{CALL}")
    other_words = rollout(CALL.replace(": ", ":").replace(", ", ","))
    single = [token for char in "It is three." for token in tokenizer().encode(char, add_special_tokens=False)]
    other_tokens = rollout(f"Let me add.\n{CALL}", "It is three.")
    other_tokens.replies[8] = Reply(ids=[*single, tokenizer().eos_token_id])
    totals = await play([alike, other_words, other_tokens], tokenizer=tokenizer())
    assert totals == Count(turns=6, changed_turns=2, rollouts=3, changed_rollouts=2, kept_turns=6)
    assert (await play([alike], tokenizer=tokenizer())).changed_turns == 0


async def test_a_client_that_loses_text_is_seen_in_both_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = drift_families.Client.keep

    def without_text(self: Any, reply: Any) -> list[str]:
        reply.content = ""
        return keep(self, reply)

    monkeypatch.setattr(drift_families.Client, "keep", without_text)
    count = await play([rollout(f"Let me add.\n{CALL}")], tokenizer=tokenizer())
    assert (count.turns, count.changed_turns, count.kept_turns) == (2, 2, 0)


async def test_what_the_template_cannot_express_is_refused() -> None:
    options = {"chat_template": "{% for m in messages %}{{ raise_exception('no') }}{% endfor %}"}
    totals = await play([replace(rollout(CALL), options=options)], tokenizer=tokenizer())
    assert totals == Count(refused=1)
