"""A hosted sandbox: Amazon Bedrock AgentCore Code Interpreter (extra `aws`).

Service API: `StartCodeInterpreterSession`, `InvokeCodeInterpreter`, `StopCodeInterpreterSession` of the boto3 client
`bedrock-agentcore`. The client is given, or made when it is first needed; only then is `boto3` imported.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import shlex
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Unpack

from strands_env.core.limits import shorten
from strands_env.core.threads import default_threads
from strands_sglang.exceptions import check_positive, install_command, refuse_unknown

from .contract import (
    MAX_FILE_BYTES,
    ExecLimits,
    ExecOptions,
    ExecResult,
    Outcome,
    PythonSandbox,
    SandboxCapabilities,
    SandboxError,
    SandboxLostError,
    SandboxUnavailableError,
    wall_seconds,
)

logger = logging.getLogger(__name__)

CODE_INTERPRETER_ID = "aws.codeinterpreter.v1"
"""The interpreter AWS provides."""
SERVICE = "bedrock-agentcore"
NO_RESULT = "No result returned."


def make_code_interpreter_client(*, region: str | None = None, session: Any = None) -> Any:
    """A boto3 client of the service.

    Args:
        region: AWS region; that of the session or the environment if None.
        session: boto3 session with credentials; the default one if None.

    Raises:
        SandboxUnavailableError: boto3, credentials or a region are missing.
    """
    try:
        import boto3
    except ImportError as error:
        raise SandboxUnavailableError(f"the hosted sandbox needs boto3: {install_command('aws')}") from error
    session = session or boto3.Session(region_name=region)
    needs = "an AWS region: give region= or set AWS_REGION" if (region or session.region_name) is None else ""
    if session.get_credentials() is None:
        needs = "AWS credentials: run 'aws configure' or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if needs:
        raise SandboxUnavailableError(f"the hosted sandbox needs {needs}")
    return session.client(SERVICE, region_name=region)


class CodeInterpreterQuotas:
    """Quotas of an account; share one object among all sandboxes of an account.

    Args:
        session_concurrency: Sessions at the same time; further ones wait.
        invoke_tps: Calls a second; a burst of one second's calls is let through. None for no limit.
    """

    def __init__(self, session_concurrency: int = 100, invoke_tps: float | None = None) -> None:
        check_positive("sessions", whole=True, session_concurrency=session_concurrency)
        check_positive("calls a second", optional=True, invoke_tps=invoke_tps)
        self.session_semaphore = asyncio.Semaphore(session_concurrency)
        self.invoke_tps = invoke_tps
        self._next_free = 0.0

    async def invoke_turn(self) -> None:
        """Wait until another call may be made."""
        if self.invoke_tps is None:
            return
        now = time.monotonic()
        # Each call books 1/tps of time; up to a second's worth of unused time is kept for a burst.
        start = max(self._next_free, now - 1.0)
        self._next_free = start + 1.0 / self.invoke_tps
        await asyncio.sleep(max(0.0, self._next_free - now))


@dataclass(eq=False)
class AgentCoreSandbox(PythonSandbox):
    """A `PythonSandbox` in one session of the service; the session starts with the first call.

    Args:
        client: boto3 client of `bedrock-agentcore`, or anything with its three methods. None makes one.
        region: AWS region of a made client.
        session_seconds: Time after which the service ends the session itself.
        call_seconds: Time a call may take here; then the session is ended, for the code may still run.
        quotas: Bounds shared with other sandboxes.
    """

    client: Any = None
    _: KW_ONLY
    region: str | None = None
    code_interpreter_id: str = CODE_INTERPRETER_ID
    session_name: str = "strands-env"
    session_seconds: int = 3600
    call_seconds: float = 300.0
    quotas: CodeInterpreterQuotas | None = None
    session_id: str | None = field(default=None, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)
    _calls: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._quotas = self.quotas or CodeInterpreterQuotas()

    @property
    def capabilities(self) -> SandboxCapabilities:
        """An interpreter that lasts. The service keeps its own limits; only the time of a call is kept here."""
        return SandboxCapabilities(work=".", python="python3", background=True)

    def sibling(self) -> AgentCoreSandbox:
        """Another session with the same client and quotas."""
        return replace(self, quotas=self._quotas)

    async def start(self) -> None:
        """Start the session, if none is running.

        Raises:
            SandboxUnavailableError: boto3, credentials or a region are missing.
            Exception: Raised by the client.
        """
        async with self._lock:
            if self.session_id is not None:
                return
            if self.client is None:
                self.client = await default_threads.run(make_code_interpreter_client, region=self.region)
            await self._quotas.session_semaphore.acquire()
            starting = asyncio.ensure_future(
                default_threads.run(
                    self.client.start_code_interpreter_session,
                    codeInterpreterIdentifier=self.code_interpreter_id,
                    name=self.session_name,
                    sessionTimeoutSeconds=self.session_seconds,
                )
            )
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:
                await asyncio.wait({starting})  # it cannot be stopped half-way, and would run for its whole time
                raise
            finally:
                if starting.done() and starting.exception() is None:
                    self.session_id = str(starting.result()["sessionId"])
                else:
                    self._quotas.session_semaphore.release()

    async def run_python(
        self, code: str, *, timeout: float | None = None, limits: ExecLimits | None = None
    ) -> ExecResult:
        """Run Python code; see `PythonSandbox`."""
        return await self._run("executeCode", {"code": code, "language": "python"}, timeout, limits)

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a command; see `Sandbox`. Standard input is written to a file of `/tmp` first."""
        refuse_unknown("exec", options, ExecOptions.__annotations__)
        cwd, stdin = options.get("cwd"), options.get("stdin")
        line = command if isinstance(command, str) else shlex.join(command)
        if not isinstance(command, str) and not command:
            return ExecResult(outcome=Outcome.REFUSED, note="the command is empty")
        if (env := options.get("env")) or cwd is not None or stdin:
            # The service's `executeCommand` takes one line: it has no fields for variables, folder or input.
            shell = ["env", *(f"{name}={value}" for name, value in (env or {}).items()), "bash", "-c", line]
            line = shlex.join(shell)
            if stdin:
                self._calls += 1
                path = f"/tmp/strands-env-stdin-{self._calls}"
                try:
                    await self.write_file(path, stdin)
                except OSError as error:
                    return ExecResult(outcome=Outcome.REFUSED, note=f"no room for standard input: {error}")
                line = f"{line} < {path}"
            if cwd is not None:
                line = f"cd {shlex.quote(cwd)} && {line}"
        return await self._run("executeCommand", {"command": line}, options.get("timeout"), options.get("limits"))

    async def read_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES, **kwargs: Any) -> bytes:
        """Contents of a file; see `Sandbox`. The service does not say why a file cannot be read."""
        result = await self._file_call("readFiles", {"paths": [path]}, path)
        for block in result.get("content") or ():
            resource = block.get("resource", block) if isinstance(block, dict) else {}
            data = resource.get("blob", resource.get("data"))
            content: bytes = resource.get("text", "").encode() if data is None else bytes(data)
            if len(content) > max_bytes:
                raise OSError(errno.EFBIG, f"the file has more than {max_bytes} bytes", path)
            return content
        raise FileNotFoundError(errno.ENOENT, "the service returned no file", path)

    async def write_file(self, path: str, content: str | bytes, **kwargs: Any) -> None:
        """Make a file, or replace it; see `Sandbox`."""
        part = {"text": content} if isinstance(content, str) else {"blob": content}
        await self._file_call("writeFiles", {"content": [{"path": path, **part}]}, path)

    async def events(self, name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        """Make a call and collect its events."""
        await self.start()
        await self._quotas.invoke_turn()

        def invoke() -> list[dict[str, Any]]:
            answer = self.client.invoke_code_interpreter(
                codeInterpreterIdentifier=self.code_interpreter_id,
                sessionId=self.session_id,
                name=name,
                arguments=arguments,
            )
            return list(answer.get("stream", ()))  # reading the stream blocks, too

        return await default_threads.run(invoke)

    async def close(self) -> None:
        """End the session. A failure to end it is logged: the service ends it after its time."""
        async with self._lock:
            session, self.session_id = self.session_id, None
            if session is None:
                return
            try:
                await default_threads.run(
                    self.client.stop_code_interpreter_session,
                    codeInterpreterIdentifier=self.code_interpreter_id,
                    sessionId=session,
                )
            except Exception as error:
                logger.warning("session=<%s>, error=<%s> | session could not be stopped", session, error)
            finally:
                self._quotas.session_semaphore.release()

    async def _run(
        self, name: str, arguments: dict[str, Any], timeout: float | None, limits: ExecLimits | None
    ) -> ExecResult:
        seconds = wall_seconds(timeout, limits, self.call_seconds)
        started = time.monotonic()
        try:
            events = await self._within(seconds, name, arguments)
        except TimeoutError:
            note = f"stopped after the time limit of {seconds:g} s; variables and files are lost"
            return ExecResult(outcome=Outcome.TIMEOUT, note=note, seconds=time.monotonic() - started)
        return _result(events, time.monotonic() - started, None if limits is None else limits.output_bytes)

    async def _file_call(self, name: str, arguments: dict[str, Any], path: str) -> dict[str, Any]:
        try:
            events = await self._within(self.call_seconds, name, arguments)
        except TimeoutError as error:
            raise SandboxLostError(f"{name} took longer than {self.call_seconds:g} s; the session was ended") from error
        result = _result_of(events)
        if not isinstance(result, str) and not result.get("isError"):
            return result
        text = result if isinstance(result, str) else text_of(result)
        # The service has no error code for a missing file, only its words.
        is_missing = text is not result and ("no such file" in text.lower() or "not found" in text.lower())
        raise OSError(errno.ENOENT if is_missing else errno.EIO, text, path)

    async def _within(self, seconds: float, name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a call. After its time, or when it is cancelled, the session ends: the code may still run.

        Raises:
            TimeoutError: The time has passed.
            SandboxError: The service failed.
        """
        try:
            await self.start()
            async with asyncio.timeout(seconds):
                return await self.events(name, arguments)
        except TimeoutError:
            await self.close()
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self.close())
            raise
        except SandboxError:
            raise
        except Exception as error:
            raise SandboxError(f"the code interpreter service failed: {type(error).__name__}: {error}") from error


def text_of(result: dict[str, Any]) -> str:
    """The text of a result."""
    content = result.get("content") or ()
    return "\n".join(block["text"] for block in content if isinstance(block, dict) and block.get("type") == "text")


def errors_of(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Kind and message of every error among the events."""
    errors = [(kind, value) for event in events for kind, value in event.items() if kind.endswith("Exception")]
    return [(kind, value.get("message", kind) if isinstance(value, dict) else str(value)) for kind, value in errors]


def _result_of(events: list[dict[str, Any]]) -> dict[str, Any] | str:
    """The result among the events, or why the call was refused; `SandboxError` if throttled, denied, gone or broken."""
    for event in events:
        if "result" in event:
            result: dict[str, Any] = event["result"]
            return result
    errors = errors_of(events)
    words = "; ".join(f"{kind}: {message}" for kind, message in errors) or NO_RESULT
    # Only a validation error blames the request; throttling must never score as a failure of the code.
    if errors and all(kind == "validationException" for kind, _ in errors):
        return words
    raise SandboxError(f"the code interpreter service failed: {words}")


def _result(events: list[dict[str, Any]], seconds: float, output_bytes: int | None) -> ExecResult:
    result = _result_of(events)
    if isinstance(result, str):
        return ExecResult(outcome=Outcome.REFUSED, note=result, seconds=seconds)
    structured = result.get("structuredContent") or {}
    exit_code = structured.get("exitCode")
    failed = bool(result.get("isError")) or exit_code not in (None, 0)
    streams = [structured.get(name) or "" for name in ("stdout", "stderr")]
    if not any(streams):
        streams[0] = text_of(result)
    kept = [text if output_bytes is None else shorten(text, output_bytes) for text in streams]
    return ExecResult(
        outcome=Outcome.ERROR if failed else Outcome.OK,
        exit_code=exit_code if exit_code is not None or not failed else 1,
        stdout=kept[0],
        stderr=kept[1],
        dropped_bytes=sum(map(len, streams)) - sum(map(len, kept)) if kept != streams else 0,
        seconds=seconds,
    )
