"""The tables of `benchmarks/drift_families.py` and `drift_programs.py`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = ROOT / "benchmarks" / "drift_families.py"

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
    conversation = {"tools": None, "kwargs": {}, "messages": messages}
    (tmp_path / "conversations.json").write_text(json.dumps({"tools": {}, "conversations": {"one": conversation}}))
    lines = ["file\tfamily\tbos_token\teos_token\tstop_tokens\tspecial_tokens"]
    for name, text in templates.items():
        (tmp_path / f"{name}.jinja").write_text(text)
        lines.append(f'{name}.jinja\tF\t\t\t["</s>"]\t["<assistant>", "<user>", "<tool>"]')
    (tmp_path / "index.tsv").write_text("\n".join(lines))
    return {row.name: row for row in runpy.run_path(str(BENCHMARK))["rows"](tmp_path)}


def test_what_a_template_keeps_forgets_or_never_prints_is_counted(tmp_path: Path) -> None:
    found = rows(tmp_path, keeps=KEEPS, forgets=FORGETS, silent=SILENT)
    assert {name: str(row.printed) for name, row in found.items()} == {
        "keeps": "0 of 2, 0 of 1",
        "forgets": "1 of 2, 1 of 1",
        "silent": "1 of 2, 1 of 1",
    }
    assert str(found["keeps"].compact) == "1 of 2, 1 of 1"  # {"a":1,"b":2} comes back with spaces
    assert str(found["silent"].compact) == "–"
    played = {name: list(row.dialects.values()) for name, row in found.items()}
    assert {name: [(t.changed_turns, t.turns, t.kept_turns) for t in totals] for name, totals in played.items()} == {
        "keeps": [(0, 2, 2)] * 3,
        "forgets": [(0, 0, 0)] * 3,  # the gateway refuses a template that loses replies
        "silent": [(0, 0, 0)] * 3,  # no model writes a turn without its call
    }


def test_the_page_holds_what_is_printed_from_the_counts_that_are_kept() -> None:
    made = runpy.run_path(str(BENCHMARK))
    _, marker, printed = (ROOT / "benchmarks" / "drift.md").read_text("utf-8").partition(made["MARKER"])
    assert marker and printed.strip() == made["page"]()
    kept = json.loads(made["FAMILIES"].read_text("utf-8"))
    through = [totals for row in kept for totals in row["dialects"].values()]
    assert through and all(totals["kept_turns"] == totals["turns"] for totals in through)


def test_the_page_holds_the_programs_that_are_kept() -> None:
    from benchmarks import drift_programs

    page = (ROOT / "benchmarks" / "drift.md").read_text("utf-8")
    kept = json.loads(drift_programs.KEPT.read_text("utf-8"))
    printed = page.partition(drift_programs.BEGIN)[2].partition(drift_programs.END)[0]
    assert printed.strip() == drift_programs.table(kept).strip()
    assert all(each["kept_by_gateway"] for each in kept)
