"""`AgentWorldModelEnv`: the generated worlds of Agent World Model (Wang et al. 2026), each in a sandbox.

A world is a FastAPI application over an SQLite database, both written by a model; a task has a verifier, written by a
model too. None of that code runs in this process: the application runs in the episode's sandbox, the verifier in one
of its own, on copies of the database.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

from strands.types.exceptions import ToolProviderException
from strands.types.tools import AgentTool, ToolUse

from strands_env.core import Action, Environment, RewardResult, StepResult
from strands_env.core.episode import fail_step
from strands_env.core.limits import DEFAULT_MAX_OUTPUT_CHARS, with_limits
from strands_env.sandbox import BubblewrapSandbox, ExecLimits, Outcome, PythonSandbox, SandboxLostError
from strands_env.tools.results import make_tool, text_result

_GUEST = Path(__file__).with_name("agent_world_guest.py")
_START_SECONDS = 60.0
_FIELDS = ("scenario", "verify_code", "initial_db_path")


class AgentWorldModelEnv(Environment):
    """The endpoints of a generated world as tools, on a database of the episode's own.

    A task names its world and brings its verifier: `scenario`, `verify_code` and `initial_db_path` in its context.

    ```python
    env = AgentWorldModelEnv(model_factory=factory, envs_path="outputs/gen_envs.jsonl")
    world = TaskContext(scenario="e_commerce_33", verify_code=code, initial_db_path="outputs/databases/....db")
    task = Action(message="...", task_context=world)
    ```

    Args:
        envs_path: The data set's `gen_envs.jsonl`: a world a line, with `scenario` and `full_code`.
        sandbox: Where the world runs; its interpreter needs fastapi, httpx and sqlalchemy. The default is a
            `BubblewrapSandbox` with the interpreter and packages of this process. The environment closes it.
        mcp_timeout: Seconds of a tool call.
        max_output_chars: Characters of a tool result; None for no limit.
        **options: Further arguments of `Environment`; `reward_fn` is `is_complete` if none is given.

    Raises:
        SandboxUnavailableError: Isolation is unavailable on this machine; the message says how to get it.
        ValueError: The sandbox has no Python interpreter that lasts, in which the world would live.
    """

    default_system_prompt_path = Path(__file__).with_name("prompts") / "mcp.md"

    def __init__(
        self,
        *,
        envs_path: str | Path,
        sandbox: PythonSandbox | None = None,
        mcp_timeout: float = 60.0,
        max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.reward_fn = self.reward_fn or self.is_complete
        self.envs_path = Path(envs_path)
        self.sandbox = sandbox or BubblewrapSandbox(python=sys.executable)
        if not isinstance(self.sandbox, PythonSandbox):
            raise ValueError(
                f"sandbox must have a Python interpreter that lasts, and {type(sandbox).__name__} has none"
            )
        self.mcp_timeout = mcp_timeout
        self.max_output_chars = max_output_chars
        self._tools: list[AgentTool] = []
        self._calls = 0

    async def reset(self, action: Action) -> None:
        """Start the world of the task, afresh.

        Raises:
            ValueError: The task lacks a field, or `envs_path` has no such world.
            ToolProviderException: The world does not start.
        """
        await self.sandbox.close()
        self._tools = []
        scenario, _, database = _read_fields(action)
        code = await asyncio.to_thread(_read_world, self.envs_path, scenario)
        await self.sandbox.write_file("world.py", code)
        await self.sandbox.write_file("guest.py", _GUEST.read_bytes())
        await self.sandbox.write_file("work.db", await asyncio.to_thread(Path(database).read_bytes))
        tools = await self._ask("guest.start()", _START_SECONDS)
        if not isinstance(tools, list):
            raise ToolProviderException(
                f"the world {scenario!r} does not start in its sandbox, whose interpreter needs fastapi, httpx and "
                f"sqlalchemy (sandbox=BubblewrapSandbox(python=...)): {tools['text'].strip()[-500:]}"
            )
        self._tools = [self._make_tool(tool) for tool in tools]

    def _make_tool(self, declared: dict[str, Any]) -> AgentTool:
        """An endpoint as a tool. What the world refuses, and what takes too long, the model sees as an error."""
        name = declared["name"]

        async def call(tool_use: ToolUse) -> dict[str, Any]:
            answer = await self.call(name, tool_use["input"])
            return {**text_result(answer["text"]), "status": "error" if answer["is_error"] else "success"}

        tool = make_tool(name, declared["description"], declared["inputSchema"], call)
        return with_limits(tool, timeout=None, max_output_chars=self.max_output_chars)

    def get_tools(self) -> list[Any]:
        """The endpoints of the task's world."""
        return list(self._tools)

    async def call(self, name: str, arguments: Any) -> dict[str, Any]:
        """The result of an endpoint: `text`, and `is_error`. A world that is gone ends the step."""
        # As JSON in a literal: whatever the model wrote stays data in the code that runs.
        arguments = f"guest.json.loads({json.dumps(arguments)!r})"
        answer: dict[str, Any] = await self._ask(f"guest.started[0].call({name!r}, {arguments})", self.mcp_timeout)
        if answer.get("is_gone"):
            fail_step(ToolProviderException(f"the world ended during a call of {name}: {answer['text'][-500:]}"))
        return answer

    async def is_complete(self, action: Action, result: StepResult) -> RewardResult:
        """1.0 if the task's verifier says `complete` of the databases before and after, and of the answer; else 0.0.

        It runs in a sandbox of its own.

        Raises:
            RuntimeError: It gave no verdict: the step has no reward.
        """
        scenario, code, database = _read_fields(action)
        saved = await self.sandbox.exec([self.sandbox.capabilities.python, "guest.py", "snapshot"])
        if saved.is_error:
            raise RuntimeError(f"the database of the world {scenario!r} cannot be read: {saved.to_text(500)}")
        files: dict[str, str | bytes] = {
            "guest.py": _GUEST.read_bytes(),
            "verify.py": code,
            "answer.txt": result.observation.final_response or "",
            "initial.db": await asyncio.to_thread(Path(database).read_bytes),
            "final.db": await self.sandbox.read_file("final.db"),
        }
        async with self.sandbox.sibling() as judge:
            for name, content in files.items():
                await judge.write_file(name, content)
            ran = await judge.exec([judge.capabilities.python, "guest.py", "verify"])
            try:
                verdict = json.loads(await judge.read_file("verdict.json"))
            except (OSError, ValueError):
                raise RuntimeError(
                    f"the verifier of a task of {scenario!r} gave no verdict: {ran.to_text(500)}"
                ) from None
        reward = float(isinstance(verdict, dict) and verdict.get("result") == "complete")
        return RewardResult(reward=reward, info={"status": "success", "verification_result": verdict})

    async def cleanup(self) -> None:
        """End the world with its sandbox."""
        await self.sandbox.close()

    async def _ask(self, expression: str, seconds: float) -> Any:
        """A value in the world's interpreter, or `text`, `is_error` and `is_gone` where there is none."""
        self._calls += 1
        code = f"import guest; guest.reply({self._calls}, {expression})"
        ran = await self.sandbox.run_python(code, limits=ExecLimits(wall_seconds=seconds))
        try:
            reply = json.loads(await self.sandbox.read_file("reply.json"))
            if reply["number"] == self._calls:  # else it is the reply to an earlier call: this one gave none
                return reply["result"]
        except (FileNotFoundError, SandboxLostError):
            pass
        is_gone = ran.outcome not in (Outcome.TIMEOUT, Outcome.REFUSED)
        return {"text": ran.to_text(), "is_error": True, "is_gone": is_gone}


def _read_fields(action: Action) -> tuple[str, str, str]:
    context = action.task_context.model_dump()
    if missing := [name for name in _FIELDS if not isinstance(context.get(name), str)]:
        raise ValueError(
            f"the context of an AgentWorldModelEnv task must have {', '.join(_FIELDS)} as text; missing: {missing}"
        )
    scenario, code, database = (context[name] for name in _FIELDS)
    return scenario, code, database


@functools.lru_cache(maxsize=64)
def _read_world(envs_path: Path, scenario: str) -> str:
    def normal(name: str) -> str:  # as the data set's own tools compare names
        return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")

    with envs_path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and normal((world := json.loads(line))["scenario"]) == normal(scenario):
                return str(world["full_code"])
    raise ValueError(f"{str(envs_path)!r} has no world {scenario!r}")
