"""`judge`: hidden tests that the code they judge can neither read nor forge."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from strands_sglang.exceptions import check_positive

from ..contract import ExecLimits, ExecResult, Outcome, PythonSandbox, Sandbox, SandboxError, SandboxLostError

DEFAULT_JUDGE_SECONDS = 60.0
"""Seconds a judgment may take."""
MAX_EXCHANGE_BYTES = 32 << 20
"""Most that the checks can print and ask for between two answers."""
MAX_ANSWER_BYTES = 2 << 20
"""Kept of each output stream of the judged code."""
SHOWN_CHARS = 10_000
"""Characters of the checks' own output that a verdict keeps."""
_INLINE_CHARS = 20_000  # longer answers go to the checks as a file
_CHECKS = Path(__file__).with_name("checks.py")
_FOLDER = "hidden_checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of hidden tests.

    Attributes:
        passed: The checks ran to their end.
        note: Why they did not: a traceback or the limit that was met. It quotes the checks; do not show it to a policy.
        output: Output of the checks.
        runs: Number of runs and calls of the judged code.
    """

    passed: bool
    note: str = ""
    output: str = ""
    runs: int = 0


async def judge(
    sandbox: Sandbox,
    checks: str,
    *,
    files: Mapping[str, str] | None = None,
    file: str = "solution.py",
    timeout: float = DEFAULT_JUDGE_SECONDS,
    judging: Sandbox | None = None,
) -> Verdict:
    """Judge the code in a sandbox with hidden tests.

    The checks run in another sandbox: another process namespace, other files, and another user where this
    process is root. They reach the judged one only through `solution`, whose answers are text or plain data, and pass
    when they run to their end without an exception.

    ```python
    async with BubblewrapSandbox() as sandbox:
        verdict = await judge(sandbox, "assert solution.add(2, 2) == 4", files={"solution.py": code})
    ```

    Args:
        sandbox: Holds the judged code, with the remains of earlier calls.
        checks: Python code. `solution.run(command, stdin=...)` runs a command in the judged sandbox and gives
            `exit_code`, `stdout`, `stderr`, `outcome`; without a command it runs `file` as a program.
            `solution.name(*args)` calls a function of `file`, each call in a new process; one that gives no
            answer raises `SolutionError`.
        files: Files to write into the judged work directory first: path to text.
        timeout: Seconds for all of it.
        judging: Sandbox of the checks, with a lasting Python interpreter; it is closed in the end. A sibling of
            `sandbox` if None.

    Returns:
        The verdict. Judged code that breaks something, its own sandbox included, fails.

    Raises:
        SandboxError: The checks could not be run, through no fault of the judged code.
        ValueError: The checks are not Python, a path leads out of the work directory, or the sandbox of the checks has
            no lasting interpreter.
    """
    check_positive("seconds", timeout=timeout)
    checking = sandbox.sibling() if judging is None else judging
    if not isinstance(checking, PythonSandbox):
        raise ValueError(
            f"checks need a sandbox with a lasting Python interpreter, and {type(checking).__name__} has none: "
            "give one for them, e.g. judging=BubblewrapSandbox()"
        )
    for path, text in (files or {}).items():
        if failed := await _write(sandbox, path, text):
            return Verdict(passed=False, note=failed)
    async with checking:
        end = asyncio.get_running_loop().time() + timeout
        return await _Judgment(judged=sandbox, judging=checking, timeout=timeout, end=end).verdict(checks, file)


@dataclass(kw_only=True)
class _Judgment:
    """A conversation between checks and judged code, led from here."""

    judged: Sandbox
    judging: PythonSandbox
    timeout: float
    end: float
    marker: str = field(default_factory=lambda: secrets.token_hex(16))
    output: str = ""
    runs: int = 0

    async def verdict(self, checks: str, file: str) -> Verdict:
        code = await self._write_checks(checks, file)
        answer: dict[str, Any] | None = None
        while self._left() > 0:
            text = json.dumps(answer)
            answer_code = repr(text)
            if len(text) > _INLINE_CHARS:
                await self.judging.write_file(f"{_FOLDER}/answer", text)
                answer_code = f"open('{_FOLDER}/answer', encoding='utf-8').read()"
            # The marker is new for each judgment: what the checks print themselves is not taken for an event.
            code += f"print('\\n{self.marker}' + _checks.resume(json.loads({answer_code})))"
            event = await self._resume(code)
            if isinstance(event, Verdict):
                return event
            if "invalid" in event:
                raise ValueError(f"the checks are not Python: {event['invalid']}")
            if "end" in event:
                return self._make_verdict(event["end"])
            if self._left() <= 0:
                break
            answer, code = await self._run(event["run"]), ""
        return self._make_verdict(f"the judgment took longer than {self.timeout:g} s")

    async def _write_checks(self, checks: str, file: str) -> str:
        """Bring the checks and their runner into their sandbox. Returns the code that begins."""
        await self.judging.write_file(f"{_FOLDER}/checks.py", _CHECKS.read_bytes())
        await self.judging.write_file(f"{_FOLDER}/source", checks.encode("utf-8", "surrogatepass"))
        return (
            "import json, os, sys\nsys.set_int_max_str_digits(0)\n"
            f"sys.path.insert(0, os.path.abspath({self.judging.capabilities.work!r}))\n"
            f"from {_FOLDER}.checks import Checks\nsys.path.pop(0)\n"
            f"with open('{_FOLDER}/source', encoding='utf-8', errors='surrogatepass', newline='') as _file:\n"
            "    _source = _file.read()\n"
            f"_checks = Checks(_source, python={self.judged.capabilities.python!r}, file={file!r})\n"
        )

    def _left(self) -> float:
        return self.end - asyncio.get_running_loop().time()

    def _make_verdict(self, note: str | None) -> Verdict:
        return Verdict(passed=note is None, note=note or "", output=self.output[-SHOWN_CHARS:], runs=self.runs)

    async def _resume(self, code: str) -> dict[str, Any] | Verdict:
        left = max(self._left(), 0.001)
        limits = ExecLimits(
            wall_seconds=left,
            cpu_seconds=left,
            output_bytes=MAX_EXCHANGE_BYTES,
            flood_bytes=8 * MAX_EXCHANGE_BYTES,
        )
        result = await self.judging.run_python(code, limits=limits)
        if result.outcome is Outcome.SANDBOX_LOST:
            raise SandboxError(f"the sandbox of the checks was lost: {result.note}")
        printed, separator, line = result.stdout.rpartition(f"\n{self.marker}")
        if not separator and result.dropped_bytes:
            raise SandboxError(f"the checks printed or asked for more than {MAX_EXCHANGE_BYTES // 2} bytes at a time")
        self.output += printed if separator else result.stdout
        if not separator or result.is_error:
            return self._make_verdict(f"the checks did not end: {result.to_text(2000)}")
        event: dict[str, Any] = json.loads(line)
        return event

    async def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the request of the checks beside the judged code. Its answer is data."""
        self.runs += 1
        seconds = self._left() if request["timeout"] is None else min(request["timeout"], self._left())
        done: ExecResult = await self.judged.exec(
            request["command"],
            timeout=seconds,
            stdin=request["stdin"],
            limits=ExecLimits(output_bytes=MAX_ANSWER_BYTES),
        )
        return {
            "exit_code": done.exit_code,
            "stdout": done.stdout,
            "stderr": done.stderr or done.note,
            "outcome": done.outcome.value,
            "dropped_bytes": done.dropped_bytes,
        }


async def _write(sandbox: Sandbox, path: str, text: str) -> str:
    """Write a file into the work directory; why it could not be written, or nothing."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ValueError(f"files are written below the work directory, got the path {path!r}")
    try:
        try:
            await sandbox.write_file(str(pure), text)
        except IsADirectoryError:  # earlier code has put it there
            await sandbox.exec(["rm", "-rf", "--", f"./{pure}"])
            await sandbox.write_file(str(pure), text)
    except (OSError, SandboxLostError) as error:
        return f"{path} could not be written: {error}"
    return ""
