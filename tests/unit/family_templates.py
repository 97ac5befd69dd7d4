"""Small chat templates for tests, written here: each prints replies in the grammar of one family of models."""

from __future__ import annotations

import re
from typing import NamedTuple


class Family(NamedTuple):
    """The name of its parser, a template, and the tokens that end a turn."""

    parser: str
    template: str
    stops: tuple[str, ...]

    @property
    def specials(self) -> list[str]:
        """The control tokens that it prints."""
        return sorted({*re.findall(r"<[|｜][^<>\s]{1,40}[|｜]>", self.template), *self.stops})


_LOOP = "{%- if tools %}SYSTEM{{ tools | tojson }}CLOSE{% endif %}{%- for m in messages %}"
_END = "{%- endfor %}{% if add_generation_prompt %}PROMPT{% endif %}"


def _template(start: str, close: str, reply: str, prompt: str, result: str = "") -> str:
    """A template that prints messages between `start ROLE` and `close`, and replies as `reply` says."""
    header = start.replace("ROLE", "{{ m.role }}")
    other = f"{{%- else %}}{header}{{{{ m.content }}}}{close}{{%- endif %}}"
    results = f"{{%- elif m.role == 'tool' %}}{result}" if result else ""
    text = f"{_LOOP}{{%- if m.role == 'assistant' %}}{reply}{results}{other}{_END}"
    return text.replace("SYSTEM", start.replace("ROLE", "system")).replace("CLOSE", close).replace("PROMPT", prompt)


KIMI_K3 = _template(
    start='<|open|>message role="ROLE"<|sep|>',
    close="<|close|>message<|sep|><|end_of_msg|>",
    reply="""<|open|>message role="assistant"<|sep|>
    {%- if thinking | default(true) -%}
    <|open|>think<|sep|>{{ m.reasoning_content }}<|close|>think<|sep|>
    {%- endif -%}
    <|open|>response<|sep|>{{ m.content }}<|close|>response<|sep|>
    {%- if m.tool_calls %}<|open|>tools<|sep|>
    {%- for c in m.tool_calls -%}
    <|open|>call tool="{{ c.function.name }}" index="{{ loop.index }}"<|sep|>
    {%- for k, v in c.function.arguments.items() -%}
    {%- set kind = "boolean" if v is boolean else "null" if v is none else "number" if v is number else "string" if v is
       string else "object" if v is mapping else "array" -%}
    <|open|>argument key="{{ k }}" type="{{ kind }}"<|sep|>
    {{- v if v is string else v | tojson }}<|close|>argument<|sep|>
    {%- endfor -%}
    <|close|>call<|sep|>
    {%- endfor -%}
    <|close|>tools<|sep|>
    {%- endif -%}
    <|close|>message<|sep|><|end_of_msg|>""",
    prompt='<|open|>message role="assistant"<|sep|>'
    '<|open|>{{ "think" if thinking | default(true) else "response" }}<|sep|>',
)

DEEPSEEK_V4 = _template(
    start="<｜ROLE｜>",
    close="",
    reply="""<｜assistant｜>
    {%- if thinking | default(true) %}<think>{{ m.reasoning_content }}{% endif %}</think>{{ m.content }}
    {%- if m.tool_calls %}{{ "\\n\\n" }}<｜DSML｜tool_calls>{{ "\\n" }}
    {%- for c in m.tool_calls -%}
    <｜DSML｜invoke name="{{ c.function.name }}">{{ "\\n" }}
    {%- for k, v in c.function.arguments.items() -%}
    <｜DSML｜parameter name="{{ k }}" string="{{ (v is string) | tojson }}">{{ v if v is string else v | tojson }}
    {{- "</｜DSML｜parameter>\\n" }}
    {%- endfor %}
    {{- "</｜DSML｜invoke>\\n" }}
    {%- endfor %}
    {{- "</｜DSML｜tool_calls>" }}
    {%- endif -%}
    <｜end▁of▁sentence｜>""",
    prompt="<｜assistant｜>{{ '<think>' if thinking | default(true) else '</think>' }}",
)

MINIMAX_M3 = (
    """{%- macro show(v) %}
{%- if v is mapping %}{% for k, x in v.items() %}^<{{ k }}>{{ show(x) }}^</{{ k }}>{% endfor %}
{%- elif v is iterable and v is not string %}{% for x in v %}^<item>{{ show(x) }}^</item>{% endfor %}
{%- else %}{{ v | tojson if v is boolean else v }}{% endif %}
{%- endmacro %}""".replace("^", "]<]minimax[>[")
    + _template(
        start="]~b]ROLE\n",
        close="[e~[\n",
        reply="""]~b]ai{{ "\\n" }}
    {%- if m.reasoning_content %}<mm:think>{{ m.reasoning_content }}{% endif %}</mm:think>{{ m.content }}
    {%- if m.tool_calls %}^<tool_call>{{ "\\n" }}
    {%- for c in m.tool_calls -%}
    ^<invoke name="{{ c.function.name }}">{{ show(c.function.arguments) }}^</invoke>{{ "\\n" }}
    {%- endfor -%}
    ^</tool_call>
    {%- endif -%}
    [e~[{{ "\\n" }}""".replace("^", "]<]minimax[>["),
        prompt="]~b]ai\n",
    )
)

