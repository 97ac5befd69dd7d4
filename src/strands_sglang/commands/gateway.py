"""`strands-sglang gateway`: the gateway in front of a model server or of the embedded engine."""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command_line import CommandError, Exit, add_former, add_kind, json_object, port, positive, seconds

if TYPE_CHECKING:
    from ..gateway import OtherBackend

ADMIN_KEY_VARIABLE = "STRANDS_GATEWAY_ADMIN_KEY"
PASS_KEY_VARIABLE = "STRANDS_GATEWAY_PASS_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--base-url", metavar="URL", help="SGLang server, or vllm+http://...")
    source.add_argument("--model", metavar="NAME", help="embedded engine: smollm2, tiny, a Hugging Face id or a folder")
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer of the served model (with --base-url)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port, default=0, help="port to listen on, 0 for a free one (%(default)s)")
    parser.add_argument("--allowed-host", action="append", default=[], metavar="NAME", help="further name of this host")
    parser.add_argument(
        "--admin-key",
        default=os.environ.get(ADMIN_KEY_VARIABLE),
        metavar="KEY",
        help=f"key of the session routes; better given as {ADMIN_KEY_VARIABLE}, which no process list shows",
    )
    parser.add_argument("--auto-sessions", action="store_true", help="make a session for any key (development)")
    parser.add_argument("--state", metavar="FOLDER", help="keep sessions there, so that they survive this process")
    parser.add_argument(
        "--state-limit", type=positive, default=16, metavar="GIB", help="size limit of that folder (%(default)s GiB)"
    )
    add_former(parser, "--workers", "start several gateways behind a router that hashes the session, such as HAProxy")
    parser.add_argument("--session-ttl", type=seconds, metavar="SECONDS", help="seal sessions idle for this long")
    parser.add_argument(
        "--sampling", type=json_object, metavar="JSON", help="every session's sampling parameters, or a file"
    )
    parser.add_argument(
        "--pass",
        dest="passes",
        action="append",
        default=[],
        metavar="MODEL=URL[,VARIABLE]",
        help=f"pass requests for MODEL on to another server, with the key in VARIABLE ({PASS_KEY_VARIABLE})",
    )
    add_kind(parser, "kind of server at --base-url")
    parser.add_argument("--client-sampling", action="store_true", help="honour clients' sampling parameters")
    parser.add_argument("--join-equal", action="store_true", help="answer equal requests in flight with one sample")
    parser.add_argument("--strict", action="store_true", help="refuse fields that would be left out and counted")
    parser.add_argument("--tool-parser", metavar="NAME", help="tool parser (default: chosen by the chat template)")
    parser.add_argument("--chat-template", metavar="FILE", help="jinja file instead of the tokenizer's template")
    parser.add_argument("--context-length", type=positive, metavar="TOKENS", help="context (default: the model's)")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the first line printed is the address. Returns the exit status."""
    if wrong := _find_misuse(args):
        raise CommandError(wrong, Exit.USAGE)
    from ..gateway.server import bind

    # First: loading a model takes minutes, and the port may be taken.
    with _naming_errors(), bind(args.host, args.port) as listener:
        asyncio.run(serve(args, listener))
    return Exit.OK


@contextmanager
def _naming_errors() -> Iterator[None]:
    from ..exceptions import StateError, StrandsSGLangError  # brings the SDK, which help does without

    try:
        yield
    except (TypeError, ValueError) as error:
        raise CommandError(error, Exit.USAGE) from error
    except OSError as error:
        taken = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        raise CommandError(f"{error}{taken}") from error
    except StateError as error:
        raise CommandError(error, Exit.REFUSED) from error
    except StrandsSGLangError as error:
        raise CommandError(error) from error


def _find_misuse(args: argparse.Namespace) -> str | None:
    """The complaint about options that contradict each other, or None; nothing is loaded."""
    if not args.base_url and not args.model:
        return "name the model: --base-url URL --tokenizer PATH for a server, --model NAME for a model here"
    if args.base_url and not args.tokenizer:
        return "--base-url needs --tokenizer, the folder or hub id of the served model's tokenizer"
    from ..gateway.requests import is_loopback

    if not is_loopback(args.host) and args.admin_key is None:
        return f"--host {args.host} can be reached from other machines: give --admin-key KEY, or {ADMIN_KEY_VARIABLE}"
    if args.model and args.tokenizer:
        return "--tokenizer would have no effect: the model of --model brings its own; leave it out"
    if args.chat_template and not os.path.isfile(args.chat_template):
        return f"--chat-template: no such file: {args.chat_template!r}"
    return None


async def serve(args: argparse.Namespace, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    from ..gateway.server import DEFAULT_MODEL_NAME, Gateway
    from ..gateway.session_options import ConversationOptions

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        from strands.telemetry import StrandsTelemetry

        try:
            StrandsTelemetry().setup_otlp_exporter()
        except ImportError as error:
            raise CommandError("an OTLP endpoint is set: spans need pip install 'strands-rollout[otel]'") from error
    options: ConversationOptions = {"sampling_params": args.sampling or {}, "tool_parser": args.tool_parser}
    if args.chat_template:
        options["chat_template"] = Path(args.chat_template).read_text(encoding="utf-8")
    if not args.model:
        options["context_window_limit"] = args.context_length
    async with AsyncExitStack() as stack:
        client, tokenizer, name = await _model(args, stack)
        stack.callback(gc.enable)
        gc.disable()  # its passes double the time in which thousands of sessions are taken up
        gateway = await stack.enter_async_context(
            Gateway(
                client=client,
                tokenizer=tokenizer,
                model_name=name or DEFAULT_MODEL_NAME,
                listener=listener,
                hosts=[args.host, *args.allowed_host],
                other_backends=_other_backends(args.passes),
                admin_key=args.admin_key,
                auto_sessions=args.auto_sessions,
                session_ttl=args.session_ttl,
                state=args.state,
                state_limit=args.state_limit * 2**30,
                client_sampling=args.client_sampling,
                join_equal=args.join_equal,
                strict=args.strict,
                **options,
            )
        )
        gc.enable()
        sys.stdout.write(f"listening on {gateway.url} model {name or args.tokenizer}\n")
        sys.stdout.flush()
        await stop.wait()
        if lost := [each for each in gateway.sessions.values() if args.state is None and not each.is_exported]:
            tokens = sum(session.conversation.forest.sampled_tokens for session in lost)
            sys.stderr.write(
                f"{len(lost)} session{'s' * (len(lost) != 1)} with {tokens} sampled tokens end here, as they were "
                "kept in memory only: --state FOLDER keeps them\n"
            )


def _other_backends(texts: Sequence[str]) -> dict[str, OtherBackend]:
    """The backends that `--pass` names, each model once."""
    backends: dict[str, OtherBackend] = {}
    for model, backend in map(_other_backend, texts):
        if model in backends:
            raise ValueError(f"--pass: {model!r} is given twice; name each model once")
        backends[model] = backend
    return backends


def _other_backend(text: str) -> tuple[str, OtherBackend]:
    """The model and the backend that `--pass` names."""
    from ..gateway import OtherBackend

    model, is_given, address = text.partition("=")
    url, _, variable = address.partition(",")
    if not (model and is_given):
        raise ValueError("--pass: expected MODEL=URL or MODEL=URL,VARIABLE, such as haiku=https://api.anthropic.com")
    if variable and not os.environ.get(variable):
        raise ValueError(f"--pass: there is no key in the environment variable {variable}")
    key = os.environ.get(variable or PASS_KEY_VARIABLE, "").strip()
    return model, OtherBackend(url, key or None)


async def _model(args: argparse.Namespace, stack: AsyncExitStack) -> tuple[Any, Any, str | None]:
    """Client, tokenizer and the name under which the model is served, None if the server states none."""
    from ..backends.clients import connect, open_engine

    if args.model:
        more = {} if args.context_length is None else {"context_length": args.context_length}
        engine = await stack.enter_async_context(open_engine(args.model, **more))
        return engine, engine.tokenizer, os.path.realpath(args.model) if os.path.exists(args.model) else args.model
    client, tokenizer, _ = await asyncio.to_thread(connect, args.base_url, args.tokenizer, plain=args.backend)
    name = await asyncio.to_thread(client.served_model)
    return await stack.enter_async_context(client), tokenizer, name
