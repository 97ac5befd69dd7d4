"""Chat templates: first prompts, and the exact text to append for new messages.

```python
renderer = DeltaRenderer(ChatTemplate.from_tokenizer(tokenizer), tools=tools, stop_tokens=["<|im_end|>"])
prompt = renderer.initial(messages)  # text of the first prompt
delta = renderer.delta(history, new, emitted="<|im_end|>")  # text to append after the sampled ids
```

Method and guarantees: `docs/chat-templates.md`.
"""

from __future__ import annotations

from .chat_messages import short_history
from .chat_template import ChatTemplate, special_values
from .control_tokens import ControlTokens, Rendered, Span, pattern_of
from .loss import DroppedContent
from .reasoning import tags_of
from .renderer import DeltaRenderer
from .replies import PrintedReplies, PrintedReply
from .report import Flag, Report, Shape, TemplateVerdict
from .self_check import image_problem, probe_tools

__all__ = [
    "ChatTemplate",
    "ControlTokens",
    "DeltaRenderer",
    "DroppedContent",
    "Flag",
    "PrintedReplies",
    "PrintedReply",
    "Rendered",
    "Report",
    "Shape",
    "Span",
    "TemplateVerdict",
    "image_problem",
    "pattern_of",
    "probe_tools",
    "short_history",
    "special_values",
    "tags_of",
]
