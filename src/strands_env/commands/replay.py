"""`strands-env replay`: run a recorded evaluation again, without its server, and compare every sample."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses

from strands_env.commands.eval import prepare
from strands_env.commands.terminal import explain_errors, run_user_code, show
from strands_env.recipe.recording import Replay, digest_of
from strands_sglang.command_line import CommandError, Exit


def run(args: argparse.Namespace) -> int:
    """Run it again."""
    run_user_code(verbose=args.verbose)
    with explain_errors(ValueError, TypeError, OSError):
        replay = Replay(args.file)
        options = dataclasses.replace(replay.options, output_path=args.output or f"{args.file}.replay", track=())
        evaluation = prepare(options, {}, "replay", quiet=args.quiet or args.json, tape=replay)
        asyncio.run(evaluation.run())
    if not replay.digests:
        raise CommandError(f"{args.file!r} has no sample to compare with: the recorded run did not end")
    samples = [sample for group in evaluation.evaluator.load_results().values() for sample in group]
    changed = sorted(sample.id for sample in samples if digest_of(sample) != replay.digests.get(sample.id))
    missing = sorted(replay.digests.keys() - {sample.id for sample in samples})
    is_same = not (changed or missing or replay.difference or replay.left_over)
    same = len(samples) - len(changed)
    lines = [f"{same} of {len(replay.digests)} samples are as recorded, but for times and message ids"]
    if replay.difference is not None:
        lines.append(f"first difference: {replay.difference}")
    elif replay.left_over:
        lines.append(f"{replay.left_over} recorded requests were not made again")
    lines += [f"differs: sample {name}" for name in (*changed[:5], *missing[:5])]
    document = {"samples": len(samples), "changed": changed, "missing": missing, "difference": replay.difference}
    show({**document, "requests_left_over": replay.left_over}, lines, as_json=args.json)
    return Exit.OK if is_same else Exit.FAILED
