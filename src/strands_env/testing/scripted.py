"""`ScriptedModel`: a Strands model that follows a script, with token data and without a tokenizer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Literal, TypeAlias

from strands.models import Model

from strands_sglang.trajectory import TokenManager

SCRIPTED_LOGPROB = -0.5
"""Log-probability of every scripted token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A tool call of a scripted reply; see `call`."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """A scripted model reply; see `reply`."""

    text: str
    calls: tuple[ScriptedCall, ...] = ()
    stop_reason: Literal["end_turn", "max_tokens"] | None = None


def call(name: str, /, **arguments: Any) -> ScriptedCall:
    """A tool call: `call("calculator", expression="2 + 2")`."""
    return ScriptedCall(name=name, input=arguments)


def reply(
    text: str = "", *calls: ScriptedCall, stop_reason: Literal["end_turn", "max_tokens"] | None = None
) -> ScriptedReply:
    """A reply of text and tool calls; `stop_reason="max_tokens"` makes it one that was cut off."""
    return ScriptedReply(text=text, calls=calls, stop_reason=stop_reason)


ScriptItem: TypeAlias = "ScriptedReply | ScriptedCall | str | BaseException"
"""A reply, a lone tool call, a text, or an error to raise."""
Script: TypeAlias = "Iterable[ScriptItem] | Callable[[list[dict[str, Any]]], ScriptItem]"
"""Replies in order, or a function of the messages so far."""


class ScriptedModel(Model):
    """A model for tests: it answers from a script and keeps tokens as `SGLangModel` does.

    A token is a byte of UTF-8 text: prompts are the text of new messages, replies the text of the reply. Ids are real
    enough to test masks, slices and exports, and need no tokenizer. `call_count` and `last_messages` tell of its calls.

    ```python
    env = MyEnv(model_factory=lambda: ScriptedModel([call("calculator", expression="2+2"), "It is 4."]))
    ```

    Args:
        script: The replies, or a function from messages to a reply. A script that has ended raises `IndexError`.
        delay: Seconds each call takes.
        token_data: False plays a provider without token data.
    """

    def __init__(self, script: Script, *, delay: float = 0.0, token_data: bool = True) -> None:
        self._script = script if callable(script) else iter(script)
        self._delay = delay
        self.config: dict[str, Any] = {"model_id": "scripted"}  # the SDK reads it for telemetry
        self._seen = 0
        self._calls = 0
        self.tool_parse_errors: dict[str, int] = {}
        self.call_count = 0
        self.last_messages: list[dict[str, Any]] = []
        self.token_manager: TokenManager | None = TokenManager() if token_data else None

    def update_config(self, **model_config: Any) -> None:
        """Change the configuration."""
        self.config.update(model_config)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return self.config

    def reset(self) -> None:
        """Forget all tokens; the script continues."""
        self._seen = 0
        if self.token_manager is not None:
            self.token_manager.reset()

    async def count_tokens(self, messages: Any, *args: Any, **kwargs: Any) -> int:
        """Bytes of the text of all messages."""
        return len(_encode(messages))

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """Answer from the script."""
        item = self._next(messages)
        await asyncio.sleep(self._delay)
        if isinstance(item, BaseException):
            raise item
        prompt, sampled = self._record(messages, system_prompt, item)
        yield {"messageStart": {"role": "assistant"}}
        if item.text:
            yield {"contentBlockStart": {"start": {}}}  # the SDK drops a block without its stop
            yield {"contentBlockDelta": {"delta": {"text": item.text}}}
            yield {"contentBlockStop": {}}
        for tool_call in item.calls:
            self._calls += 1
            start = {"toolUseId": f"call_{self._calls}", "name": tool_call.name}
            yield {"contentBlockStart": {"start": {"toolUse": start}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(tool_call.input)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": item.stop_reason or ("tool_use" if item.calls else "end_turn")}}
        usage = {"inputTokens": prompt, "outputTokens": sampled, "totalTokens": prompt + sampled}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": int(self._delay * 1000)}}}

    async def structured_output(
        self, output_model: Any, prompt: Any, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The next scripted text, read as JSON of the output model."""
        item = self._next(prompt)
        await asyncio.sleep(self._delay)
        if isinstance(item, BaseException):
            raise item
        yield {"output": output_model.model_validate_json(item.text)}

    def _next(self, messages: Any) -> ScriptedReply | BaseException:
        self.call_count += 1
        self.last_messages = list(messages)
        if callable(self._script):
            item = self._script(self.last_messages)
        else:
            item = next(self._script, IndexError(f"the script has ended, at call {self.call_count}"))
        match item:
            case str():
                return reply(item)
            case ScriptedCall():
                return reply("", item)
        return item

    def _record(self, messages: Any, system_prompt: str | None, item: ScriptedReply) -> tuple[int, int]:
        """Length of the whole prompt and of the reply, which also go into the token manager."""
        # The assistant's replies were recorded when sampled; only a first prompt has others' replies in it.
        new = [message for message in messages[self._seen :] if self._seen == 0 or message["role"] != "assistant"]
        prompt_ids = list((system_prompt or "").encode()) if self._seen == 0 else []
        prompt_ids += _encode(new)
        calls = "".join(json.dumps({"name": each.name, "arguments": each.input}) for each in item.calls)
        sampled_ids = list(f"{item.text}{calls}\n".encode("utf-8", "surrogatepass"))
        self._seen = len(messages)
        if self.token_manager is None:
            return len(_encode(messages)), len(sampled_ids)
        self.token_manager.add_prompt(prompt_ids)
        prompt = len(self.token_manager)
        self.token_manager.add_response(sampled_ids, [SCRIPTED_LOGPROB] * len(sampled_ids))
        return prompt, len(sampled_ids)


def scripted_from_args(*, script: str = "I do not know.", **_: Any) -> Callable[[], ScriptedModel]:
    """The model factory of `--backend scripted`.

    Args:
        script: Its answer, always the same; or a JSON list of a rollout's replies, the last of which repeats: texts,
            and tool calls as `{"tool": name, "input": {...}}`.
    """
    try:
        items = json.loads(script)
    except ValueError:
        items = None
    replies: list[Any] = []
    for item in items if isinstance(items, list) else [script]:
        if isinstance(item, dict) and item.keys() == {"tool", "input"} and isinstance(item["input"], dict):
            replies.append(call(str(item["tool"]), **item["input"]))
        elif isinstance(item, str):
            replies.append(item)
        else:
            raise ValueError(f'--script: a reply must be a text or {{"tool": NAME, "input": {{...}}}}, got {item!r}')
    if not replies or not isinstance(replies[-1], str):
        raise ValueError(f"--script: the last reply must be a text, which ends the rollout, got {script!r}")
    return lambda: ScriptedModel(chain(replies, repeat(replies[-1])))


def _encode(messages: Sequence[Any]) -> list[int]:
    ids: list[int] = []
    for message in messages:
        text = json.dumps(message["content"], ensure_ascii=False, default=repr)
        ids += f"<{message['role']}>{text}".encode("utf-8", "surrogatepass")
    return ids
