"""`CodeInterpreterToolkit`: the tools of Amazon Bedrock AgentCore Code Interpreter (extra `aws`)."""

from __future__ import annotations

from typing import Any

from strands_env.sandbox.agentcore import NO_RESULT, AgentCoreSandbox, CodeInterpreterQuotas, errors_of, text_of

from .code import DEFAULT_MAX_OUTPUT_CHARS, CodeTools


class CodeInterpreterToolkit(CodeTools):
    """The tools `execute_code` and `execute_command` over a session of the service.

    Args:
        quotas: Bounds shared with other toolkits.
        max_output_chars: Characters of each output stream in a result.
    """

    def __init__(
        self,
        client: Any = None,
        session_name: str = "strands-env",
        quotas: CodeInterpreterQuotas | None = None,
        *,
        max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS,
    ) -> None:
        self._hosted = AgentCoreSandbox(client, session_name=session_name, quotas=quotas)
        super().__init__(self._hosted, max_output_chars=max_output_chars)

    @property
    def session_id(self) -> str | None:
        """Id of the running session, or None."""
        return self._hosted.session_id

    async def start_session(self) -> None:
        """Start the session, if none is running."""
        await self._hosted.start()

    async def invoke(self, name: str, arguments: dict[str, Any]) -> str:
        """Make any call of the service; its text, or its errors as text."""
        events = await self._hosted.events(name, arguments)
        result = next((event["result"] for event in events if "result" in event), None)
        if result is not None:
            return text_of(result) or str(result.get("content", ""))
        # A failure of the service comes as an event too, and is text here, as upstream has it.
        return "\n".join(f"{kind}: {message}" for kind, message in errors_of(events)) or NO_RESULT

    async def cleanup(self) -> None:
        """End the session."""
        await self._hosted.close()
