"""The command `strands-sglang doctor`: is this chat template, or with `--vision` are these images, exact turn by turn?

```
strands-sglang doctor path/to/tokenizer
strands-sglang doctor template.jinja --stop '<|im_end|>' --kwargs '{"enable_thinking": false}' --json
strands-sglang doctor --vision Qwen/Qwen2.5-VL-3B-Instruct --server http://localhost:30000
```

Exit status: 0 usable, 1 not, 2 wrong input.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..backends.clients import connect, get_tokenizer
from ..backends.engine.own_models import ModelLoadError
from ..command_line import CommandError, Exit, server_of
from ..exceptions import StrandsSGLangError, TemplateError
from ..template import ChatTemplate, DeltaRenderer, Flag, Report, TemplateVerdict, probe_tools
from ..tokenizer import TokenizerAdapter


def run(args: argparse.Namespace) -> int:
    """Check a template, or prove the images of a model; returns the exit status."""
    args.server = server_of(args)
    if not args.vision:
        return check_template(args)
    from .doctor_vision import check_vision

    if args.server is None:
        raise CommandError("--vision needs --server URL, a server that runs the model", Exit.USAGE)
    check_served(args.server, args.source)
    return check_vision(args)


def check_template(args: argparse.Namespace) -> int:
    """Check a template and print the report; returns 0 if it is usable, 1 if not, 2 for wrong input.

    Raises:
        ModuleNotFoundError: A model id was given and transformers is not installed.
    """
    try:
        special = {"eos_token": args.eos, "bos_token": args.bos}
        special_values = {name: token for name, token in special.items() if token is not None}
        source = load_source(args.source, args.stop, special_values)
        renderer = DeltaRenderer(
            source.template,
            tools=None if args.no_tools else probe_tools([]),
            template_kwargs=args.kwargs,
            stop_tokens=source.stop_tokens,
            special_tokens=source.special_tokens,
        )
        report = renderer.report
    except TemplateError as error:
        raise CommandError(error, Exit.USAGE) from error
    printed = None if args.no_tools else renderer.printed_call("lookup", {"q": "two words"})
    if args.json:
        text = json.dumps(_as_json(report, source, printed), ensure_ascii=False, indent=2)
    else:
        text = "\n".join(_as_text(report, source, printed, with_tools=not args.no_tools))
    sys.stdout.write(text + "\n")
    if args.server is not None:
        check_served(args.server, args.source)
    return Exit.FAILED if report.verdict is TemplateVerdict.UNSUPPORTED else Exit.OK


def _as_text(report: Report, source: Source, printed: str | None, *, with_tools: bool) -> Iterator[str]:
    yield f"verdict    {report.verdict}: {report.verdict.text}"
    yield f"history    {report.history}"
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
            yield f"  {flag}: {flag.text}"
            if flag is Flag.DROPS_REASONING_AT_USER:
                kept = "the trajectory keeps it (append), or start a new path at user turns (branch)"
                if kwargs := dict(report.keep_reasoning_kwargs):
                    kept = f"template_kwargs={kwargs!r} makes the template keep it"
                yield f"    {kept}"
    if report.refused:
        yield "refused"
        advised = set()
        for shape, reason in report.refused.items():
            result = report.shapes[shape]
            where = f" (in {result.total - result.answered} of {result.total} probes)" if result.ok else ""
            yield f"  {shape}: {reason}{where}"
            if reason not in advised:
                yield f"    {shape.text}"
            advised.add(reason)
    if with_tools:
        unshown = "the template does not show the tools to the model: describe them in the system prompt"
        yield f"tools      {'shown in the first prompt' if report.prints_tools else unshown}"
        yield f"calls      {'not printed from tool_calls' if printed is None else repr(printed)}"
        yield f"arguments  {report.argument_form}"
    yield "content    " + ", ".join(f"{role}: {form}" for role, form in report.content_forms.items())
    yield f"reasoning  {f'prompt opens {report.opens_reasoning}' if report.opens_reasoning else 'no open block'}"


def _as_json(report: Report, source: Source, printed: str | None) -> dict[str, Any]:
    names = ("verdict", "history", "closers", "refused", "argument_form", "prints_tools", "opens_reasoning")
    return {name: getattr(report, name) for name in names} | {
        "stop_tokens": source.stop_tokens,
        "assumed": dict(source.assumed),
        "flags": sorted(report.flags),
        "content_forms": dict(report.content_forms),
        "printed_call": printed,
        "keep_reasoning_kwargs": dict(report.keep_reasoning_kwargs),
    }


# ---- the template that a user names


_LOOKS_SPECIAL = re.compile(r"<[|｜][^<>|｜\s]*\w[^<>|｜\s]*[|｜]>|</?s>|\[/?[A-Z_]{3,20}\]|<(?:start|end)_of_turn>")


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
