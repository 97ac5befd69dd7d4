"""`strands-sglang drift`: the tokens that re-tokenising a run's texts would have changed."""

from __future__ import annotations

import argparse

from strands_env.commands.arguments import add_drift
from strands_env.commands.terminal import announce, explain_errors, one_line, show
from strands_sglang.command_line import CommandError, Exit

EXAMPLES = 10
"""Places that are shown."""


add_arguments = add_drift  # for `strands-sglang drift`, which finds them here


def run(args: argparse.Namespace) -> int:
    """Count."""
    with explain_errors(), announce(f"reading {args.run}", quiet=args.json):  # which `strands-sglang` does not know
        from strands_env.eval.saved import SavedRun  # after the first line, for this takes time

        saved = SavedRun.of(args.run, must_exist=True)
        tokenizer = saved.tokenizer(args.tokenizer).tokenizer
        if tokenizer is None:
            raise CommandError("drift needs the run's tokenizer: name it with --tokenizer", Exit.USAGE)
        totals = saved.drift(tokenizer, examples=EXAMPLES)
    if not totals.trajectories:
        raise CommandError(
            f"{args.run!r} holds no tokens: it was run with --no-tokens, or by a provider without token data",
            Exit.USAGE,
        )
    lines = [f"{saved.name}: {totals}: {totals.changed_tokens} of {totals.sampled_tokens} sampled tokens"]
    for kind, places in totals.kinds.most_common():
        lines.append(f"{kind:<14} {places} {'place' if places == 1 else 'places'}")
    for example in totals.examples:
        before = " ".join(repr(text) for text in example.sampled)
        after = " ".join(repr(text) for text in example.retokenized)
        lines.append(f"  {one_line(example.name)} token {example.start}: sampled {before}, comes back as {after}")
    show(totals.to_dict(), lines, as_json=args.json)
    return Exit.OK
