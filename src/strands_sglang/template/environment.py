"""The jinja environment of chat templates: the same as in transformers' `apply_chat_template`.

A chat template is untrusted code written against that environment, so the sandbox, the whitespace rules, the filters
and the globals are reproduced exactly (checked against transformers 5.23 with jinja2 3.1.6).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strands_sglang.exceptions import TemplateError


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


class Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that refuses names starting with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        attrs = dict(*rest, **kwargs)
        for name in attrs:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} starts with an underscore")


class _PinnedDict(dict[Any, Any]):
    """A mapping that never changes again, with its JSON texts."""

    __slots__ = ("_json",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._json: dict[Any, str] = {}


class _PinnedList(list[Any]):
    """A list that never changes again, with its JSON texts."""

    __slots__ = ("_json",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._json: dict[Any, str] = {}


def pin(value: Any) -> Any:
    """Copy plain data into a form whose JSON is computed once: tool schemas are printed at every step."""
    if isinstance(value, dict):
        return _PinnedDict({key: pin(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return _PinnedList([pin(item) for item in value])
    return value


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON; jinja's own filter escapes HTML characters."""
    if isinstance(x, _PinnedDict | _PinnedList):
        key = (ensure_ascii, repr(indent), repr(separators), sort_keys)
        text = x._json.get(key)
        if text is None:
            text = x._json[key] = json.dumps(
                x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
            )
        return text
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


_DICT_ATTRIBUTES = frozenset(dir(dict))
_FORMATTERS = frozenset({"format", "format_map"})


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox with short cuts to what it would find anyway: most of the time of a rendering goes into lookups."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What `obj.attribute` gives."""
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
        return super().getattr(obj, attribute)


def configure(sandbox: type[Sandbox] = Sandbox) -> Sandbox:
    """An environment for chat templates.

    Args:
        sandbox: Class of the environment.
    """
    env = sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=Namespace)
    return env


@lru_cache(maxsize=256)
def compile_template(text: str) -> jinja2.Template:
    """Compile a chat template; cached by text.

    Raises:
        TemplateError: The text is not valid jinja.
    """
    try:
        return configure().from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"chat template is not valid jinja: {error.message} (line {error.lineno}); pass another chat_template="
        ) from error
    except Exception as error:  # jinja's compiler also fails with RecursionError, TypeError, ...
        raise TemplateError(f"chat template does not compile: {type(error).__name__}: {error}") from error
