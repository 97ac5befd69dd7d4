"""`strands-env eval`: run a benchmark."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict

from strands_env.commands.terminal import explain_errors, run_user_code, show
from strands_sglang.command_line import Exit


def run(args: argparse.Namespace) -> int:
    """Check the names, then load the code that runs them."""
    run_user_code(verbose=args.verbose)
    if args.list:
        return _list(as_json=args.json)
    if args.schema:
        from strands_env.commands.recipe.run_file import RunFile

        show(None, [json.dumps(RunFile.model_json_schema(), indent=2)], as_json=False)
        return Exit.OK
    if not args.verbose:
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its retries; the error says the same
        logging.getLogger("strands").setLevel(logging.CRITICAL)  # calls of unknown tools are data, and in the results
        logging.getLogger("strands_env.rewards.proof").setLevel(logging.WARNING)
    from strands_env.commands.recipe.names import checked_arguments

    with explain_errors():
        arguments = checked_arguments(vars(args))
    from strands_env.commands.eval_run import run_benchmark

    return run_benchmark(arguments)


def _list(*, as_json: bool) -> Exit:
    from strands_env.eval import describe_benchmarks

    infos, lines = describe_benchmarks(), []
    width = max(len(info.name) for info in infos)
    for info in infos:
        text = info.description if info.is_available else f"cannot be loaded: {info.description}"
        lines.append(f"{info.name:{width}}  {text}{'' if info.origin == 'built-in' else f' ({info.origin})'}")
    show([asdict(info) for info in infos], lines, as_json=as_json)
    return Exit.OK
