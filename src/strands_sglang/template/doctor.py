"""The command `strands-sglang doctor`: can this chat template be extended turn by turn, and with which caveats?

```
strands-sglang doctor path/to/tokenizer
strands-sglang doctor template.jinja --stop '<|im_end|>' --kwargs '{"enable_thinking": false}' --json
```

Exit status: 0 usable, 1 UNSUPPORTED, 2 wrong input.

Files and folders are read as they are, so that neither needs transformers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from strands_sglang.command_line import Exit
from strands_sglang.engine.own_models import (
    UnknownModelError,
    check_model_name,
    is_own_model,
    only_from_cache,
    own_tokenizer,
    why_not_loaded,
)
from strands_sglang.exceptions import TemplateError
from strands_sglang.template.chat_template import SPECIAL_NAMES, ChatTemplate
from strands_sglang.template.renderer import DeltaRenderer
from strands_sglang.template.report import Flag, Report, Shape, Verdict
from strands_sglang.template.self_check import probe_tools

_LOOKS_SPECIAL = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</?s>|\[/?[A-Z_]{3,20}\]|<(?:start|end)_of_turn>")


class SourceError(Exception):
    """The source the user gave has no usable template; the message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A chat template with what is known of its tokens.

    Attributes:
        template: The template.
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
            source = _from_tokenizer(own_tokenizer(name))
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


_VERDICTS = {
    Verdict.EXACT: "every step is exact; its cost does not grow with the conversation",
    Verdict.EXACT_FULL: "every step is exact; the template keeps state, so each step renders the full history",
    Verdict.PARTIAL: "exact, but the template refuses some shapes; such a step raises TemplateError",
    Verdict.UNSUPPORTED: "the template cannot express what is needed",
}

_FLAGS = {
    Flag.DROPS_REASONING_AT_USER: "earlier reasoning is lost in a re-rendered history once a user message follows",
    Flag.DROPS_REASONING_AT_TOOL: "earlier reasoning is lost in a re-rendered history once a tool result follows; "
    "the trajectory keeps it, or branch",
    Flag.GENERATION_PROMPT_NOT_IN_HISTORY: "a re-rendered history never extends the trajectory; nothing to do here, "
    "but do not compare the two",
    Flag.REPEATS_TOOLS: "deltas at user turns repeat the tool list, as the model saw in training; to avoid it start "
    "a new path at user turns",
    Flag.REPEATS_SYSTEM: "deltas at user turns repeat the system text; to avoid it start a new path at user turns",
    Flag.DROPS_TEXT_BESIDE_CALLS: "text beside tool calls is lost in a re-rendered history (a restored session, a "
    "shortened one); dropped_content says what happens",
    Flag.DROPS_CALLS: "tool calls are lost in a re-rendered history; dropped_content says what happens",
    Flag.NO_CLOSER: "some turn ends without an end token; the sampled one stays in the context",
    Flag.CLOSER_IS_NOT_A_STOP: "some turn ends with a token that is not a stop token; check the stop tokens (--stop)",
}

