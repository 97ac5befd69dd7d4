"""`strands-env replay`: run a recorded evaluation again, without its server, and compare every sample."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from functools import partial

from strands_env.commands.progress import make_display
from strands_env.commands.terminal import announce, explained, note, run_user_code, say
from strands_env.recipe.evaluation import build_evaluation
from strands_env.recipe.recording import Replay, digest_of
from strands_sglang.command_line import CommandError, Exit


def run(args: argparse.Namespace) -> int:
    """Run it again."""
    run_user_code(verbose=args.verbose)
    quiet = args.quiet or args.json
    with explained(ValueError, TypeError, OSError):
        replay = Replay(args.file)
        options = dataclasses.replace(replay.options, output_path=args.output or f"{args.file}.replay", track=())
        evaluation = build_evaluation(
            options,
            {},
            resume=False,
            note=lambda text: note("replay", f"note: {text}"),
            announce=partial(announce, quiet=quiet),
            progress=make_display(quiet=quiet),
            tape=replay,
        )
        asyncio.run(evaluation.run())
    if not replay.digests:
        raise CommandError(f"{args.file!r} has no sample to compare with: the recorded run did not end")
    samples = [sample for group in evaluation.evaluator.load_results().values() for sample in group]
    changed = sorted(sample.id for sample in samples if digest_of(sample) != replay.digests.get(sample.id))
    missing = sorted(replay.digests.keys() - {sample.id for sample in samples})
    is_same = not (changed or missing or replay.difference or replay.left_over)
    if args.json:
        document = {"samples": len(samples), "changed": changed, "missing": missing}
        say(json.dumps({**document, "difference": replay.difference, "requests_left_over": replay.left_over}))
        return Exit.OK if is_same else Exit.FAILED
    say(
        f"{len(samples) - len(changed)} of {len(replay.digests)} samples are as recorded, but for times and message ids"
    )
    if replay.difference is not None:
        say(f"first difference: {replay.difference}")
    elif replay.left_over:
        say(f"{replay.left_over} recorded requests were not made again")
    for name in (*changed[:5], *missing[:5]):
        say(f"differs: sample {name}")
    return Exit.OK if is_same else Exit.FAILED
