"""`strands-env check`: try an environment before a run: its shape, its tools, its first prompt, its reward."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from strands_env.commands.terminal import complain, format_number, one_line, say
from strands_env.core import Action, TaskContext
from strands_env.core.limits import shorten
from strands_env.eval import EvalError
from strands_env.eval.run.benchmark import Benchmark
from strands_env.eval.run.tasks import Tasks, contained, stream
from strands_env.recipe.dry_run import ANSWER, DryRun, Level, models_of, try_environment
from strands_env.recipe.environments import make_env_factory
from strands_env.recipe.names import benchmark_of_data
from strands_env.recipe.objects import load_evaluator
from strands_env.recipe.tasks import DataBenchmark, columns_of
from strands_sglang.backends import BackendInfo, GenerateRequest, PromptIds, client_class
from strands_sglang.backends.engine.own_models import ModelLoadError
from strands_sglang.backends.http.served import SERVERS
from strands_sglang.command_line import Exit
from strands_sglang.exceptions import BackendError

SHOWN = 4000
"""Characters of the first prompt that are shown."""
CALLED = 200
"""Characters of a tool's result that are shown."""


def run(args: argparse.Namespace) -> int:
    """Check."""
    # The findings say what is wrong.
    logging.basicConfig(level=logging.WARNING if args.verbose else logging.CRITICAL)
    sys.path.insert(0, "")  # hooks in the folder one is in
    try:
        if args.env is None and args.benchmark is None and args.data is None:
            raise EvalError("nothing to check: give --env module:function, a benchmark, or --data FILE")
        action = first_action(args)
        factory = make_env_factory(
            benchmark=benchmark_name(args),
            env=args.env,
            env_config=args.env_config,
            reward=args.reward,
            models=models_of(args.tokenizer),
        )
        seen = asyncio.run(try_environment(factory, action, args.call))
        server = None if args.base_url is None else try_server(args.base_url, args.backend, args.tokenizer)
    except BackendError as error:
        return complain("check", error, Exit.FAILED)
    except (EvalError, ValueError, TypeError, OSError) as error:
        return complain("check", error, Exit.USAGE)
    if args.json:
        say(json.dumps(_to_dict(seen), default=str))
    else:
        _show(seen, server)
    return Exit.OK if seen.is_ok else Exit.INCOMPLETE


def try_server(base_url: str, kind: str, tokenizer: str | None) -> str:
    """Sample one token of a server at temperature 0.7, as training would; a line on the server."""
    from strands_sglang import get_tokenizer

    make_client, address = client_class(base_url, kind)
    client = make_client(address, max_retries=2, retry_delay=0.2)
    name = tokenizer if tokenizer not in (None, "none") else str(client.served_tokenizer())
    try:
        loaded = get_tokenizer(name)
    except ModelLoadError as error:
        raise EvalError(f"the tokenizer {name!r} cannot be loaded, --tokenizer names another: {error}") from error
    client.check_tokenizer(loaded, name)

    async def sample() -> BackendInfo:
        async with client:
            prompt = PromptIds.of(loaded.encode("Hello", add_special_tokens=False))
            params = {"max_new_tokens": 1, "temperature": 0.7}
            await client.ask(GenerateRequest(prompt=prompt, sampling_params=params))
            return await client.info()

    info = asyncio.run(sample())
    room = info.context_length or "unknown"
    return f"{SERVERS[client.kind]}, tokenizer {name}, context {room}; sampled a token with its log-probability"


def benchmark_name(args: argparse.Namespace) -> str:
    """The benchmark whose environment is the default."""
    return args.benchmark or (benchmark_of_data(args.data) if args.data is not None else "")


def first_action(args: argparse.Namespace) -> Action:
    """The task to try: the one given, the first of the data, or any."""
    if args.message is not None:
        return Action(message=args.message, task_context=TaskContext(id="check", ground_truth=args.ground_truth))
    name = benchmark_name(args)
    if not name:
        truth = args.ground_truth or "an answer"
        return Action(message="Hello", task_context=TaskContext(id="check", ground_truth=truth))
    kind = load_evaluator(name)
    options: dict[str, Any] = {}
    if issubclass(kind, Benchmark):
        options = {"data_path": args.data, "limit": 1}
    if issubclass(kind, DataBenchmark):
        options["columns"] = columns_of(args.columns)
    evaluator = kind(dict, **options)
    with contained():
        found = asyncio.run(_first(evaluator.load_dataset()))
    if found is None:
        raise EvalError(f"{name!r} has no tasks: give one with --message")
    return found


async def _first(tasks: Tasks) -> Action | None:
    async with aclosing(stream(tasks)) as actions:
        async for action in actions:
            return action
    return None


def _show(seen: DryRun, server: str | None) -> None:
    for spec in seen.tools:
        say(f"tool        {signature(spec)}")
        say(f"            {one_line(str(spec.get('description') or ''))[:160]}")
    if not seen.tools:
        say("tools       none")
    if seen.prompt is not None:
        say(f"prompt      {seen.prompt_tokens} tokens, as the model reads it:")
        say("\n".join(f"  | {line}" for line in shorten(seen.prompt, SHOWN).splitlines()))
    if seen.result is not None and seen.result.reward is not None:
        value = seen.result.reward.reward
        say(f"reward      {'none' if value is None else format_number(value)} for the answer {ANSWER!r}")
    for one in seen.calls:
        given = json.dumps(one.input, ensure_ascii=False, default=str)
        say(f"call        {one.name}({given}) gave {one_line(one.text)[:CALLED]!r}")
    for finding in seen.findings:
        say(f"{finding.level.value:<11} {one_line(finding.what)}")
    if server is not None:
        say(f"server      {server}")
    errors = sum(finding.level is Level.ERROR for finding in seen.findings)
    warnings = len(seen.findings) - errors
    found = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}" if seen.findings else "nothing to change"
    say(f"checked     {found}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def signature(spec: Mapping[str, Any]) -> str:
    """A tool as the model sees it: `name(argument: type, optional: type = ...)`."""
    schema = spec.get("inputSchema") or {}
    schema = schema.get("json", schema)
    required = set(schema.get("required") or ())
    parts = []
    for name, about in (schema.get("properties") or {}).items():
        kind = about.get("type", "any") if isinstance(about, dict) else "any"
        parts.append(f"{name}: {kind}{'' if name in required else ' = ...'}")
    return f"{spec.get('name')}({', '.join(parts)})"


def _to_dict(seen: DryRun) -> dict[str, Any]:
    result = seen.result
    return {
        "ok": seen.is_ok,
        "findings": [{"level": finding.level.value, "what": finding.what} for finding in seen.findings],
        "tools": seen.tools,
        "calls": [asdict(one) for one in seen.calls],
        "prompt": seen.prompt,
        "prompt_tokens": seen.prompt_tokens,
        "reward": None if result is None or result.reward is None else result.reward.reward,
        "termination_reason": None if result is None else result.termination_reason.value,
    }