_SHAPES = {
    Shape.TEXT_USER: "this template cannot hold a conversation; use another one",
    Shape.CALL_TOOL: "use a template with tool support, or pass tool results as user messages",
    Shape.CALLS_TOOLS: "have the model make one call at a time",
    Shape.CALL_TOOL_USER: "do not add a user message after tool results",
    Shape.CALL_USER: "answer a call that did not parse with a tool message, not with a user message",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("source", help="tokenizer or model folder, jinja file, or model id")
    parser.add_argument("--stop", action="append", default=[], metavar="TOKEN", help="stop token (repeatable)")
    parser.add_argument("--eos", metavar="TOKEN", help="end-of-sequence token, for a jinja file that prints it")
    parser.add_argument("--bos", metavar="TOKEN", help="beginning-of-sequence token, for a jinja file that prints it")
    parser.add_argument("--kwargs", default="{}", metavar="JSON", help="variables of the template, a JSON object")
    parser.add_argument("--no-tools", action="store_true", help="check for use without tools")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Check a template and print the report.

    Returns:
        0 if the template is usable, 1 if not, 2 for wrong input.

    Raises:
        ModuleNotFoundError: A model id was given and transformers is not installed.
    """
    try:
        kwargs = _parse_kwargs(args.kwargs)
        special = {"eos_token": args.eos, "bos_token": args.bos}
        given = {name: token for name, token in special.items() if token is not None}
        source = load_source(args.source, args.stop, given)
        renderer = DeltaRenderer(
            source.template,
            tools=None if args.no_tools else probe_tools([]),
            template_kwargs=kwargs,
            stop_tokens=source.stop_tokens,
            special_tokens=source.special_tokens,
        )
        report = renderer.report
    except (SourceError, TemplateError) as error:
        sys.stderr.write(f"strands-sglang doctor: {error}\n")
        return Exit.USAGE
    printed = None if args.no_tools else renderer.printed_call("lookup", {"q": "two words"})
    if args.json:
        text = json.dumps(_as_json(report, source, printed), ensure_ascii=False, indent=2)
    else:
        text = "\n".join(_as_text(report, source, printed, with_tools=not args.no_tools))
    sys.stdout.write(text + "\n")
    return Exit.FAILED if report.verdict is Verdict.UNSUPPORTED else Exit.OK


def _parse_kwargs(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SourceError(f"--kwargs {text!r} is not valid JSON ({error}); give an object, such as {{}}") from error
    if not isinstance(value, dict):
        raise SourceError(f'--kwargs {text!r} is not a JSON object; write it like {{"enable_thinking": false}}')
    return value


def _as_text(report: Report, source: Source, printed: str | None, *, with_tools: bool) -> Iterator[str]:
    yield f"verdict    {report.verdict}: {_VERDICTS[report.verdict]}"
    yield f"path       {report.path}"
    stops = " ".join(map(repr, source.stop_tokens))
    yield f"stops      {stops or 'not known: pass --stop TOKEN for each token the engine stops on'}"
    if source.assumed:
        shown = ", ".join(f"{name}={token!r}" for name, token in source.assumed.items())
        yield f"assumed    {shown}: the file does not say what they are; pass --eos and --bos"
    yield "turn ends"
    for shape, closer in report.closers.items():
        yield f"  {shape:<15} {closer!r}" if closer else f"  {shape:<15} (none printed)"
    if report.flags:
        yield "flags"
        for flag in sorted(report.flags):
            yield f"  {flag}: {_FLAGS[flag]}"
            if flag is Flag.DROPS_REASONING_AT_USER:
                yield f"    {_keep_advice(report)}"
    if report.refused:
        yield "refused"
        advised = set()
        for shape, reason in report.refused.items():
            result = report.shapes[shape]
            where = f" (in {result.total - result.answered} of {result.total} probes)" if result.ok else ""
            yield f"  {shape}: {reason}{where}"
            if reason not in advised:
                yield f"    {_SHAPES[shape]}"
            advised.add(reason)
    if with_tools:
        yield f"tools      {_tools_line(report)}"
        yield f"calls      {'not printed from tool_calls' if printed is None else repr(printed)}"
        yield f"arguments  {report.argument_form}"
    yield "content    " + ", ".join(f"{role}: {form}" for role, form in report.content_forms.items())
    yield f"reasoning  {f'prompt opens {report.opens_reasoning}' if report.opens_reasoning else 'no open block'}"


def _keep_advice(report: Report) -> str:
    if report.keep_reasoning_kwargs:
        return f"template_kwargs={dict(report.keep_reasoning_kwargs)!r} makes the template keep it"
    return "the trajectory keeps it (append), or start a new path at user turns (branch)"


def _tools_line(report: Report) -> str:
    if not report.prints_tools:
        return "the template does not show the tools to the model: describe them in the system prompt"
    return "rendered at every step" if report.tools_matter else "left out of the steps: proved not to matter there"


def _as_json(report: Report, source: Source, printed: str | None) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "path": report.path,
        "stop_tokens": source.stop_tokens,
        "assumed": dict(source.assumed),
        "closers": report.closers,
        "flags": sorted(report.flags),
        "refused": report.refused,
        "argument_form": report.argument_form,
        "content_forms": dict(report.content_forms),
        "prints_tools": report.prints_tools,
        "tools_matter": report.tools_matter,
        "printed_call": printed,
        "opens_reasoning": report.opens_reasoning,
        "keep_reasoning_kwargs": dict(report.keep_reasoning_kwargs),
    }
