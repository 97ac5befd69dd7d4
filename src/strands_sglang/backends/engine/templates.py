"""The chat template of the engine's own models: ChatML, tool calls in Hermes form.

Content is printed verbatim, so that a template renderer can prove it exact. Neither of the two models was taught with
it: the tiny one knows nothing, and SmolLM2 learns the form of a call from the conversation (see `smollm2`).
"""

from __future__ import annotations

_HEAD = """\
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' %}
{%- if system or tools %}
    {{- '<|im_start|>system\\n' + system }}
    {%- if tools %}
"""

_TAIL = """\
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
        {{- '\\n<tool_response>' + message.content + '</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

HERMES_TEMPLATE = (
    _HEAD
    + """\
        {{- '\\n\\n' if system }}
        {{- 'You may call these functions:\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' + (tool | tojson) }}
        {%- endfor %}
        {{- '\\n</tools>\\nFor each call answer with '}}
        {{- '<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>' }}
"""
    + _TAIL
)
"""ChatML with the tools as JSON in the system turn."""

BRIEF_TEMPLATE = (
    _HEAD
    + """\
        {{- ' ' if system }}
        {{- 'Tools: ' }}
        {%- for tool in tools %}
            {%- set tool = tool.function or tool %}
            {{- (', ' if not loop.first else '') + tool.name }}
        {%- endfor %}
        {{- '.' }}
"""
    + _TAIL
)
"""The same, naming the tools in one short line: a JSON schema in the prompt distracts a model of 135 M parameters."""

_PARTS = """\
{%- macro show(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
"""

VISION_TEMPLATE = _PARTS + HERMES_TEMPLATE.replace("message.content + '<", "show(message.content) + '<")
"""The same with images, one placeholder each, in the way of Qwen-VL."""
