"""Tests of a sandbox of your own: `SandboxContract`.

```python
from strands_env.testing import SandboxContract


class TestMySandbox(SandboxContract):
    def make_sandbox(self):
        return MySandbox()
```
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from strands.sandbox import ExecutionResult, StreamChunk
from strands.sandbox.errors import SandboxTimeoutError

from strands_env.sandbox.contract import (
    ExecLimits,
    ExecResult,
    Outcome,
    PythonSandbox,
    Sandbox,
    SandboxUnsupportedError,
)

from .contracts import Contract

_Error = TypeVar("_Error", bound=Exception)


class AgentSandboxContract(Contract, ABC):
    """Behaviour that `Agent(sandbox=...)`, the SDK's tools and strands-harness rely on, as in its Docker sandbox."""

    @abstractmethod
    def make_sandbox(self) -> Sandbox:
        """A new sandbox, not started. It may call `pytest.skip`."""

    async def test_commands_of_the_sdk(self) -> None:
        """Exit codes, streams, folder, variables, code of any language, and mistakes by their types."""
        async with self.make_sandbox() as sandbox:
            await sandbox.write_text("folder/a b", "é")
            done = await sandbox.execute("cat 'a b'; echo $NAME >&2; exit 3", cwd="folder", env={"NAME": "$x 'y'"})
            assert (done.exit_code, done.stdout, done.stderr) == (3, "é", "$x 'y'\n"), done
            assert (await sandbox.execute("kill -9 $$")).exit_code == 137
            code = 'x=\'a "b" $\'\necho "$x $NAME"\n'
            assert (await sandbox.execute_code(code, "sh", env={"NAME": "1"})).stdout == 'a "b" $ 1\n'
            assert (await sandbox.execute_code("1", "no-such-language")).exit_code == 127
            await _raises(ValueError, sandbox.execute_code("1", "sh; sh"))
            await _raises(ValueError, sandbox.execute("true", env={"A B": "x"}))
            await _raises(TimeoutError, sandbox.execute("sleep 60", timeout=0.5))
            assert [one.tool_name for one in sandbox.get_tools()] == ["sandbox_file_editor", "sandbox_shell"]

    async def test_files_of_the_sdk(self) -> None:
        """Any bytes and names, in folders that did not exist; a missing file is `FileNotFoundError`."""
        data = bytes(range(256))
        async with self.make_sandbox() as sandbox:
            await sandbox.write_file("new/folder/a 'b'", data)
            await sandbox.write_text("new/.hidden", "x")
            assert await sandbox.read_file("new/folder/a 'b'") == data
            entries = await sandbox.list_files("new")
            assert sorted((entry.name, entry.is_dir) for entry in entries) == [(".hidden", False), ("folder", True)]
            assert [entry.name for entry in await sandbox.list_files("new/folder")] == ["a 'b'"]
            await sandbox.remove_file("new/.hidden")
            for lost in (sandbox.remove_file, sandbox.read_file, sandbox.list_files):
                await _raises(FileNotFoundError, lost("new/.hidden"))
            await _raises(FileNotFoundError, sandbox.list_files("new/folder/a 'b'"))

    async def test_output_comes_while_a_command_runs(self) -> None:
        """Pieces of each stream, then the result; a stream that is closed, or too slow, ends the command alone."""
        async with self.make_sandbox() as sandbox:
            if not sandbox.capabilities.streams:
                await _raises(SandboxUnsupportedError, anext(sandbox.execute_streaming("true")))
                await _raises(SandboxUnsupportedError, anext(sandbox.execute_code_streaming("true", "sh")))
                return
            script = "echo out; echo err >&2; printf '\\303'; sleep 0.05; printf '\\251'; exit 3"
            for events in (sandbox.execute_streaming(script), sandbox.execute_code_streaming(f"({script})", "sh")):
                *pieces, done = [event async for event in events]
                assert isinstance(done, ExecutionResult) and done.exit_code == 3, done
                assert (done.stdout, done.stderr) == ("out\né", "err\n")
                for name in ("stdout", "stderr"):
                    texts = [one.data for one in pieces if isinstance(one, StreamChunk) and one.stream_type == name]
                    assert "".join(texts) == getattr(done, name)
                assert len(pieces) >= 3
            events = sandbox.execute_streaming("touch kept; echo $$; sleep 60", timeout=5)
            first = await anext(events)
            assert isinstance(first, StreamChunk)
            await events.aclose()
            slow = await _raises(SandboxTimeoutError, sandbox.execute("echo $$; sleep 60", timeout=0.3))
            for process in (first.data, slow.stdout):
                left = await sandbox.execute(f"ls kept && kill -0 {process}")
                assert (left.exit_code != 0, left.stdout) == (True, "kept\n")


