"""A chat template with its special tokens: what turns chat messages into text."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any

from strands_sglang.exceptions import TemplateError
from strands_sglang.template.chat_messages import Message, with_plain_content
from strands_sglang.template.environment import compile_template

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NO_TEMPLATE = "pass chat_template= with the jinja text of the model's template"


class ChatTemplate:
    """Renders chat messages exactly as `apply_chat_template(..., tokenize=False)` of transformers does.

    Immutable and cheap to share between threads; compiled once per text and process.

    Args:
        template: Jinja text, or several texts by name. With several, `"tool_use"` is used when tools are given and
            it exists, else `"default"`.
        special_values: Values of the variables `bos_token`, `eos_token`, `pad_token`, ... A token that the tokenizer
            does not have is left out, as transformers does.
        clock: What `strftime_now` in the template reads; the real clock by default.

    Raises:
        TemplateError: A text is not valid jinja, or there is no `"default"` among several.
    """

    __slots__ = ("_digests", "_renderer", "_texts", "_variables", "special_values")

    def __init__(
        self,
        template: str | Mapping[str, str],
        *,
        special_values: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        texts = {"default": template} if isinstance(template, str) else dict(template)
        if not texts or not all(isinstance(text, str) for text in texts.values()):
            raise TemplateError(f"expected a chat template as jinja text, got {template!r}; {_NO_TEMPLATE}")
        if "default" not in texts:
            if len(texts) > 1 and set(texts) != {"tool_use"}:
                raise TemplateError(
                    f"the tokenizer has several chat templates, {sorted(texts)}, and none is named 'default'; "
                    "pass chat_template= with one of these names or with jinja text"
                )
            texts["default"] = next(iter(texts.values()))
        for text in texts.values():
            compile_template(text)
        self._texts = texts
        self.special_values: dict[str, str] = {k: str(v) for k, v in (special_values or {}).items() if v is not None}
        self._variables: dict[str, Any] = {"documents": None, **self.special_values}
        if clock is not None:
            self._variables["strftime_now"] = lambda fmt: clock().strftime(fmt)
        values = repr(sorted(self.special_values.items())).encode("utf-8", "surrogatepass")
        self._digests: dict[str, Hashable] = {
            name: hashlib.sha256(text.encode("utf-8", "surrogatepass") + b"\0" + values).digest()
            for name, text in texts.items()
        }
        self._renderer: Callable[..., Any] | None = None

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, chat_template: str | None = None) -> ChatTemplate:
        """Take the template and the special tokens of a tokenizer.

        Args:
            tokenizer: A Hugging Face tokenizer or processor, or anything with `chat_template` (text, texts by name,
                or a list of `{"name", "template"}`); failing that, anything with a callable `apply_chat_template`.
            chat_template: Jinja text, or the name of one of the tokenizer's templates, to use instead.

        Raises:
            TemplateError: There is no chat template.
        """
        own = getattr(tokenizer, "chat_template", None)
        texts = _named_texts(own)
        if chat_template is not None:
            texts = {"default": texts.get(chat_template, chat_template)}
        if texts:
            return cls(texts, special_values=special_values(tokenizer))
        apply = getattr(tokenizer, "apply_chat_template", None)
        if callable(apply):
            return cls._from_callable(tokenizer, apply)
        raise TemplateError(f"{type(tokenizer).__name__} has no chat template; {_NO_TEMPLATE}")

    @classmethod
    def _from_callable(cls, tokenizer: Any, apply: Callable[..., Any]) -> ChatTemplate:
        self = cls("")
        self._renderer = apply
        self._digests = {"default": _identity(tokenizer)}
        self.special_values = special_values(tokenizer)
        try:
            self.render([{"role": "user", "content": "Hello."}], add_generation_prompt=True)
        except Exception as error:  # whatever a foreign tokenizer raises, it has no usable template
            raise TemplateError(
                f"{type(tokenizer).__name__} has no usable chat template "
                f"({type(error).__name__}: {error}); {_NO_TEMPLATE}"
            ) from error
        return self

    def text(self, *, tools_present: bool = False) -> str | None:
        """Jinja text used with or without tools; None when the tokenizer renders itself."""
        return None if self._renderer is not None else self._texts[self._name(tools_present)]

    def key(self, *, tools_present: bool) -> Hashable:
        """Identity of what is rendered: equal keys render equal texts."""
        return self._digests[self._name(tools_present)]

    @property
    def is_pure(self) -> bool:
        """Whether equal messages are printed alike for all time: plain jinja that does not read the clock."""
        return self._renderer is None and not any("strftime_now" in text for text in self._texts.values())

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that every rendering passes, besides messages and tools."""
        return frozenset(self._variables)

    def _name(self, tools_present: bool) -> str:
        return "tool_use" if tools_present and "tool_use" in self._texts else "default"

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render messages to text.

        Args:
            messages: OpenAI-style chat messages. `reasoning_content`, `thinking` and `reasoning` are aliases, and
                values in content parts that JSON cannot represent become placeholders, both as in transformers.
            tools: JSON schemas of the tools.
            add_generation_prompt: Whether to open the next assistant turn.
            **kwargs: Variables of the template; they win over the special tokens.

        Raises:
            Exception: Whatever the template raises (`jinja2.TemplateError`, `TypeError`, ...).
        """
        if self._renderer is None:
            text, variables = self.inputs(messages, tools=tools, add_generation_prompt=add_generation_prompt, **kwargs)
            return compile_template(text).render(variables)
        plain = [with_plain_content(message) for message in messages]
        printed = self._renderer(
            plain,
            tools=tools if tools is None else list(tools),
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **kwargs,
        )
        if not isinstance(printed, str):
            raise TemplateError(f"apply_chat_template(tokenize=False) returned {type(printed).__name__}, expected str")
        return printed

    def inputs(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> tuple[str, dict[str, Any]]:
        """The jinja text and the variables of a rendering."""
        variables = {
            "messages": [with_plain_content(message) for message in messages],
            "tools": tools if tools is None or isinstance(tools, list) else list(tools),
            "add_generation_prompt": add_generation_prompt,
            **self._variables,
            **kwargs,
        }
        return self._texts[self._name(tools is not None)], variables


def _named_texts(own: Any) -> dict[str, str]:
    if isinstance(own, str):
        return {"default": own} if own else {}
    if isinstance(own, Mapping):
        return {str(name): text for name, text in own.items()}
    if isinstance(own, list | tuple):
        return {str(entry["name"]): entry["template"] for entry in own}
    return {}


def special_values(tokenizer: Any) -> dict[str, str]:
    """The special tokens of a tokenizer as templates see them, by name."""
    known = getattr(tokenizer, "special_tokens_map", None)
    values = {k: str(v) for k, v in known.items() if isinstance(k, str)} if isinstance(known, Mapping) else {}
    for name in SPECIAL_NAMES:
        value = getattr(tokenizer, name, None) if name not in values else None
        if value is not None:
            values[name] = str(value)
    return values


_identities: weakref.WeakKeyDictionary[Any, Hashable] = weakref.WeakKeyDictionary()
_identities_lock = threading.Lock()


def _identity(thing: Any) -> Hashable:
    """A token that identifies this object as long as it lives."""
    try:
        with _identities_lock:
            return _identities.setdefault(thing, object())
    except TypeError:  # no weak references, or not hashable
        return object()
