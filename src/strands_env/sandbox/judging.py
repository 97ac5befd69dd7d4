"""Hidden tests that the code they judge can neither read nor forge: `judge`."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from .bubblewrap import command as bubblewrap
from .bubblewrap.sandbox import MAX_OUTPUT_BYTES, BubblewrapSandbox, SandboxSlots
from .contract import ExecResult, Isolation, Outcome, SandboxError

DEFAULT_JUDGE_SECONDS = 60.0
"""Seconds a judgment may take."""
MAX_JUDGES = 64
"""Judgments at the same time in one event loop; their sandboxes come on top of those they judge."""
MAX_EXCHANGE_BYTES = 32 << 20
"""What the checks can print and ask for between two answers."""
SHOWN_CHARS = 10_000
"""Characters of the checks' own output that a verdict keeps."""

# Separate slots: a judgment that waited for a slot of the sandbox it judges could wait for itself.
_slots = SandboxSlots(MAX_JUDGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What hidden tests found.

    Attributes:
        passed: The checks ran to their end.
        note: Why they did not: a traceback or the limit that was met. It quotes the checks; do not show it to a policy.
        output: What the checks printed.
        runs: Number of runs and calls of the judged code.
    """

    passed: bool
    note: str = ""
    output: str = ""
    runs: int = 0


async def judge(
    sandbox: BubblewrapSandbox,
    checks: str,
    *,
    files: Mapping[str, str] | None = None,
    file: str = "solution.py",
    timeout: float = DEFAULT_JUDGE_SECONDS,
    read_only: Sequence[str | os.PathLike[str]] = (),
) -> Verdict:
    """Judge what is in a sandbox with hidden tests.

    The checks run in a sandbox of their own: another process namespace, other files, and another user where this
    process is root. They reach the judged one only through `solution`, whose answers are text or plain data, and pass
    when they run to their end without an exception.

    ```python
    async with BubblewrapSandbox() as sandbox:
        verdict = await judge(sandbox, "assert solution.add(2, 2) == 4", files={"solution.py": code})
    ```

    Args:
        sandbox: Holds the judged code, with whatever earlier calls left there.
        checks: Python code. `solution.run(command, stdin=...)` runs a command in the judged sandbox and gives
            `exit_code`, `stdout`, `stderr`, `outcome`; without a command it runs `file` as a program.
            `solution.name(*args)` calls a function of `file`, each call in a process of its own; one that gives no
            answer raises `SolutionError`.
        files: Files to write into the judged work directory first: path to text.
        file: The judged Python file.
        timeout: Seconds for all of it.
        read_only: Files and folders of this machine to show to the checks alone.

    Returns:
        The verdict. Whatever the judged code breaks, its own sandbox included, fails it.

    Raises:
        SandboxError: The checks could not be run, through no fault of the judged code.
        ValueError: The checks are not Python, or a path leads out of the work directory.
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
    blueprint = sandbox.blueprint
    shown = tuple(dict.fromkeys((*blueprint.read_only, *(os.path.abspath(os.fspath(path)) for path in read_only))))
    limits = replace(blueprint.limits, wall_seconds=timeout, cpu_seconds=timeout, flood_bytes=8 * MAX_EXCHANGE_BYTES)
    for path, text in (files or {}).items():
        if failed := await _write(sandbox, path, text):
            return Verdict(passed=False, note=failed)
    async with BubblewrapSandbox.from_blueprint(replace(blueprint, limits=limits, read_only=shown), _slots) as judging:
        return await _Judgment(sandbox, judging, timeout).verdict(checks, file)


class _Judgment:
    """One conversation between checks and judged code, led from here."""

    def __init__(self, judged: BubblewrapSandbox, judging: BubblewrapSandbox, timeout: float) -> None:
        self.judged = judged
        self.judging = judging
        self.end = asyncio.get_running_loop().time() + timeout
        self.timeout = timeout
        self.marker = secrets.token_hex(16)
        self.output = ""
        self.runs = 0

    async def verdict(self, checks: str, file: str) -> Verdict:
        python = self.judged.blueprint.python.executable
        folder = bubblewrap.programs(isolated=self.judged.blueprint.isolation is Isolation.BUBBLEWRAP)
        code = (
            f"import json, sys\nsys.path.insert(0, {folder!r})\nfrom inside.checks import Checks\nsys.path.pop(0)\n"
            f"_checks = Checks({checks!r}, python={python!r}, file={file!r}, programs={folder!r})\n"
        )
        answer: dict[str, Any] | None = None
        while self._left() > 0:
            code += f"print('\\n{self.marker}' + _checks.resume(json.loads({json.dumps(answer)!r})))"
            event = await self._resume(code)
            if isinstance(event, Verdict):
                return event
            if "invalid" in event:
                raise ValueError(f"the checks are not Python: {event['invalid']}")
            if "end" in event:
                return self._ended(event["end"])
            if self._left() <= 0:
                break
            answer, code = await self._run(event["run"]), ""
        return self._ended(f"the judgment took longer than {self.timeout:g} s")

    def _left(self) -> float:
        return self.end - asyncio.get_running_loop().time()

    def _ended(self, note: str | None) -> Verdict:
        return Verdict(passed=note is None, note=note or "", output=self.output[-SHOWN_CHARS:], runs=self.runs)

    async def _resume(self, code: str) -> dict[str, Any] | Verdict:
        """Resume the checks until their next event."""
        result = await self.judging.run_trusted(code, timeout=self._left(), output_bytes=MAX_EXCHANGE_BYTES)
        if result.outcome is Outcome.SANDBOX_LOST:
            raise SandboxError(f"the sandbox of the checks was lost: {result.note}")
        printed, found, line = result.stdout.rpartition(f"\n{self.marker}")
        if not found and result.dropped_bytes:
            raise SandboxError(f"the checks printed or asked for more than {MAX_EXCHANGE_BYTES // 2} bytes at a time")
        self.output += printed if found else result.stdout
        if not found or result.is_error:
            return self._ended(f"the checks did not end: {result.to_text(2000)}")
        event: dict[str, Any] = json.loads(line)
        return event

    async def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run what the checks ask for beside the judged code. Whatever comes back is data."""
        self.runs += 1
        seconds = self._left() if request["timeout"] is None else min(request["timeout"], self._left())
        done: ExecResult = await self.judged.exec(
            request["command"], timeout=seconds, stdin=request["stdin"], output_bytes=MAX_OUTPUT_BYTES
        )
        return {
            "exit_code": done.exit_code,
            "stdout": done.stdout,
            "stderr": done.stderr or done.note,
            "outcome": done.outcome.value,
            "dropped_bytes": done.dropped_bytes,
        }


async def _write(sandbox: BubblewrapSandbox, path: str, text: str) -> str:
    """Write a file into the work directory; why it could not be written, or nothing."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ValueError(f"files are written below the work directory, got the path {path!r}")
    target, folder = shlex.quote(f"./{pure}"), shlex.quote(f"./{pure.parent}")
    done = await sandbox.exec(f"rm -rf -- {target} && mkdir -p -- {folder} && cat > {target}", stdin=text)
    return f"{path} could not be written: {done.to_text(500)}" if done.is_error else ""
