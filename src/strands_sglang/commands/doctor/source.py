"""The chat template that a user names: a jinja file, a folder, a model id, or one of our own models.

Files and folders are read as they are, so that neither needs transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...backends.engine.own_models import (
    UnknownModelError,
    check_model_name,
    is_own_model,
    only_from_cache,
    why_not_loaded,
)
from ...exceptions import TemplateError
from ...template import SPECIAL_NAMES, ChatTemplate

_LOOKS_SPECIAL = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</?s>|\[/?[A-Z_]{3,20}\]|<(?:start|end)_of_turn>")


class SourceError(Exception):
    """The source the user gave has no usable template; the message is one sentence."""


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
        SourceError: There is none, a file is broken, or `special_values` are given for a folder, which has its own.
        ModuleNotFoundError: A model id was given and transformers is not installed.
    """
    path = Path(name).expanduser()
    if special_values and path.is_dir():
        raise SourceError(
            f"--eos and --bos are for a jinja file: the folder {name!r} names its own tokens; leave them out"
        )
    try:
        if is_own_model(name):
            from ...backends.engine.loader import load_tokenizer

            source = _from_tokenizer(load_tokenizer(name))
        elif path.is_dir():
            source = _from_folder(path)
        elif path.is_file():
            source = _from_file(path, stop_tokens, special_values or {})
        elif path.suffix in (".jinja", ".jinja2", ".json") or name.startswith(("/", ".", "~")) or name.count("/") > 1:
            raise SourceError(f"{name!r} does not exist; give a tokenizer folder, a jinja file or a model id")
        else:
            source = _from_hub(name)
    except TemplateError as error:
        raise SourceError(f"{name!r}: {error}") from error
    if stop_tokens:
        return replace(source, stop_tokens=tuple(stop_tokens))
    return source


# ---- a jinja file ---------------------------------------------------------------------------------------------------


_STAND_INS = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def _from_file(path: Path, stop_tokens: Sequence[str], given: Mapping[str, str]) -> Source:
    if path.suffix == ".json":
        raise SourceError(f"{str(path)!r} is a JSON file; give its folder, or a file with the jinja text")
    text = _read(path)
    if "{{" not in text and "{%" not in text:
        raise SourceError(f"{str(path)!r} holds no jinja text; give a tokenizer folder, a jinja file or a model id")
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


# ---- a folder -------------------------------------------------------------------------------------------------------


def _from_folder(path: Path) -> Source:
    config = _json(path / "tokenizer_config.json")
    special_map = _json(path / "special_tokens_map.json")
    by_id = _added_tokens(path, config)
    values = {}
    for name in SPECIAL_NAMES:
        value = _token_text(special_map.get(name, config.get(name)))
        if value:
            values[name] = value
    stops = [by_id[i] for i in _eos_ids(path) if i in by_id]
    if "eos_token" in values:
        stops.append(values["eos_token"])
    return Source(
        template=ChatTemplate(_templates(path, config), special_values=values),
        stop_tokens=tuple(dict.fromkeys(stops)),
        special_tokens=tuple(dict.fromkeys([*by_id.values(), *values.values()])),
    )


def _templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    own = config.get("chat_template") or _json(path / "chat_template.json").get("chat_template")
    texts: dict[str, str] = {}
    if isinstance(own, str):
        texts["default"] = own
    elif isinstance(own, list):
        texts |= {str(entry["name"]): str(entry["template"]) for entry in own}
    if (path / "chat_template.jinja").is_file():
        texts["default"] = _read(path / "chat_template.jinja")
    for extra in sorted((path / "additional_chat_templates").glob("*.jinja")):
        texts[extra.stem] = _read(extra)
    if not texts:
        raise SourceError(
            f"{str(path)!r} has no chat template (no chat_template.jinja, none in tokenizer_config.json); "
            "give the jinja file itself"
        )
    return texts


def _added_tokens(path: Path, config: Mapping[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for token in _json(path / "tokenizer.json").get("added_tokens") or []:
        found[int(token["id"])] = str(token["content"])
    for content, number in _json(path / "added_tokens.json").items():
        found[int(number)] = str(content)
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        found[int(number)] = _token_text(token)
    return found


def _eos_ids(path: Path) -> Iterable[int]:
    for file in ("generation_config.json", "config.json"):
        ids = _json(path / file).get("eos_token_id")
        if ids is not None:
            return [int(i) for i in (ids if isinstance(ids, list) else [ids])]
    return []


def _token_text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{str(path)!r} cannot be read as text: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise SourceError(f"{str(path)!r} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}


# ---- a model id -----------------------------------------------------------------------------------------------------


def _from_hub(name: str) -> Source:
    try:
        check_model_name(name)
    except UnknownModelError as error:
        raise SourceError(str(error)) from error
    from transformers import AutoTokenizer, GenerationConfig

    try:
        options = {"local_files_only": only_from_cache(name)}
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except Exception as error:  # whatever the hub client raises, there is no tokenizer
        raise SourceError(
            f"{name!r} is not a file or folder, and no such tokenizer can be loaded: {why_not_loaded(error)}"
        ) from error
    try:
        ids = GenerationConfig.from_pretrained(name, **options).eos_token_id
    except Exception:  # many models have none
        ids = None
    return _from_tokenizer(tokenizer, ids)


def _from_tokenizer(tokenizer: Any, ids: Any = None) -> Source:
    numbers = ids if isinstance(ids, list) else [] if ids is None else [ids]
    stops = [tokenizer.convert_ids_to_tokens(i) for i in numbers]
    if tokenizer.eos_token:
        stops.append(tokenizer.eos_token)
    specials = [*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()]
    return Source(
        template=ChatTemplate.from_tokenizer(tokenizer),
        stop_tokens=tuple(dict.fromkeys(str(stop) for stop in stops if stop)),
        special_tokens=tuple(dict.fromkeys(str(token) for token in specials)),
    )