MUSE_GLIMMER = _template(
    start="<|start|>ROLE<|message|>",
    close="<|eot|>",
    reply="""
    {%- if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}
    {%- for c in m.tool_calls or [] -%}
    <|start|>assistant to={{ c.function.name }}<|message|><atem:function_calls>{{ "\\n" }}
    {{- '<atem:invoke name="' + c.function.name + '">\\n' }}
    {%- for k, v in c.function.arguments.items() -%}
    <atem:parameter name="{{ k }}">{{ v if v is string else v | tojson }}</atem:parameter>{{ "\\n" }}
    {%- endfor -%}
    </atem:invoke>{{ "\\n" }}</atem:function_calls>{{ "<|eot|>" if loop.last else "<|eom|>" }}
    {%- else -%}
    <|start|>assistant to=user<|message|>{{ m.content }}<|eot|>
    {%- endfor %}""",
    prompt="<|start|>assistant",
)

INKLING = _template(
    start="<|message_ROLE|><|content_text|>",
    close="<|end_message|>",
    reply="""
    {%- if m.reasoning_content -%}
    <|message_model|><|content_thinking|>{{ m.reasoning_content }}<|end_message|>
    {%- endif %}
    {%- if m.content %}<|message_model|><|content_text|>{{ m.content }}<|end_message|>{% endif %}
    {%- for c in m.tool_calls or [] -%}
    <|message_model|>{{ c.function.name }}<|content_invoke_tool_json|>{"name":{{ c.function.name | tojson }},"args":
    {{- c.function.arguments | tojson }}}<|end_message|>
    {%- endfor -%}
    <|content_model_end_sampling|>""",
    prompt="<|message_model|>",
)

SOLAR_OPEN = _template(
    start="<|begin|>ROLE<|content|>",
    close="<|end|>",
    reply="""
    {%- if m.reasoning_content %}<|begin|>assistant<|think|>{{ m.reasoning_content }}<|end|>{% endif %}
    {%- if m.tool_calls %}<|begin|>assistant<|tool_calls|>
    {%- for c in m.tool_calls -%}
    <|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ c.function.name }}<|tool_call:args|>
    {{- c.function.arguments | tojson }}<|tool_call:end|>
    {%- endfor -%}
    <|calls|>
    {%- else -%}
    <|begin|>assistant<|content|>{{ m.content }}<|end|>
    {%- endif %}""",
    prompt="<|begin|>assistant",
)

FUNCTIONARY = _template(
    start="<|start_header_id|>ROLE<|end_header_id|>\n\n",
    close="<|eot_id|>",
    reply="""<|start_header_id|>assistant<|end_header_id|>{{ "\\n\\n" }}
    {%- if m.content %}>>>all{{ "\\n" + m.content }}{% endif %}
    {%- for c in m.tool_calls or [] %}>>>{{ c.function.name + "\\n" + (c.function.arguments | tojson) }}{% endfor -%}
    <|eot_id|>""",
    prompt="<|start_header_id|>assistant<|end_header_id|>\n\n>>>",
)

FUNCTIONARY_V31 = _template(
    start="<|start_header_id|>ROLE<|end_header_id|>\n\n",
    close="<|eot_id|>",
    reply="""<|start_header_id|>assistant<|end_header_id|>{{ "\\n\\n" }}{{ m.content }}
    {%- for c in m.tool_calls or [] %}<function={{ c.function.name }}>{{ c.function.arguments | tojson }}</function>
    {%- endfor %}{{ "<|eom_id|>" if m.tool_calls else "<|eot_id|>" }}""",
    prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
)

FAMILIES = [
    Family("kimi_k3", KIMI_K3, ("<|end_of_msg|>",)),
    Family("deepseek_v4", DEEPSEEK_V4, ("<｜end▁of▁sentence｜>",)),
    Family("minimax_m3", MINIMAX_M3, ("[e~[",)),
    Family("muse_glimmer", MUSE_GLIMMER, ("<|eot|>",)),
    Family("inkling", INKLING, ("<|content_model_end_sampling|>",)),
    Family("solar_open", SOLAR_OPEN, ("<|flush|>", "<|calls|>")),
    Family("functionary", FUNCTIONARY, ("<|eot_id|>",)),
    Family("functionary_v31", FUNCTIONARY_V31, ("<|eot_id|>", "<|eom_id|>")),
]


def ended(parser: str) -> str:
    """The template of a family with the stop token of the tests' tokenizer."""
    (family,) = (family for family in FAMILIES if family.parser == parser)
    text = family.template
    for stop in family.stops:
        text = text.replace(stop, "<|im_end|>")
    return text
