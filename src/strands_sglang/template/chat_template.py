"""A chat template with its special tokens, in the jinja environment of transformers' `apply_chat_template`.

A chat template is untrusted code written against that environment, so the sandbox, the whitespace rules, the filters
and the globals are reproduced exactly (checked against transformers 5.23 with jinja2 3.1.6).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..exceptions import TemplateError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_REASONING_FIELDS = frozenset(REASONING_FIELDS)
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NO_TEMPLATE = "pass chat_template= with the jinja text of the model's template"


class ChatTemplate:
    """Renders chat messages exactly as `apply_chat_template(..., tokenize=False)` of transformers does.

    Immutable and cheap to share between threads; compiled once per text and process.

    Args:
        template: Jinja text, or several texts by name. With several, `"tool_use"` is used when tools are given and
            it exists, otherwise `"default"`.
        special_values: Values of the variables `bos_token`, `eos_token`, `pad_token`, ... A token that the tokenizer
            does not have is left out, as transformers does.
        clock: Clock that `strftime_now` in the template reads; the real one by default.

    Raises:
        TemplateError: A text is not valid jinja, or there is no `"default"` among several.
    """

    __slots__ = ("_digests", "_texts", "_variables", "special_values")

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
            self._variables["strftime_now"] = lambda format: clock().strftime(format)
        values = repr(sorted(self.special_values.items())).encode("utf-8", "surrogatepass")
        self._digests: dict[str, Hashable] = {
            name: hashlib.sha256(text.encode("utf-8", "surrogatepass") + b"\0" + values).digest()
            for name, text in texts.items()
        }

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, chat_template: str | None = None) -> ChatTemplate:
        """Take the template and the special tokens of a tokenizer.

        Args:
            tokenizer: A Hugging Face tokenizer or processor, or anything with `chat_template` (text, texts by name,
                or a list of `{"name", "template"}`).
            chat_template: Jinja text, or the name of one of the tokenizer's templates, to use instead.

        Raises:
            TemplateError: There is no chat template.
        """
        own = getattr(tokenizer, "chat_template", None)
        texts: dict[str, str] = {}
        if isinstance(own, str) and own:
            texts = {"default": own}
        elif isinstance(own, Mapping):
            texts = {str(name): text for name, text in own.items()}
        elif isinstance(own, list | tuple):
            texts = {str(entry["name"]): entry["template"] for entry in own}
        if chat_template is not None:
            texts = {"default": texts.get(chat_template, chat_template)}
        if not texts:  # one that renders by its own code (mistral-common) encodes control tokens as plain text
            raise TemplateError(f"{type(tokenizer).__name__} has no chat template; {_NO_TEMPLATE}")
        return cls(texts, special_values=special_values(tokenizer))

    def text(self, *, tools_present: bool = False) -> str:
        """Jinja text used with or without tools."""
        return self._texts[self._name(tools_present)]

    def key(self, *, tools_present: bool) -> Hashable:
        """Identity of the template: equal keys render equal texts."""
        return self._digests[self._name(tools_present)]

    @property
    def is_pure(self) -> bool:
        """Equal messages always print the same: the template does not read the clock."""
        return not any("strftime_now" in text for text in self._texts.values())

    def _name(self, tools_present: bool) -> str:
        return "tool_use" if tools_present and "tool_use" in self._texts else "default"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render messages to text.

        Args:
            messages: OpenAI-style chat messages. Keys whose value is None are left out, `reasoning_content`, `thinking`
                and `reasoning` are aliases, and values in content parts that JSON cannot represent become placeholders,
                all as in transformers.
            **kwargs: Variables of the template; they win over the special tokens.

        Raises:
            Exception: Whatever the template raises (`jinja2.TemplateError`, `TypeError`, ...).
        """
        return self.render_as_given(
            without_nulls(messages), tools=tools, add_generation_prompt=add_generation_prompt, **kwargs
        )

    def render_as_given(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        **kwargs: Any,
    ) -> str:
        """`render` with keys whose value is None: some templates print a planted turn only if its content is null."""
        variables = {
            "messages": [with_plain_content(message) for message in messages],
            "tools": tools if tools is None or isinstance(tools, list) else list(tools),
            "add_generation_prompt": add_generation_prompt,
            **self._variables,
            **kwargs,
        }
        return compile_template(self._texts[self._name(tools is not None)]).render(variables)


