"""`AgentCoreCodeEnv`: `CodeSandboxEnv` on Amazon Bedrock AgentCore Code Interpreter."""

from __future__ import annotations

from typing import Any

from strands_env.environments.code_sandbox import CodeMode, CodeSandboxEnv
from strands_env.tools.code_interpreter import (
    CODE_INTERPRETER_ID,
    CodeInterpreterQuotas,
    CodeInterpreterSandbox,
    make_code_interpreter_client,
)


class AgentCoreCodeEnv(CodeSandboxEnv):
    """Code in one hosted session an episode; the session starts with the first tool call.

    Args:
        client: boto3 client of `bedrock-agentcore`. Share one among environments; None makes one.
        region: AWS region of a made client.
        mode: Which tools the agent has.
        code_interpreter_id: Which interpreter of the account.
        quotas: Bounds on sessions and calls. Share one object among environments.
        call_seconds: Time a call may take.
        **options: Further arguments of `CodeSandboxEnv` and `Environment`.

    Raises:
        SandboxUnavailableError: No client was given, and boto3, credentials or a region are missing.
    """

    def __init__(
        self,
        *,
        client: Any = None,
        region: str | None = None,
        mode: CodeMode | str = CodeMode.CODE,
        code_interpreter_id: str = CODE_INTERPRETER_ID,
        quotas: CodeInterpreterQuotas | None = None,
        call_seconds: float = 300.0,
        **options: Any,
    ) -> None:
        hosted = CodeInterpreterSandbox(
            client if client is not None else make_code_interpreter_client(region=region),
            code_interpreter_id=code_interpreter_id,
            quotas=quotas,
            call_seconds=call_seconds,
        )
        super().__init__(mode=mode, sandbox=hosted, **options)