class SandboxContract(AgentSandboxContract):
    """The clauses that judges, code tools, harnesses and tasks rely on in a sandbox: one `test_*` method each."""

    async def test_a_command_line_is_read_by_the_shell_and_arguments_are_not(self) -> None:
        """Pipes, variables and exit codes work; a program gets its arguments as they are."""
        line = await self._exec("x=1; echo out$x | cat; exit 5")
        assert (line.outcome, line.exit_code, line.stdout) == (Outcome.ERROR, 5, "out1\n"), line
        done = await self._exec(["printf", "%s|", "a b", "$HOME", "*", "'"])
        assert (done.outcome, done.stdout) == (Outcome.OK, "a b|$HOME|*|'|"), done

    async def test_a_program_that_does_not_exist_is_a_result(self) -> None:
        """The caller's mistake, not the sandbox's failure."""
        for command in ("no-such-program-here", ["no-such-program-here"]):
            assert (await self._exec(command)).outcome is Outcome.ERROR

    async def test_folder_variables_and_standard_input(self) -> None:
        """`cwd`, `env` and `stdin` reach the command; without `stdin` there is nothing to read."""
        async with self.make_sandbox() as sandbox:
            await sandbox.write_file("folder/note", "hello")
            done = await sandbox.exec('cat note; echo "$NAME"; cat', cwd="folder", env={"NAME": "a 'b'"}, stdin="in\n")
            assert done.stdout == "helloa 'b'\nin\n", done
            assert (await sandbox.exec("cat; echo end")).stdout == "end\n"
            assert (await sandbox.exec("wc -c", stdin=b"\xff\x00\xfe")).stdout.strip() == "3"

    async def test_variables_of_this_process_are_not_passed_on(self) -> None:
        """Keys stay here."""
        os.environ["STRANDS_ENV_CONTRACT_SECRET"] = "s3cret"
        try:
            assert "s3cret" not in (await self._exec("env")).stdout
        finally:
            del os.environ["STRANDS_ENV_CONTRACT_SECRET"]

    async def test_a_call_ends_at_its_time_limit(self) -> None:
        """The end is typed, and the sandbox can be used again."""
        async with self.make_sandbox() as sandbox:
            assert (await sandbox.exec("sleep 60", timeout=0.5)).outcome is Outcome.TIMEOUT
            shorter = await sandbox.exec("sleep 60", limits=ExecLimits(wall_seconds=0.5))
            assert shorter.outcome is Outcome.TIMEOUT
            assert (await sandbox.exec("echo on")).stdout == "on\n"

    async def test_a_child_that_keeps_the_output_open_is_not_waited_for(self) -> None:
        """A call ends when its command does."""
        started = time.monotonic()
        assert (await self._exec("sleep 60 & echo done")).stdout == "done\n"
        assert time.monotonic() - started < 30

    async def test_long_output_keeps_both_ends(self) -> None:
        """The kept part is bounded, and the rest is counted."""
        command = "printf begin; head -c 100000 /dev/zero | tr '\\\\0' x; printf end"
        done = await self._exec(command, limits=ExecLimits(output_bytes=1000))
        assert done.outcome is Outcome.OK, done
        assert done.stdout.startswith("begin") and done.stdout.endswith("end")
        assert done.dropped_bytes > 0 and len(done.stdout) < 2000

    async def test_limits_are_typed_ends(self) -> None:
        """Endless output, CPU time and files end a call as the capabilities say."""
        attacks = {
            Outcome.OUTPUT_FLOOD: ("yes", ExecLimits(flood_bytes=100_000)),
            Outcome.CPU_LIMIT: ("while :; do :; done", ExecLimits(cpu_seconds=0.5)),
        }
        for outcome, (command, limits) in attacks.items():
            if outcome in self.make_sandbox().capabilities.limits:
                assert (await self._exec(command, limits=limits)).outcome is outcome

    async def test_files_are_kept_as_they_are(self) -> None:
        """Any bytes, any length, in folders that did not exist; commands see them, and files they write are read."""
        data = bytes(range(256)) * 12_000  # about 3 MB
        async with self.make_sandbox() as sandbox:
            await sandbox.write_file("new/folder/data", data)
            assert await sandbox.read_file("new/folder/data") == data
            assert (await sandbox.exec("wc -c < new/folder/data")).stdout.strip() == str(len(data))
            await sandbox.write_file("new/folder/data", "é")
            assert await sandbox.read_file("new/folder/data") == "é".encode()
            await sandbox.write_file("empty", b"")
            assert await sandbox.read_file("empty") == b""
            await sandbox.exec("printf hello > made")
            assert await sandbox.read_file("made") == b"hello"
            path = (await sandbox.exec("pwd")).stdout.strip()
            assert await sandbox.read_file(f"{path}/made") == b"hello"

    async def test_files_that_cannot_be_read_or_written_are_errors(self) -> None:
        """Missing files, folders, and files that are too long."""
        async with self.make_sandbox() as sandbox:
            await _raises(FileNotFoundError, sandbox.read_file("missing"))
            await sandbox.exec("mkdir folder")
            await _raises(OSError, sandbox.read_file("folder"))
            await _raises(OSError, sandbox.write_file("folder", "x"))
            await sandbox.write_file("long", b"x" * 2000)
            await _raises(OSError, sandbox.read_file("long", max_bytes=1000))
            assert (await sandbox.exec("echo on")).stdout == "on\n"

    async def test_files_last_until_it_is_closed(self) -> None:
        """Closed twice and used again, it is empty."""
        async with self.make_sandbox() as sandbox:
            await sandbox.write_file("note", "x")
            await sandbox.close()
            await sandbox.close()
            await _raises(FileNotFoundError, sandbox.read_file("note"))

    async def test_a_sibling_shares_nothing(self) -> None:
        """A sandbox of the same make has its own files."""
        async with self.make_sandbox() as sandbox:
            await sandbox.write_file("note", "x")
            async with sandbox.sibling() as other:
                assert type(other) is type(sandbox)
                await _raises(FileNotFoundError, other.read_file("note"))
                await other.write_file("note", "y")
            assert await sandbox.read_file("note") == b"x"

    async def test_calls_may_overlap(self) -> None:
        """They run at once or in order, and none is lost."""
        async with self.make_sandbox() as sandbox:
            done = await asyncio.gather(*(sandbox.exec(f"echo {number} >> all; echo {number}") for number in range(8)))
            assert [result.stdout for result in done] == [f"{number}\n" for number in range(8)]
            assert len((await sandbox.read_file("all")).split()) == 8

    async def test_a_cancelled_call_leaves_it_usable(self) -> None:
        """Cancelling raises, and the next call works."""
        async with self.make_sandbox() as sandbox:
            await sandbox.exec("true")
            task = asyncio.create_task(sandbox.exec("sleep 60"))
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled(), "exec() swallowed the cancellation"
            assert (await sandbox.exec("echo on")).stdout == "on\n"

    async def test_the_interpreter_lasts(self) -> None:
        """Variables survive calls and errors, where it is a `PythonSandbox`."""
        async with self.make_sandbox() as sandbox:
            if not isinstance(sandbox, PythonSandbox):
                return
            await sandbox.run_python("x = 20")
            assert (await sandbox.run_python("x * 2")).stdout == "40\n"
            failed = await sandbox.run_python("1 / 0")
            assert failed.outcome is Outcome.ERROR and "ZeroDivisionError" in failed.stderr + failed.stdout

    async def _exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        async with self.make_sandbox() as sandbox:
            return await sandbox.exec(command, **options)


async def _raises(kind: type[_Error], work: Awaitable[object]) -> _Error:
    try:
        value = await work
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {value!r:.100}")
