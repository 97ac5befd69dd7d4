"""Real agent programs as `HarnessEnvironment`, sandboxed, with a scripted model; `tests/agent_programs.py` has them."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments import HarnessEnvironment
from strands_env.environments.harness.harness_env import DEFAULT_LIMITS
from strands_env.sandbox import BubblewrapSandbox
from strands_env.training import samples_from_step
from strands_sglang.gateway import Gateway, delivery
from strands_sglang.testing import Reply, ScriptedClient
from tests.agent_programs import HOME, PROGRAMS, SHELLS, installed, program_tokenizer, scripted
from tests.unit.gateway_support import trained_runs
from tests.unit.sandbox_support import requires_isolation

SHOWN = sorted({str(HOME), *(str(each.resolve()) for each in HOME.glob("*") if each.is_dir())})
"""Folders of the programs, to be shown in a sandbox."""
LIMITS = replace(DEFAULT_LIMITS, wall_seconds=120.0)


@requires_isolation
@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_an_episode_of_a_real_program_is_its_task_and_nothing_beside(name: str, calls: int) -> None:
    words, program = installed(name)
    python = program.with_name("python") if program.parent.name == "bin" else None
    tokenizer = program_tokenizer()

    async def reward(action: Action, result: Any) -> float:
        return float((await env.sandbox.exec("cat made")).stdout == "hi\n")

    client = ScriptedClient(scripted(tokenizer, "echo hi > made" if calls else None), tokenizer=tokenizer)
    env = HarnessEnvironment(
        model_factory=sglang_model_factory(client=client, tokenizer=tokenizer),
        harness=PROGRAMS[name][1](words),
        read_only=SHOWN,
        python=None if python is None or not python.exists() else str(python),
        limits=LIMITS,
        max_requests=12,
        reward_fn=reward,
    )
    result = await env.rollout(Action(message="Write hi into the file made.", task_context=TaskContext(id="t")))
    ended = result.observation.metrics.get("gateway")
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, (ended, result.error)
    assert result.reward is not None and result.reward.reward == float(calls), ended
    messages = result.observation.messages
    assert "Write hi into the file made." in json.dumps(messages[:2]) and messages[-1]["role"] == "assistant"
    assert sum("toolResult" in block for message in messages for block in message["content"]) == calls
    trained = sum(sum(trajectory.tokens.loss_mask) for trajectory in result.trajectories)
    assert trained == sum(int(sample.loss_mask.sum()) for sample in samples_from_step(result)) > 0
    # A title, a memory or a check for loops would be trained with the task's reward.
    assert ended is not None and (ended["requests"], ended["extended"]) == (calls + 1, calls)
    assert len(result.trajectories) == 1


@requires_isolation
@pytest.mark.parametrize("name", ["claude-code", "codex"])
async def test_a_task_goes_on_wherever_its_gateway_is_killed(name: str, tmp_path: Path) -> None:
    words, _ = installed(name)
    tokenizer, state = program_tokenizer(), tmp_path / "state"
    recorder = os.open(tmp_path / "record", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def send_a_part(self: Any, body: bytes, **_: Any) -> None:
        if name == "codex":  # which asks for the rest; Claude Code asks in words of its own, on a new root
            stream = await self._open("text/event-stream")
            await stream.write(body.partition(b"function_call")[0])
        kill()

    def serve(life: int, listener: socket.socket) -> None:
        """Serve a task of three steps; each of the first three lives ends in another moment of a call."""

        def reply(input_ids: list[int], _: dict[str, Any]) -> Reply:
            text = tokenizer.decode(input_ids)
            step = text.rpartition("Work in steps.")[2].count("<tool_response>")
            tool = next(tool for tool in SHELLS if f'"name": "{tool}"' in text.partition("<|im_end|>")[0])
            argument, others = SHELLS[tool]
            call = {"name": tool, "arguments": {argument: f"sleep 0.3; echo {step} >> made", **others}}
            said = f"Step {step}." + (f"<tool_call>{json.dumps(call)}</tool_call>" if step < 3 else "")
            if (life, step) == (0, 1):
                kill()
            if (life, step) == (1, 1):
                delivery.Exchange.send = send_a_part  # type: ignore[method-assign,assignment]
            if (life, step) == (2, 2):
                asyncio.get_running_loop().call_later(0.2, kill)  # the program has the answer, and is at work
            ids = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
            os.write(recorder, json.dumps(ids).encode() + b"\n")
            return Reply(ids=ids)

        async def run() -> None:
            async with make_gateway(ScriptedClient(reply, tokenizer=tokenizer), listener=listener):
                await asyncio.Event().wait()

        asyncio.run(run())

    def make_gateway(client: ScriptedClient, **options: Any) -> Gateway:
        return Gateway(client=client, tokenizer=tokenizer, state=state, **options)

    async with make_gateway(ScriptedClient([], tokenizer=tokenizer)) as gateway:
        session = gateway.open()
    url = f"http://127.0.0.1:8080/s/{session.id}"
    async with BubblewrapSandbox(read_only=SHOWN, limits=LIMITS) as sandbox:
        values = {"base_url": f"{url}/v1", "anthropic_url": url, "key": session.key, "prompt": "Work in steps."}
        values["home"] = (await sandbox.exec("pwd")).stdout.strip()
        launch = PROGRAMS[name][1](words).fill(values)
        for file, text in launch.files.items():
            await sandbox.write_file(f"{values['home']}/{file}", text)
        listener = await sandbox.listen(8080)
        environment = {"HOME": values["home"], **launch.environment}
        program = asyncio.create_task(sandbox.exec(launch.command, env=environment))
        for life in range(4):
            process = multiprocessing.get_context("fork").Process(target=serve, args=(life, listener))
            process.start()
            while process.is_alive() and not program.done():
                await asyncio.sleep(0.02)
            process.kill()
            process.join()
        listener.close()
        done, made = await program, await sandbox.read_file("made")
    assert done.exit_code == 0 and made == b"0\n1\n2\n", done
    recorded = [tuple(json.loads(line)) for line in (tmp_path / "record").read_text().splitlines()]
    async with make_gateway(ScriptedClient([], tokenizer=tokenizer)) as gateway:
        session = gateway.sessions[session.id]
        assert [list(trained_runs(each)) for each in session.trajectories] == [recorded]
        assert session.counters.roots == {"first": 1} and session.counters.replayed == 1 and len(recorded) == 4
