"""The table of `benchmarks/drift_families.py`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "drift_families.py"

KEEPS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETS = KEEPS.replace("{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else '' }}")
SILENT = KEEPS.replace("{{ c.function.name }}{{ c.function.arguments | tojson }}", "")


def rows(tmp_path: Path, **templates: str) -> dict[str, Any]:
    """Each template's row, over one conversation of a call and an answer."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "user", "content": "1+2"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "Thanks."},
    ]
    conversation = {"tools": None, "kwargs": {}, "messages": messages}
    (tmp_path / "conversations.json").write_text(json.dumps({"tools": {}, "conversations": {"one": conversation}}))
    lines = ["file\tfamily\tbos_token\teos_token\tstop_tokens"]
    for name, text in templates.items():
        (tmp_path / f"{name}.jinja").write_text(text)
        lines.append(f'{name}.jinja\tF\t\t\t["</s>"]')
    (tmp_path / "index.tsv").write_text("\n".join(lines))
    return {row.name: row for row in runpy.run_path(str(BENCHMARK))["rows"](tmp_path, {})}


def test_what_a_template_keeps_forgets_or_never_prints_is_counted(tmp_path: Path) -> None:
    found = rows(tmp_path, keeps=KEEPS, forgets=FORGETS, silent=SILENT)
    assert {name: str(row.printed) for name, row in found.items()} == {
        "keeps": "0 of 2 | 0 of 1",
        "forgets": "1 of 2 | 1 of 1",
        "silent": "1 of 2 | 1 of 1",
    }
    assert str(found["keeps"].compact) == "1 of 2 | 1 of 1"  # {"a":1,"b":2} comes back with spaces
    assert str(found["silent"].compact) == "– | –"
