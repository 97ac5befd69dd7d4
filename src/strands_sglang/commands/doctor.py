"""The command `strands-sglang doctor`: can this chat template be used?

```
strands-sglang doctor path/to/tokenizer
strands-sglang doctor template.jinja --stop '<|im_end|>' --kwargs '{"enable_thinking": false}' --json
strands-sglang doctor Qwen/Qwen2.5-VL-3B-Instruct --server http://localhost:30000
```

Exit status: 0 usable, 1 not, 2 wrong input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..backends.clients import connect, get_tokenizer
from ..backends.engine.own_models import ModelLoadError
from ..backends.sglang.client import SGLangClient
from ..command_line import CommandError, Exit, server_of
from ..conversation.reply_format import ReplyReader, choose_reader
from ..exceptions import StrandsSGLangError, TemplateError, ToolParserError
from ..template import ChatTemplate, DeltaRenderer, Flag, TemplateVerdict, probe_tools
from ..tokenizer import TokenizerAdapter
from ..tool_parsers import TOOL_PARSER_REGISTRY, ToolParser, as_tool_parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The use of a template with tools or without, as a model decides on it.

    Attributes:
        reader: Parser and frame of its replies; None if it cannot be used.
        problem: Why it cannot be used, or its fault though it can; empty if there is none.
    """

    renderer: DeltaRenderer
    reader: ReplyReader | None
    problem: str

    @classmethod
    def of(cls, renderer: DeltaRenderer, tool_parser: ToolParser | None) -> Use:
        """Ask as a model asks."""
        report = renderer.report
        if report.verdict is TemplateVerdict.UNSUPPORTED and renderer.tools is None:
            return cls(renderer=renderer, reader=None, problem="; ".join(dict.fromkeys(report.refused.values())))
        try:
            reader = choose_reader(renderer, tool_parser)
        except (TemplateError, ToolParserError) as error:
            return cls(renderer=renderer, reader=None, problem=str(error))
        return cls(renderer=renderer, reader=reader, problem=reader.problem)

    @property
    def verdict(self) -> TemplateVerdict:
        """The verdict on prompts, or UNSUPPORTED if replies cannot be read."""
        return TemplateVerdict.UNSUPPORTED if self.reader is None else self.renderer.report.verdict


def run(args: argparse.Namespace) -> int:
    """Check a template and print the report; returns 0 if a model can use it, 1 if not, 2 for wrong input.

    Raises:
        ModuleNotFoundError: A model id was given and transformers is not installed.
    """
    try:
        special = {"eos_token": args.eos, "bos_token": args.bos}
        special_values = {name: token for name, token in special.items() if token is not None}
        source = load_source(args.source, args.stop, special_values)
        tool_parser = as_tool_parser(args.tool_parser)
        with_tools, without = (Use.of(source.renderer(tools, args.kwargs), tool_parser) for tools in (True, False))
    except (TemplateError, ToolParserError) as error:
        raise CommandError(error, Exit.USAGE) from error
    asked = without if args.no_tools else with_tools
    printed = None if args.no_tools else asked.renderer.printed_call("lookup", {"q": "two words"})
    server = server_of(args)
    images = {} if server is None else {"images": takes_images(server, args.source)}
    if args.json:
        report = _as_json(asked, source, printed, {"with": with_tools, "without": without})
        text = json.dumps({**report, **images}, ensure_ascii=False, indent=2)
    else:
        lines = list(_as_text(asked, source, printed, {"with": with_tools, "without": without}))
        lines += [f"images     {_IMAGES[answer]}" for answer in images.values()]
        text = "\n".join(lines)
    sys.stdout.write(text + "\n")
    return Exit.FAILED if asked.reader is None else Exit.OK


_IMAGES = {
    True: "the server takes them",
    False: "the server takes none",
    None: "the server does not say whether it takes them; the first request with one proves it",
}


def _as_text(asked: Use, source: Source, printed: str | None, uses: Mapping[str, Use]) -> Iterator[str]:
    report, with_tools = asked.renderer.report, asked.renderer.tools is not None
    if asked.verdict is report.verdict:
        yield f"verdict    {report.verdict}: {report.verdict.text}"
    else:
        yield f"verdict    {asked.verdict}: its replies cannot be read"
        yield f"prompts    {report.verdict}: {report.verdict.text}"
    for name, use in uses.items():
        yield f"{name + ' tools':<14} {'yes' if use.reader else 'no'}{f': {use.problem}' if use.problem else ''}"
    yield from _replies(asked)
    yield f"history    {report.history}"
    stops = " ".join(map(repr, source.stop_tokens))
    yield f"stops      {stops or 'not known: pass --stop TOKEN for each token the engine stops on'}"
    if source.assumed:
        shown = ", ".join(f"{name}={token!r}" for name, token in source.assumed.items())
        yield f"assumed    {shown}: the file does not name them; pass --eos and --bos"
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


