#!/usr/bin/env bash
# strands-agents 1.62.0 (PyPI), strands/agent/agent.py, Agent._convert_prompt_to_messages.
#
# A MessageAddedEvent may come before the BeforeInvocationEvent of the invocation that adds the message. When an agent's
# history ends with tool calls that were never answered (an invocation broke, or the history was restored), the next
# invocation answers them itself ("Tool was interrupted."). It does so while it reads the prompt, before its trace span
# starts and before the hooks that say that an invocation begins. A hook that keeps one state per invocation, made in
# BeforeInvocationEvent, sees this message with the state of the invocation before, or with none.
#
# Seen (Python 3.11): events of the second invocation, in order
#   MessageAddedEvent user toolResult
#   BeforeInvocationEvent
#   MessageAddedEvent user text
#   MessageAddedEvent assistant text
#   AfterInvocationEvent
#
# Exit status 0: as above. 1: another outcome. Needs Python 3.11 or newer: PYTHON names one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "strands-agents==1.62.0"
cat > "$folder/run.py" << 'END'
import logging

from strands import Agent, tool
from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent, MessageAddedEvent
from strands.models import Model

logging.disable(logging.CRITICAL)


class Scripted(Model):
    """Calls a tool first, and then says "done"."""

    calls = 0

    def get_config(self):
        return {}

    def update_config(self, **config):
        pass

    def structured_output(self, *args, **kwargs):
        raise NotImplementedError

    async def stream(self, *args, **kwargs):
        self.calls += 1
        yield {"messageStart": {"role": "assistant"}}
        if self.calls == 1:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "look", "toolUseId": "call_1"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if self.calls == 1 else "end_turn"}}


@tool
def look() -> str:
    """Look."""
    return "nothing"


seen = []


def note(event):
    message = getattr(event, "message", None)
    seen.append(" ".join([type(event).__name__, *([message["role"], *message["content"][0]] if message else [])]))
    if len(agent.messages) == 2 and message:  # the tool call is noted, and its tool never runs
        raise RuntimeError("this invocation breaks")


agent = Agent(model=Scripted(), tools=[look], callback_handler=None)
for kind in (BeforeInvocationEvent, AfterInvocationEvent, MessageAddedEvent):
    agent.add_hook(note, kind)
try:
    agent("go")
except Exception as error:
    print("first invocation:", error)
seen.clear()
agent("on")
print("events of the second invocation, in order", *seen, sep="\n  ")
assert seen == [
    "MessageAddedEvent user toolResult",
    "BeforeInvocationEvent",
    "MessageAddedEvent user text",
    "MessageAddedEvent assistant text",
    "AfterInvocationEvent",
], seen
END
"$folder/venv/bin/python" "$folder/run.py"
