"""The delta renderer: new messages to the text that has to be appended to a sampled trajectory."""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..cache import Recent
from ..exceptions import LostContentError, TemplateError
from .chat_messages import ChatMessage, HistoryPart, calls_of, name_results, short_history
from .chat_template import ChatTemplate, pin, plain, without_nulls
from .control_tokens import ControlTexts, ControlTokens, Rendered, mark, render_marked, spelled_error, unmark
from .loss import DroppedContent, Skeletons, require_calls, require_content, split_text_from_calls
from .report import Flag, Report
from .self_check import Knowledge, self_check
from .step import Plant, StepRenderer, Suffix, Vocabulary, describe, printed_call

logger = logging.getLogger(__name__)

# Templates of which the user was warned.
_warned: set[Hashable] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(Rendered):
    """Text to append after the sampled ids, to the end of the next generation prompt. Encode it in one call.

    Attributes:
        history: Messages that were rendered before the turn.
        closer: The template's end of such a turn; empty if none.
    """

    history: HistoryPart
    closer: str


class DeltaRenderer:
    """Renders the text behind a sampled assistant turn, through the model's own chat template.

    Nothing that was sampled is rendered again: one short conversation is rendered with a sentinel in place of the last
    assistant turn and cut behind it. A self-check proves that this equals rendering the full history, or the full
    history is rendered, or the step is refused. Instances are immutable, and instances for the same template share one
    self-check.

    Args:
        tools: JSON schemas of the tools, as in the first prompt; None for no tools.
        template_kwargs: Variables of the template, fixed for a trajectory.
        stop_tokens: The tokens the engine stops on, as text (`generation_config.eos_token_id`).
        special_tokens: All special and added tokens of the tokenizer, as text.
        control_tokens: Policy for control tokens that messages and tools spell.
        control_texts: The tokens among `special_tokens` that are flagged special. Stop tokens count anyway, and so do
            special tokens that the template prints, except that only tool results may not spell its tags.
        dropped_content: Policy for a first prompt that would lose text or calls of past assistant turns.

    Raises:
        TemplateError: The jinja text is not valid.
    """

    def __init__(
        self,
        template: ChatTemplate | str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        stop_tokens: Sequence[str],
        special_tokens: Sequence[str] = (),
        control_tokens: ControlTokens | Literal["split", "error", "allow"] = ControlTokens.SPLIT,
        control_texts: Sequence[str] = (),
        dropped_content: DroppedContent | Literal["separate", "error", "allow"] = DroppedContent.SEPARATE,
    ) -> None:
        self.template = template = template if isinstance(template, ChatTemplate) else ChatTemplate(template)
        self.tools: list[dict[str, Any]] | None = None if tools is None else pin(plain(list(tools)))
        self.template_kwargs: dict[str, Any] = copy.deepcopy(plain(dict(template_kwargs or {})))
        vocabulary = Vocabulary.from_tokens(stop_tokens, special_tokens)
        self._dropped_content = DroppedContent(dropped_content)
        self._control_tokens = ControlTokens(control_tokens)
        source = template.text(tools_present=tools is not None)
        self._controls = ControlTexts.from_tokens((*vocabulary.stops, *control_texts), vocabulary.specials, source)
        marked = None if self._control_tokens is ControlTokens.ALLOW else mark(self.tools, self._controls.anywhere)
        self._tools_spell = marked is not None and marked is not self.tools
        self._step = StepRenderer(
            template=template,
            tools=pin(marked) if self._tools_spell else self.tools,
            kwargs=self.template_kwargs,
            vocabulary=vocabulary,
        )
        self._knowledge: Knowledge | None = None
        self._skeletons: Skeletons = {}
        self._checked = self._step

    @property
    def report(self) -> Report:
        """Result of the self-check; computed once per template, variables, tokens and presence of tools."""
        return self._ready().report

    def _ready(self) -> Knowledge:
        knowledge = self._knowledge
        if knowledge is None:
            knowledge = knowledge_for(self._step)
            self._checked = replace(self._step, forms=knowledge.forms, boundaries=knowledge.boundaries)
            self._knowledge = knowledge
        return knowledge

    def initial(self, messages: Sequence[ChatMessage]) -> str:
        """Text of `root`."""
        return self.root(messages).text

    def root(self, messages: Sequence[ChatMessage]) -> Rendered:
        """Render a first prompt, generation prompt included.

        Raises:
            TemplateError: The template raises.
            LostContentError: It loses content, see `dropped_content` for that of assistant turns.
            ControlTokenError: A message or a tool spells a control token, and the policy forbids it.
        """
        self._ready()
        messages = without_nulls(messages)
        try:
            return self._root(messages)
        except LostContentError:
            apart = split_text_from_calls(messages) if self._dropped_content is DroppedContent.SEPARATE else messages
            if len(apart) == len(messages):
                raise
            try:
                return self._root(apart)
            except TemplateError as error:
                raise LostContentError(
                    "the template prints neither text beside tool calls nor two assistant messages in a row, so the "
                    "text of a past turn would be lost; dropped_content='allow' makes it drop such text"
                ) from error

    def _root(self, messages: Sequence[ChatMessage]) -> Rendered:
        def render(messages: Sequence[ChatMessage]) -> str:
            try:
                return self._checked.render(messages, generate=True)
            except TemplateError:
                raise
            except Exception as error:  # templates raise all kinds
                raise TemplateError(f"the chat template rejects the conversation: {describe(error)}") from error

        rendered = self._render_marked(render, messages)
        may_drop = self._dropped_content is DroppedContent.ALLOW
        if any(map(calls_of, messages)) and not may_drop:
            if self._dropped_content is DroppedContent.ERROR or Flag.DROPS_CALLS not in self.report.flags:
                require_calls(messages, render)
            elif self.template.key(tools_present=True) not in _warned:
                _warned.add(self.template.key(tools_present=True))
                logger.warning("flag=<%s> | the chat template drops the tool calls of past turns", Flag.DROPS_CALLS)
        require_content(messages, rendered.text, lambda other: unmark(render(other)).text, assistant=not may_drop)
        return rendered

    def _render_marked(
        self, render: Callable[[Sequence[ChatMessage]], str], messages: Sequence[ChatMessage]
    ) -> Rendered:
        if self._tools_spell and self._control_tokens is ControlTokens.ERROR:
            raise spelled_error([{"role": "tools", "content": self.tools}], self._controls)
        return render_marked(render, messages, self._controls, self._control_tokens, tools_spell=self._tools_spell)

    def delta(
        self,
        history: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        *,
        whole: Callable[[], Sequence[ChatMessage]] | None = None,
        emitted: str | None = None,
        truncated: bool = False,
    ) -> Delta:
        """Render the text to append after a sampled assistant turn.

        Args:
            history: Messages up to and including that turn. Of the turn only ids and names of its calls are read.
            new: Messages that follow: any roles but assistant. Tool results without name or id get those of their call.
            whole: Makes the messages before the turn, where `history` has only `short_history` of them.
            emitted: Text of the stop token at the end of the sampled ids. None: the one the template prints.
            truncated: The sampled ids end without a stop token (length limit, stop string).

        Raises:
            TemplateError: The template cannot express the step: it raises, or would lose a message.
            ControlTokenError: A message or a tool spells a control token, and the policy forbids it.
        """
        if not history or history[-1]["role"] != "assistant":
            raise TemplateError("history must end with the assistant turn that was sampled")
        if not new or "assistant" in [message["role"] for message in new]:
            raise TemplateError(f"expected at least one new message, none from the assistant, got {len(new)}")
        last = history[-1]
        new = name_results(last, without_nulls(new))
        if truncated:
            emitted = None
        refused: TemplateError | None = None
        if self.report.history is HistoryPart.SHORT:
            try:
                base = without_nulls(short_history(history))
                return self._render_delta(HistoryPart.SHORT, base, last, new, emitted, truncated)
            except TemplateError as error:
                refused = error
        # A step is refused only if the template cannot express it, and the full history defines that.
        try:
            full = history[:-1] if whole is None else whole()
            return self._render_delta(HistoryPart.FULL, without_nulls(full), last, new, emitted, truncated)
        except TemplateError:
            if refused is None:
                raise
            raise refused from refused.__cause__

    def _render_delta(
        self,
        part: HistoryPart,
        base: Sequence[ChatMessage],
        last: ChatMessage,
        new: Sequence[ChatMessage],
        emitted: str | None,
        truncated: bool,
    ) -> Delta:
        step = self._checked
        if emitted is not None and emitted not in step.vocabulary.stops:
            # The engine stopped on a token that was not announced: wherever it is printed, it ends a turn.
            vocabulary = step.vocabulary
            step = replace(step, vocabulary=Vocabulary((*vocabulary.stops, emitted), (*vocabulary.specials, emitted)))
        turn, suffix = len(base), None

        def render(messages: Sequence[ChatMessage]) -> str:
            nonlocal suffix
            suffix = step.suffix(messages[:turn], messages[turn], messages[turn + 1 :])
            return _reconcile(suffix, emitted, truncated)

        rendered = self._render_marked(render, [*base, last, *new])
        assert suffix is not None
        # By the suffix as the template prints it: `_reconcile` neither adds nor cuts content.
        require_content(
            new,
            unmark(suffix.text).text,
            lambda other: unmark(step.suffix(base, last, other).text).text,
            skeletons=self._skeletons,
        )
        return Delta(text=rendered.text, literal=rendered.literal, history=part, closer=suffix.boundary.closer)

    def printed_call(self, name: str, arguments: Mapping[str, Any], call_id: str | None = None) -> str | None:
        """The text of one structured call in an assistant turn, between its header and the end of the turn.

        A model of this template samples this text for the call, so a tool parser has to read it. None if the template
        prints no structured calls. `call_id` defaults to one that the strictest template takes.
        """
        self._ready()
        return printed_call(self._checked, name, arguments, call_id)