def _replies(asked: Use) -> Iterator[str]:
    """The reading of replies: by which parser, out of which frame, with reasoning between which tags."""
    if asked.reader is None:
        return
    report, parser = asked.renderer.report, asked.reader.parser
    if asked.renderer.tools is not None:
        yield f"parser     {_name_of(parser)}"
    yield f"frame      {' '.join(map(repr, parser.frame.texts)) if parser.frame and parser.frame.texts else 'none'}"
    opened = report.opened_tags(report.generation_prompt)
    opening, closing = opened or parser.think_tokens or ("", "")
    if opened:
        where = f"prompt opens {opening}, {closing} closes it"
    elif closing:
        where = f"between {opening} and {closing}; the prompt opens no block"
    else:
        where = "shown as text"
    past = any(reply.thought for reply in report.replies.replies)
    yield f"reasoning  {where}; {'printed' if past else 'not printed'} in past replies"


def _as_json(asked: Use, source: Source, printed: str | None, uses: Mapping[str, Use]) -> dict[str, Any]:
    report, parser = asked.renderer.report, None if asked.reader is None else asked.reader.parser
    names = ("history", "closers", "refused", "argument_form", "prints_tools", "opens_reasoning")
    tags = report.opened_tags(report.generation_prompt) or (None if parser is None else parser.think_tokens)
    return {
        "verdict": asked.verdict,
        "prompts": report.verdict,
        **{f"{name}_tools": {"usable": use.reader is not None, "problem": use.problem} for name, use in uses.items()},
        "parser": None if parser is None else _name_of(parser),
        "frame": list(parser.frame.texts) if parser is not None and parser.frame is not None else [],
        "reasoning_tags": tags,
        **{name: getattr(report, name) for name in names},
        "stop_tokens": source.stop_tokens,
        "assumed": dict(source.assumed),
        "flags": sorted(report.flags),
        "content_forms": dict(report.content_forms),
        "printed_call": printed,
        "keep_reasoning_kwargs": dict(report.keep_reasoning_kwargs),
    }


def _name_of(parser: ToolParser) -> str:
    """The name by which the parser is registered."""
    return next((name for name, each in TOOL_PARSER_REGISTRY.items() if type(parser) is each), type(parser).__name__)


# ---- the template that a user names


_LOOKS_SPECIAL = re.compile(r"<[|｜][^<>|｜\s]*\w[^<>|｜\s]*[|｜]>|</?s>|\[/?[A-Z_]{3,20}\]|<(?:start|end)_of_turn>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A chat template with the known facts about its tokens.

    Attributes:
        stop_tokens: Texts of the tokens generation stops on; empty if not known.
        special_tokens: Texts of the special and added tokens.
        assumed: Special tokens that the template prints and nothing names, with their stand-ins.
    """

    template: ChatTemplate
    stop_tokens: tuple[str, ...]
    special_tokens: tuple[str, ...]
    assumed: Mapping[str, str] = field(default_factory=dict)

    def renderer(self, with_tools: bool, kwargs: Mapping[str, Any]) -> DeltaRenderer:
        """A renderer of the template, with one small tool or without any."""
        return DeltaRenderer(
            self.template,
            tools=probe_tools([]) if with_tools else None,
            template_kwargs=kwargs,
            stop_tokens=self.stop_tokens,
            special_tokens=self.special_tokens,
        )


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


def takes_images(server: str, source: str) -> bool | None:
    """True if the server takes images; None if it does not say.

    Raises:
        CommandError: It does not answer, or runs another model.
    """

    async def ask(client: SGLangClient) -> bool | None:
        async with client:
            told = (await client.get_model_info()).get("has_image_understanding")
        return {"true": True, "false": False}.get(str(told).lower())  # a router gives it as text

    try:
        client = connect(server, source).client
        return asyncio.run(ask(client)) if isinstance(client, SGLangClient) else None
    except (StrandsSGLangError, OSError, ValueError) as error:
        raise CommandError(error) from error
