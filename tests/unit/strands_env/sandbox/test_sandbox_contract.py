"""Every sandbox keeps the contract: on this machine, hosted."""

from __future__ import annotations

import code
import contextlib
import io
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from strands_env.sandbox import BubblewrapSandbox, ExecLimits, Sandbox
from strands_env.sandbox.agentcore import AgentCoreSandbox
from strands_env.testing import SandboxContract
from tests.unit.sandbox_support import LIMITS, NO_ISOLATION, requires_isolation


@requires_isolation
class TestBubblewrap(SandboxContract):
    def make_sandbox(self) -> Sandbox:
        return BubblewrapSandbox(limits=LIMITS)


class TestWithoutIsolation(SandboxContract):
    def make_sandbox(self) -> Sandbox:
        return BubblewrapSandbox(limits=LIMITS, isolation=NO_ISOLATION)


class Service:
    """The hosted service, on this machine: its calls and answers have the shapes of the published service model."""

    def __init__(self) -> None:
        self.folders: dict[str, tempfile.TemporaryDirectory[str]] = {}
        self.interpreters: dict[str, code.InteractiveInterpreter] = {}

    def start_code_interpreter_session(self, **request: Any) -> dict[str, Any]:
        name = f"session-{len(self.interpreters)}"
        self.folders[name] = tempfile.TemporaryDirectory()
        self.interpreters[name] = code.InteractiveInterpreter()
        return {"sessionId": name}

    def stop_code_interpreter_session(self, **request: Any) -> dict[str, Any]:
        self.folders.pop(request["sessionId"]).cleanup()
        return {}

    def invoke_code_interpreter(self, **request: Any) -> dict[str, Any]:
        folder = Path(self.folders[request["sessionId"]].name)
        result = getattr(self, request["name"])(folder, request["sessionId"], **request["arguments"])
        return {"stream": [{"result": result}]}

    def executeCommand(self, folder: Path, session: str, command: str) -> dict[str, Any]:
        with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
            code = subprocess.run(
                ["bash", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={}, timeout=5
            ).returncode
            out.seek(0), err.seek(0)
            texts = {"stdout": out.read().decode(), "stderr": err.read().decode(), "exitCode": code}
        return {
            "content": [{"type": "text", "text": texts["stdout"]}],
            "structuredContent": texts,
            "isError": code != 0,
        }

    def executeCode(self, folder: Path, session: str, code: str, language: str) -> dict[str, Any]:
        interpreter = self.interpreters[session]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            interpreter.runsource(code, symbol="single")
        texts = {"stdout": out.getvalue(), "stderr": err.getvalue(), "exitCode": int(bool(err.getvalue()))}
        return {"content": [], "structuredContent": texts, "isError": bool(err.getvalue())}

    def readFiles(self, folder: Path, session: str, paths: list[str]) -> dict[str, Any]:
        try:
            data = (folder / paths[0]).read_bytes()
        except OSError as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        return {"content": [{"type": "resource", "resource": {"type": "blob", "uri": paths[0], "blob": data}}]}

    def writeFiles(self, folder: Path, session: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        try:
            for item in content:
                (folder / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                (folder / item["path"]).write_bytes(item["blob"] if "blob" in item else item["text"].encode())
        except OSError as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        return {"content": [], "isError": False}


class TestHosted(SandboxContract):
    def make_sandbox(self) -> Sandbox:
        return AgentCoreSandbox(Service())


async def test_a_file_travels_in_parts_and_is_replaced_whatever_is_there() -> None:
    async with BubblewrapSandbox(limits=LIMITS, isolation=NO_ISOLATION) as sandbox:
        await sandbox.exec("ln -s /etc/hostname link; mkfifo pipe")
        for name in ("link", "pipe"):
            await sandbox.write_file(name, b"own")
            assert await sandbox.read_file(name) == b"own"
        await sandbox.exec("mkfifo again")
        with pytest.raises(OSError, match="Invalid argument"):
            await sandbox.read_file("again")
        with pytest.raises(OSError, match=r"File too large"):
            await sandbox.write_file("large", bytes(LIMITS.file_bytes + 1))


async def test_a_character_in_the_middle_of_long_output_stays_whole() -> None:
    async with BubblewrapSandbox(limits=LIMITS, isolation=NO_ISOLATION) as sandbox:
        done = await sandbox.exec("printf 'a%.0s' $(seq 499); printf é; printf 'b%.0s' $(seq 499)")
        assert done.stdout == "a" * 499 + "é" + "b" * 499
        done = await sandbox.exec("printf aé", limits=ExecLimits(output_bytes=3))
        assert done.stdout == "aé"


@pytest.mark.parametrize("kind", [TestWithoutIsolation, TestHosted])
async def test_a_misspelt_option_of_a_call_is_named(kind: type[SandboxContract]) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'timeut'.*did you mean 'timeout'"):
        await kind().make_sandbox().exec("true", timeut=1)
