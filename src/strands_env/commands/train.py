"""`strands-env train`: train a model on an environment with GRPO."""

from __future__ import annotations

import argparse
import logging
import warnings
from importlib.util import find_spec

from strands_env.commands.terminal import explain_errors, run_user_code
from strands_sglang.command_line import CommandError, Exit
from strands_sglang.hints import install_command


def run(args: argparse.Namespace) -> int:
    """Check the names that were given, then load the trainer."""
    run_user_code(verbose=args.verbose)
    if not args.verbose:
        warnings.simplefilter("ignore")  # TRL's, about its own interface
        for name in ("strands", "huggingface_hub"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    from strands_env.commands.recipe.names import checked_arguments

    with explain_errors():
        arguments = checked_arguments(vars(args))
    is_here = arguments["trainer"] in (None, "trl") and not arguments["dry_run"]
    if is_here and (missing := [name for name in ("torch", "trl") if find_spec(name) is None]):
        raise CommandError(f"training needs {missing[0]}: {install_command('train')}", Exit.USAGE)
    from strands_env.commands.train_run import train

    return train(arguments)
