"""The chat template that a user names: a jinja file, or a tokenizer's, as a model would load it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...backends.clients import connect, get_tokenizer
from ...backends.engine.own_models import ModelLoadError
from ...command_line import CommandError, Exit
from ...exceptions import StrandsSGLangError, TemplateError
from ...template import ChatTemplate
from ...tokenizer import TokenizerAdapter

_LOOKS_SPECIAL = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</?s>|\[/?[A-Z_]{3,20}\]|<(?:start|end)_of_turn>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A chat template with what is known of its tokens.

    Attributes:
        stop_tokens: Texts of the tokens generation stops on; empty if not known.
        special_tokens: Texts of the special and added tokens.
        assumed: Special tokens that the template prints and nothing names, with what stands in for them.
    """

    template: ChatTemplate
    stop_tokens: tuple[str, ...]
    special_tokens: tuple[str, ...]
    assumed: Mapping[str, str] = field(default_factory=dict)


def load_source(name: str, stop_tokens: Sequence[str] = (), special_values: Mapping[str, str] | None = None) -> Source:
    """Find a template.

    Args:
        name: A jinja file, a folder, a model id, or one of our own models (`smollm2`, `tiny`).
        stop_tokens: Stop tokens the user gave; they replace those found.
        special_values: Values of `eos_token`, `bos_token`, ... for a jinja file, which does not say them.

    Raises:
        CommandError: There is none, a file is broken, or `special_values` are given for a tokenizer, which has its own.
        ImportError: A tokenizer was named and transformers is not installed.
    """
    path = Path(name).expanduser()
    looks_like_path = path.suffix in (".jinja", ".jinja2", ".json") or name.startswith(("/", ".", "~"))
    if not path.exists() and (looks_like_path or name.count("/") > 1):
        raise CommandError(f"{name!r} does not exist; give a tokenizer folder, a jinja file or a model id", Exit.USAGE)
    try:
        if path.is_file():
            source = _read_file(path, stop_tokens, special_values or {})
        elif special_values:
            wrong = f"--eos and --bos are for a jinja file: {name!r} names its own tokens; leave them out"
            raise CommandError(wrong, Exit.USAGE)
        else:
            tokens = TokenizerAdapter(get_tokenizer(str(path) if path.is_dir() else name))
            source = Source(
                template=ChatTemplate.from_tokenizer(tokens.tokenizer),
                stop_tokens=tokens.stop_tokens,
                special_tokens=tokens.special_tokens,
            )
    except TemplateError as error:
        raise CommandError(f"{name!r}: {error}", Exit.USAGE) from error
    except ModelLoadError as error:
        raise CommandError(str(error), Exit.USAGE) from error
    return replace(source, stop_tokens=tuple(stop_tokens)) if stop_tokens else source


_STAND_INS = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def _read_file(path: Path, stop_tokens: Sequence[str], given: Mapping[str, str]) -> Source:
    if path.suffix == ".json":
        raise CommandError(f"{str(path)!r} is a JSON file; give its folder, or a file with the jinja text", Exit.USAGE)
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{str(path)!r} cannot be read as text: {error}", Exit.USAGE) from error
    if "{{" not in text and "{%" not in text:
        wrong = f"{str(path)!r} holds no jinja text; give a tokenizer folder, a jinja file or a model id"
        raise CommandError(wrong, Exit.USAGE)
    values = ({"eos_token": stop_tokens[0]} if stop_tokens else {}) | dict(given)
    assumed = {name: token for name, token in _STAND_INS.items() if name in text and name not in values}
    values |= assumed
    specials = dict.fromkeys([*_LOOKS_SPECIAL.findall(text), *values.values()])
    return Source(
        template=ChatTemplate(text, special_values=values),
        stop_tokens=(values["eos_token"],) if "eos_token" in values else (),
        special_tokens=tuple(specials),
        assumed=assumed,
    )


def check_served(server: str, source: str) -> None:
    """Raise `CommandError` unless a server runs this model, as far as it says."""
    try:
        connect(server, source)
    except (StrandsSGLangError, OSError, ValueError) as error:
        raise CommandError(error) from error