def without_nulls(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages without keys whose value is None, as transformers 5.23 hands them to a template."""
    for message in messages:
        if None in message.values():
            return [{key: value for key, value in each.items() if value is not None} for each in messages]
    return messages  # nearly always: nothing is copied


def special_values(tokenizer: Any) -> dict[str, str]:
    """The special tokens of a tokenizer as templates see them, by name."""
    own = getattr(tokenizer, "special_tokens_map", None)
    values = {k: str(v) for k, v in own.items() if isinstance(k, str)} if isinstance(own, Mapping) else {}
    for name in SPECIAL_NAMES:
        value = getattr(tokenizer, name, None) if name not in values else None
        if value is not None:
            values[name] = str(value)
    return values


def with_plain_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as transformers hands it to a template: reasoning under its names, content parts as plain data."""
    out: dict[str, Any] = message if type(message) is dict else dict(message)
    content = out.get("content")
    if content.__class__ is not str and content is not None:
        out = {**out, "content": plain(content)}
    if not _REASONING_FIELDS.isdisjoint(out):
        for name in REASONING_FIELDS:
            reasoning = out.get(name)
            if reasoning is not None:
                return {"thinking": reasoning, **out, "reasoning_content": reasoning}
    return out


def plain(value: Any) -> Any:
    """Plain JSON types all the way down; anything else (an image, an array) becomes `<its type>`.

    Templates only look whether media are present, and methods of foreign objects must not be within their reach.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"


# ---- the jinja environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks sampled text for training masks; the body prints unchanged."""

    tags = {"generation"}  # noqa: RUF012 - the attribute jinja documents

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print_body"), [], [], body).set_lineno(lineno)

    def _print_body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """The global `dict`: callable, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that refuses names starting with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        attrs = dict(*rest, **kwargs)
        for name in attrs:
            _Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} starts with an underscore")


class _PinnedDict(dict[Any, Any]):
    """A mapping that never changes again, with its JSON texts by format."""

    _json: dict[Any, str]


class _PinnedList(list[Any]):
    """A list that never changes again, with its JSON texts by format."""

    _json: dict[Any, str]


def pin(value: Any) -> Any:
    """Copy plain data into a form whose JSON is computed once: tool schemas are printed at every step."""
    if not isinstance(value, dict | list | tuple):
        return value
    # Subclasses of dict and list, which templates, `tojson` and `isinstance` take for the plain types.
    items = {key: pin(item) for key, item in value.items()} if isinstance(value, dict) else map(pin, value)
    pinned = _PinnedDict(items) if isinstance(value, dict) else _PinnedList(items)
    pinned._json = {}
    return pinned


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON; jinja's own filter escapes HTML characters."""
    texts: dict[Any, str] = x._json if isinstance(x, _PinnedDict | _PinnedList) else {}
    key = (ensure_ascii, repr(indent), repr(separators), sort_keys)
    if key not in texts:
        texts[key] = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return texts[key]


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


_DICT_ATTRIBUTES = frozenset(dir(dict))
_FORMATTERS = frozenset({"format", "format_map"})
_LOOP_ATTRIBUTES = frozenset({"first", "last", "index", "index0", "previtem", "nextitem"})


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with short cuts to values that it would find anyway: lookups take most of the time of a rendering."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """The value of `obj.attribute`."""
        if obj.__class__ is dict:
            if attribute not in _DICT_ATTRIBUTES:  # a plain dict has no other attributes, so this is its item
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif obj.__class__ is str and attribute[0] != "_" and attribute not in _FORMATTERS:
            # Public methods of text are safe, except those that look up attributes themselves.
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        elif obj.__class__ is jinja2.runtime.LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)  # of the `loop` of jinja itself, and no callables
        return super().getattr(obj, attribute)


@lru_cache(maxsize=256)
def compile_template(text: str) -> jinja2.Template:
    """Compile a chat template, cached by text; `TemplateError` if it is not valid jinja."""
    env = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda format: datetime.now().strftime(format),
        dict=_Dict(),
        namespace=_Namespace,
    )
    try:
        template = env.from_string(text)
        template.globals = dict(template.globals)  # they never change again, and jinja's chain of maps is slow to copy
        return template
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"chat template is not valid jinja: {error.message} (line {error.lineno}); pass another chat_template="
        ) from error
    except Exception as error:  # jinja's compiler also fails with RecursionError, TypeError, ...
        raise TemplateError(f"chat template does not compile: {type(error).__name__}: {error}") from error