def _reconcile(suffix: Suffix, emitted: str | None, truncated: bool) -> str:
    """Make the rendered end of the turn and the sampled one meet."""
    body, boundary = suffix.text, suffix.boundary
    closer = boundary.closer
    if truncated:
        # Behind text, an end of turn in plain words counts too; behind a call, the head is the call's own mark-up.
        plain_end = boundary.head if not closer and boundary.plant is Plant.CONTENT else ""
        return plain_end + closer + body
    if emitted is None or emitted == closer:
        return body
    printed_at = boundary.region.find(emitted)
    if 0 <= printed_at < len(boundary.head):
        # Printed before the assumed end, so the rest of the end is still to come.
        return boundary.end[printed_at + len(emitted) :] + body
    late = printed_at - len(boundary.end)
    if late >= 0 and body.startswith(emitted, late) and not body[:late].strip():
        return body[late + len(emitted) :]  # two ends in a row, such as <|im_end|><|stop|>
    # The sampled stop token stays. One that announced a message of another role is followed by the right opener.
    return closer + body if boundary.is_opener else body


# ---- knowledge about templates, shared by all renderers of a process: thousands of models, one self-check


_known: Recent[Knowledge] = Recent(1024)
_checking = threading.Lock()


def knowledge_for(step: StepRenderer) -> Knowledge:
    """Look up, or find out once: concurrent callers of the same template wait for one self-check."""
    tools = step.tools
    key = (
        step.template.key(tools_present=tools is not None),
        step.template.key(tools_present=False),  # tools may be left out, so both texts count
        None if tools is None else all("function" in tool for tool in tools),
        json.dumps(step.kwargs, sort_keys=True, default=repr),
        step.vocabulary,
    )
    if (knowledge := _known.get(key)) is not None:
        return knowledge
    with _checking:
        if (knowledge := _known.get(key)) is None:
            knowledge = self_check(step)
            _known.put(key, knowledge)
    return knowledge
