"""A sandbox in ordinary use: state, output, errors, limits that code meets by mistake."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from strands import Agent
from strands.sandbox import StreamChunk

from strands_env.sandbox import BubblewrapSandbox, ExecResult, Outcome, SandboxLimits, SandboxSlots
from strands_env.testing import ScriptedModel, call
from tests.unit.sandbox_support import LIMITS, NO_ISOLATION, assert_nothing_left, leftovers, requires_isolation

pytestmark = requires_isolation


@pytest.fixture
async def sandbox() -> AsyncIterator[BubblewrapSandbox]:
    before = leftovers()
    sandbox = BubblewrapSandbox(limits=LIMITS)
    yield sandbox
    await sandbox.close()
    await assert_nothing_left(before)


async def test_last_expression_is_shown_and_any_bytes_are_text(sandbox: BubblewrapSandbox) -> None:
    assert (await sandbox.run_python("a = 2\na ** 10")).to_text() == "1024"
    assert (await sandbox.run_python("None")).to_text() == "(no output)"
    assert (await sandbox.run_python("print('héllo 漢字 🎉')")).stdout == "héllo 漢字 🎉\n"
    assert r"\xff" in (await sandbox.run_python("import sys; x = sys.stdout.buffer.write(bytes(range(256)))")).stdout


async def test_errors_are_shown_and_keep_the_state(sandbox: BubblewrapSandbox) -> None:
    failed = await sandbox.run_python("x = 7\ndef f():\n    return 1 / 0\nf()")
    assert (failed.outcome, failed.exit_code, failed.stdout) == (Outcome.ERROR, 1, "")
    assert 'File "<cell 1>", line 3, in f' in failed.stderr and "return 1 / 0" in failed.stderr
    assert "worker" not in failed.stderr
    assert "SyntaxError" in (await sandbox.run_python("def f(:\n  pass")).stderr
    for code, exit_code in (("import sys; sys.exit(3)", 3), ("exit()", 0), ("raise SystemExit('why')", 1)):
        assert (await sandbox.run_python(code)).exit_code == exit_code
    assert (await sandbox.run_python("x")).stdout == "7\n"


async def test_interrupted_python_keeps_its_state(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run_python("import time")  # or a slow machine could use up the time before the code begins
    result = await sandbox.run_python("x = 5\nprint('before', flush=True)\nwhile True: pass", timeout=0.5)
    assert (result.outcome, result.stdout) == (Outcome.TIMEOUT, "before\n")
    assert "time limit of 0.5 s" in result.note
    assert "remain" in result.note
    assert (await sandbox.run_python("x")).stdout == "5\n"


async def test_a_cancelled_call_ends_alone(sandbox: BubblewrapSandbox) -> None:
    await sandbox.write_file("kept", "x")
    for slow in (sandbox.run_python("import time; time.sleep(60)"), sandbox.exec("sleep 60")):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await slow
        assert (await sandbox.exec("cat kept; cat /proc/[0-9]*/cmdline | grep -a '[s]leep'")).stdout == "x"
        assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_a_stream_has_all_up_to_the_limit_and_the_result_its_ends(sandbox: BubblewrapSandbox) -> None:
    *pieces, done = [event async for event in sandbox.execute_streaming("yes")]
    assert (done.exit_code, done.stderr) == (126, f"[stopped after {LIMITS.flood_bytes} bytes of output]")
    assert pieces.pop() == StreamChunk(done.stderr, "stderr")
    streamed = "".join(piece.data for piece in pieces)
    assert len(streamed) > LIMITS.flood_bytes and set(streamed) == {"y", "\n"}
    assert len(done.stdout) < 2 * LIMITS.output_bytes
    sandbox.limits = replace(LIMITS, wall_seconds=0.1)
    with pytest.raises(TimeoutError, match=r"Execution timed out: stopped after the time limit of 0\.1 s"):
        await sandbox.execute("sleep 60", timeout=120)


async def test_background_processes_end_with_the_call(sandbox: BubblewrapSandbox) -> None:
    await sandbox.exec("sleep 1000 & (setsid sleep 1000 &) ; echo started")
    code = "import os, subprocess; os.system('(setsid sleep 1000 &)'); p = subprocess.Popen(['sleep', '1000'])"
    assert not (await sandbox.run_python(code)).is_error
    listing = await sandbox.exec("cat /proc/[0-9]*/stat")
    states = [line.split()[2] for line in listing.stdout.splitlines() if "(sleep)" in line]
    assert set(states) <= {"Z"}  # what is dead may not be collected yet


async def test_modules_of_the_work_directory_and_multiprocessing_work(sandbox: BubblewrapSandbox) -> None:
    await sandbox.exec("echo 'def square(x): return x * x' > mine.py")
    code = (
        "import multiprocessing as mp\n"
        "from mine import square\n"
        "with mp.get_context('fork').Pool(2) as pool: print(pool.map(square, [1, 2, 3]))"
    )
    assert (await sandbox.run_python(code)).stdout == "[1, 4, 9]\n"


@pytest.mark.parametrize("code", ["x" * 100_001, "a\0b", "\ud800"])
async def test_code_that_cannot_run_is_refused(sandbox: BubblewrapSandbox, code: str) -> None:
    for run in (sandbox.run_python, sandbox.exec):
        result = await run(code)
        assert (result.outcome, result.is_error) == (Outcome.REFUSED, True)
        assert result.to_text()
    assert not sandbox.is_running


async def test_own_variables_files_and_packages_are_shown(tmp_path) -> None:
    (tmp_path / "pkgs").mkdir()
    (tmp_path / "pkgs" / "helper.py").write_text("answer = 42\n")
    (tmp_path / "data.txt").write_text("data")
    shown = [tmp_path / "data.txt"]
    async with BubblewrapSandbox(
        limits=LIMITS, packages=[tmp_path / "pkgs"], read_only=shown, environment={"NAME": "value"}
    ) as sandbox:
        result = await sandbox.run_python(
            f"import os, helper\nprint(helper.answer, os.environ['NAME'], open({str(shown[0])!r}).read())"
        )
        assert result.to_text() == "42 value data"
        written = await sandbox.exec(f"echo x >> {shown[0]}; echo y > {tmp_path}/pkgs/new")
        assert "Read-only file system" in written.stderr or "Permission denied" in written.stderr
    assert (tmp_path / "data.txt").read_text() == "data"
    assert sorted(path.name for path in (tmp_path / "pkgs").iterdir()) == ["helper.py"]


async def test_slots_bound_running_sandboxes() -> None:
    slots = SandboxSlots(2)
    sandboxes = [BubblewrapSandbox(limits=LIMITS, slots=slots) for _ in range(6)]

    async def episode(sandbox: BubblewrapSandbox) -> int:
        async with sandbox:
            return sum(other.is_running for other in sandboxes)

    assert 1 <= max(await asyncio.gather(*map(episode, sandboxes))) <= 2


async def test_failed_start_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = SandboxSlots(1)
    broken = BubblewrapSandbox(limits=LIMITS, slots=slots)
    broken._bwrap[0] = "/bin/false"
    before = leftovers()
    with pytest.raises(Exception, match="could not be started"):
        await broken.start()
    await assert_nothing_left(before)
    async with BubblewrapSandbox(limits=LIMITS, slots=slots) as sandbox:
        assert sandbox.is_running


async def test_virtual_environment_can_be_named() -> None:
    async with BubblewrapSandbox(limits=LIMITS, python=sys.executable) as sandbox:
        assert (await sandbox.run_python("import sys; print(sys.prefix)")).stdout == f"{sys.prefix}\n"


async def test_without_isolation_only_by_its_name() -> None:
    before = leftovers()
    async with BubblewrapSandbox(limits=LIMITS, isolation=NO_ISOLATION) as sandbox:
        assert (await sandbox.run_python("x = 1\nx")).stdout == "1\n"
        assert (await sandbox.exec("(setsid sleep 1000 &); sleep 1000", timeout=0.5)).outcome is Outcome.TIMEOUT
        assert (await sandbox.run_python("x")).stdout == "1\n"
        await sandbox.exec("mkdir -p a/b && chmod 000 a/b a")
    await assert_nothing_left(before)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"isolation": "none"}, "isolation must be one of"), ({"read_only": ["/no/such"]}, "does not exist")],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        BubblewrapSandbox(**options)


@pytest.mark.parametrize(
    "limits",
    [{"wall_seconds": 0}, {"processes": 1.5}, {"memory_bytes": -1}, {"files": True}, {"code_bytes": 200_000}],
)
def test_limits_out_of_range_are_refused(limits: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        SandboxLimits(**limits)


def test_text_of_a_result_is_complete() -> None:
    result = ExecResult(outcome=Outcome.TIMEOUT, stdout="a\n", stderr="b\n", note="stopped")
    assert result.to_text() == "a\n[stderr]\nb\n[stopped]"
    assert ExecResult(outcome=Outcome.ERROR, exit_code=2).to_text() == "[exit code 2]"


async def test_an_agent_in_it_has_the_tools_of_the_sdk() -> None:
    script = [
        call("sandbox_file_editor", command="create", path="/workspace/note", file_text="hello"),
        call("sandbox_shell", command="cat note; pwd; exit 3"),
        "Done.",
    ]
    async with BubblewrapSandbox(limits=LIMITS) as sandbox:
        agent = Agent(model=ScriptedModel(script), sandbox=sandbox, callback_handler=None)
        await agent.invoke_async("go")
    results = [
        block["toolResult"] for message in agent.messages for block in message["content"] if "toolResult" in block
    ]
    assert results[0]["status"] == "success", results
    assert "hello/workspace" in str(results[1]) and "3" in str(results[1])
