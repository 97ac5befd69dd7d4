"""MCP-Atlas (Scale AI 2025): questions that need the tools of real MCP servers, scored by claims about the answer.

The servers run in the benchmark's own container, which the user starts; it lists and calls their tools over HTTP.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Iterable
from typing import Any, ClassVar

import aiohttp
from strands.types.exceptions import ToolProviderException
from strands.types.tools import AgentTool, ToolUse

from strands_env.core import Action, Environment, RewardFunction, RewardResult, StepResult
from strands_env.core.episode import fail_step
from strands_env.eval.benchmarks.grading import GradedAnswerReward, Grading
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import Benchmark, HubDataset, Row, field
from strands_env.tools.results import make_tool

URL = "http://localhost:1984"  # the container's default address
PASSING_COVERAGE = 0.75  # mean score of a task's claims from which it is solved, as published

COVERAGE = Grading(
    own="""Does the answer to a question cover what an expert claims about it?

A: it says all of the claim, and correctly.
B: it says a part of the claim.
C: it says nothing of the claim, or contradicts it.

Numbers agree within 5 percent, percentages within a point, and in any notation. Judge the claim only.

{question}

{truth}

{answer}

Texts are escaped as in XML; the claim is the expected answer. Say in a sentence why, then end with the letter.""",
    rewards={"A": 1.0, "B": 0.5, "C": 0.0},
)


class MCPAtlasEnv(Environment):
    """The tools of MCP-Atlas's container that a task enables (`enabled_tools` of its context).

    Args:
        url: Address of the container, shared by all episodes.
        call_timeout: Seconds of a request to it.
        **options: Further arguments of `Environment`.
    """

    def __init__(self, *, url: str = URL, call_timeout: float = 60.0, **options: Any) -> None:
        super().__init__(**options)
        self._url, self._timeout = url.rstrip("/"), aiohttp.ClientTimeout(total=call_timeout)
        self._tools: list[AgentTool] = []

    async def reset(self, action: Action) -> None:
        """List the container's tools.

        Raises:
            ToolProviderException: The container does not answer, or lacks a tool that the task enables.
        """
        status, listed = await self._post("/list-tools")
        if status != 200:
            raise ToolProviderException(f"MCP-Atlas does not list its tools: HTTP {status}")
        enabled = set(action.task_context.model_dump()["enabled_tools"])
        if missing := sorted(enabled - {tool["name"] for tool in listed}):
            raise ToolProviderException(f"the MCP-Atlas container has no tools {missing}: start it with their servers")
        self._tools = [self._make_tool(tool) for tool in listed if tool["name"] in enabled]

    def get_tools(self) -> list[Any]:
        """The tools of the task."""
        return list(self._tools)

    def _make_tool(self, declared: dict[str, Any]) -> AgentTool:
        """A tool of the container. What an MCP server refuses, the model sees as an error."""
        name = declared["name"]

        async def call(tool_use: ToolUse) -> dict[str, Any]:
            status, answer = await self._post("/call-tool", {"tool_name": name, "tool_args": tool_use["input"]})
            blocks = answer if status == 200 else [answer]
            texts = [str(block.get("text", block) if isinstance(block, dict) else block) for block in blocks]
            return {"status": "success" if status == 200 else "error", "content": [{"text": text} for text in texts]}

        schema = declared.get("inputSchema") or {"type": "object"}
        return make_tool(name, declared.get("description") or name, schema, call)

    async def _post(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON, or text, of an answer. Where there is none, the episode is not a valid one."""
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(f"{self._url}{path}", json=body) as response,
            ):
                text = await response.text()
                return response.status, json.loads(text) if response.status == 200 else text
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            failure = ToolProviderException(f"MCP-Atlas at {self._url} gave no answer: {type(error).__name__}")
            fail_step(failure)
            raise failure from error


class ClaimsReward(RewardFunction):
    """1.0 where a judge finds the task's claims covered to `PASSING_COVERAGE` in the mean; none where it fails."""

    asks_models = True

    def __init__(self, judge_model: Any) -> None:
        self._judge = GradedAnswerReward(judge_model, COVERAGE)

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Judge each claim by itself."""
        context = action.task_context
        claims = list(context.ground_truth)
        contexts = [context.model_copy(update={"ground_truth": claim}) for claim in claims]
        tasks = [action.model_copy(update={"task_context": each}) for each in contexts]
        results = await asyncio.gather(*(self._judge.compute(each, step_result) for each in tasks))
        scores = [result.reward for result in results]
        if (failed := next((result for result in results if result.reward is None), None)) is not None:
            return failed
        coverage = sum(score or 0.0 for score in scores) / len(scores)
        info = {"coverage": coverage, "claims": dict(zip(claims, scores, strict=True))}
        return RewardResult(reward=float(coverage >= PASSING_COVERAGE), info=info)


class MCPAtlasEvaluator(Benchmark):
    """MCP-Atlas: questions over the tools of real MCP servers; needs its container (`url`) and a judge."""

    benchmark_name = "mcp-atlas"
    dataset: ClassVar[HubDataset] = HubDataset(path="ScaleAI/MCP-Atlas", split="train")
    env_class = MCPAtlasEnv
    reward_class = ClaimsReward
    has_judge = True

    def action(self, row: Row, index: int) -> Action | None:
        """The question, its tools, and the claims as ground truth."""
        prompt, tools, claims = (field(row, name) for name in ("PROMPT", "ENABLED_TOOLS", "GTFA_CLAIMS"))
        if prompt is None or tools is None or claims is None:
            return None
        name = field(row, "TASK") or str(index)
        try:
            listed: Iterable[Any] = json.loads(tools)
            claimed = ast.literal_eval(claims.replace("\n", "\\n"))  # a Python list with bare line ends
        except (ValueError, SyntaxError) as error:
            raise DatasetError(f"task {name!r} of MCP-Atlas cannot be read: {error}") from error
        enabled = [tool["name"] if isinstance(tool, dict) else tool for tool in listed]
        if not claimed:
            return None
        return self.task(name, prompt, list(claimed), enabled_tools=enabled)
