"""`examples/strands_harness` under slime's real rollout code: agent and sub-agent are trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from provider_support import completion, tokenizer

from strands_sglang.testing import Reply
from tests.conftest import ROOT
from tests.real_slime import Router, check_ranks, launch, requires_slime
from tests.unit.sandbox_support import requires_isolation

__all__ = ["launch"]

pytest.importorskip("strands_harness")
EXAMPLE = ROOT / "examples" / "strands_harness"
SUBTASK = "Count what seq 7 prints."


def tool(name: str, **arguments: Any) -> Reply:
    return completion(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")


class Scripted(Router):
    """Delegates; the sub-agent counts; every other rollout answers with its result."""

    answers = 0

    def _reply(self, input_ids: list[int]) -> Reply:
        text = tokenizer().decode(input_ids)
        task, _, turns = text.partition("<|im_start|>assistant")
        if SUBTASK in task.rpartition("<|im_start|>user")[2]:
            reply = completion("It is 7.") if "<tool_response>" in turns else tool("shell", command="seq 7 | wc -l")
        elif "subagent" not in turns:
            reply = tool("subagent", task=SUBTASK)
        elif "It is 7." not in turns:
            reply = completion("I wait.")
        else:
            self.answers += 1
            reply = completion("7" if self.answers % 2 else "8")
        return replace(reply, weight_version="1", meta={})


TASK = {"prompt": "How many lines does seq 7 print? Have it counted.", "label": "7", "metadata": {}}


@requires_slime
@requires_isolation
def test_a_step_of_the_example_trains_what_agent_and_subagent_sampled(launch: Any, tmp_path: Path) -> None:
    with Scripted() as router:
        ranks = launch(EXAMPLE, TASK, router).step()
        check_ranks(ranks, router, samples=12)  # the SDK delivers a result as a call that nobody sampled: a new path
    line = json.loads((tmp_path / "log" / "rollout.jsonl").read_text().splitlines()[0])
    assert line["metrics"]["ended/task_complete"] == 1.0 and line["metrics"]["reward"] == 0.5
