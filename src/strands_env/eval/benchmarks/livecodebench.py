"""LiveCodeBench, code generation (Jain et al. 2024): programs judged by hidden tests, in sandboxes of this machine.

Programs read standard input or complete a class, as the problem says. A program is right when it passes all public and
private tests, each within six seconds; outputs are compared line by line, and by numbers where lines differ, as the
published checker does. The prompt is worded by us, so scores may differ a little from the published ones.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
import zlib
from typing import Any

from strands_env.core import Action, RewardFunction, RewardResult, StepResult
from strands_env.core.threads import reward_threads
from strands_env.eval.run.benchmark import Benchmark, HubDataset, Row, field
from strands_env.sandbox import BubblewrapSandbox, SandboxLimits, judge

SYSTEM_PROMPT = (
    "You are an expert Python programmer. Write a correct and efficient Python program for the problem, and end your "
    "answer with the whole program in one block between ```python and ```."
)
_READS_INPUT = "The program reads standard input and writes the answer to standard output. It does nothing else."
_COMPLETES = "The program completes this class, with nothing outside of it that runs by itself:"

TEST_SECONDS = 6.0  # time of one test
MAX_TEST_BYTES = 256 << 20  # size of the private tests of one problem, unpacked

# Programs for LeetCode use these without importing them. `pow` of the built-ins comes last: math has another.
_PREAMBLE = """import bisect, collections, copy, datetime, functools, heapq, itertools, math, operator, random, re
import string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *
sys.setrecursionlimit(50_000)
sys.set_int_max_str_digits(0)
"""

_CHECKS = """
import json
from decimal import Decimal, InvalidOperation

def plain(value):
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

def numbers(line):
    return [Decimal(word) for word in line.split()]

def same_lines(got, expected):
    got, expected = ([line.strip() for line in text.strip().split("\\n")] for text in (got, expected))
    if len(got) != len(expected):
        return False
    for ours, theirs in zip(got, expected):
        if ours != theirs:
            try:
                if numbers(ours) != numbers(theirs):
                    return False
            except InvalidOperation:
                return False
    return True

for number, test in enumerate(tests):
    if function:
        arguments = [json.loads(line) for line in test["input"].split("\\n") if line.strip()]
        right = plain(solution.call(function, *arguments)) == plain(json.loads(test["output"]))
    else:
        run = solution.run(stdin=test["input"])
        right = run.exit_code == 0 and same_lines(run.stdout, test["output"])
    assert right, f"test {number} of {len(tests)}"
"""


class LiveCodeBenchReward(RewardFunction):
    """1.0 where the program passes all tests, otherwise 0.0; `info["note"]` says which test failed.

    Args:
        limits: Limits of the program, one test at a time.

    Raises:
        SandboxUnavailableError: While scoring: there is no isolation on this machine.
    """

    def __init__(self, *, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits(
            wall_seconds=TEST_SECONDS, cpu_seconds=2 * TEST_SECONDS, memory_bytes=2 << 30, file_bytes=128 << 20
        )

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Run the tests."""
        program = last_program(step_result.observation.final_response or "")
        if program is None:
            return RewardResult(reward=0.0, info={"reason": "no_program"})
        context = action.task_context.model_dump()
        tests = await reward_threads.run(all_tests, context["public_tests"], context["private_tests"])
        function = context["function"]
        checks = f"tests = {tests!r}\nfunction = {f'Solution.{function}' if function else None!r}\n{_CHECKS}"
        async with BubblewrapSandbox(limits=self.limits) as sandbox:
            verdict = await judge(
                sandbox,
                checks,
                # Not one text: the program may begin with imports of `__future__`, which must come first.
                files={"solution.py": f"exec({_PREAMBLE!r})\nexec(compile({program!r}, __file__, 'exec'))\n"},
                timeout=(self.limits.wall_seconds + 2) * len(tests) + 10,
            )
        note = verdict.note.strip().rpartition("\n")[2][:500]
        return RewardResult(reward=float(verdict.passed), info={"tests": len(tests), "run": verdict.runs, "note": note})


def last_program(text: str) -> str | None:
    """The text between the last two fences of an answer, as the published extraction takes it."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else None


def all_tests(public: str, private: str) -> list[dict[str, str]]:
    """Public and private tests: `input`, `output`. Private ones may be packed: base64 of zlib of a pickled text."""
    tests = json.loads(public)
    if private:
        try:
            tests += json.loads(private)
        except ValueError:
            tests += json.loads(_unpack(private))
    return [{"input": test["input"], "output": test["output"]} for test in tests]


def _unpack(packed: str) -> str:
    # With a bound: a few bytes may inflate to any size.
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(packed), MAX_TEST_BYTES)
    if inflate.unconsumed_tail:
        raise ValueError(f"the tests of a problem have more than {MAX_TEST_BYTES} bytes")
    text = _TextUnpickler(io.BytesIO(data)).load()
    if not isinstance(text, str):
        raise ValueError(f"packed tests must be a text, got {type(text).__name__}")
    return text


class _TextUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"packed tests must be a text, and name {module}.{name}")


class LiveCodeBenchEvaluator(Benchmark):
    """LiveCodeBench v6: 175 programming problems from January to April 2025, judged in a sandbox."""

    benchmark_name = "livecodebench"
    system_prompt = SYSTEM_PROMPT
    reward_class = LiveCodeBenchReward
    dataset = HubDataset(path="lighteval/code_generation_lite", name="v6", split="test", size=175)

    def action(self, row: Row, index: int) -> Action | None:
        """The problem with its tests."""
        question, public = field(row, "question_content"), field(row, "public_test_cases")
        if question is None or public is None:
            return None
        starter = field(row, "starter_code")
        metadata = row.get("metadata") or "{}"
        function = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name")
        if function is None and starter is not None and (named := re.findall(r"def (\w+)\(self", starter)):
            function = named[-1]
        task = f"{_COMPLETES}\n```python\n{starter}\n```" if starter else _READS_INPUT
        name = field(row, "question_id") or str(index)
        hidden: dict[str, Any] = {
            "function": function if starter else None,
            "public_tests": public,
            "private_tests": field(row, "private_test_cases") or "",
        }
        hidden |= {key: str(row[key]) for key in ("platform", "difficulty", "contest_date") if row.get(key) is not None}
        return self.task(name, f"{question.strip()}\n\n{task}", **hidden)
