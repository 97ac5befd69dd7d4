"""`strands-env report RUN --verify`: are the files of a run whole, and does a server agree on its log-probabilities?"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from strands_env.commands.terminal import announce, explained, format_number, one_line, show
from strands_env.eval import EvalError, Verification, verify_run
from strands_env.eval.saved import SavedRun
from strands_env.eval.verify import Mismatch, check_temperature, measure_mismatch, vocab_size_of
from strands_sglang.backends.clients import client_class, open_engine
from strands_sglang.command_line import CommandError, Exit
from strands_sglang.exceptions import StrandsSGLangError

SHOWN = 10
"""Damages that are shown."""


def verify(args: argparse.Namespace) -> Exit:
    """Verify a run."""
    # A wrong address or name is usage, a server that fails is none.
    with explained(StrandsSGLangError, OSError, status=Exit.FAILED), explained(ValueError):
        saved = SavedRun.of(args.run)
        files = verify_run(saved.paths.results)
        mismatch: Mismatch | None = None
        if args.server is not None or args.model is not None:
            if args.server is not None and args.model is not None:
                raise EvalError("give --server or --model, not both")
            if not files.with_tokens:
                raise EvalError(f"{args.run!r} holds no tokens to score again: it was run with --no-tokens")
            check_temperature(saved.model.get("sampling_params") or {})
            mismatch = asyncio.run(_score(saved, args))
        elif args.max_kl is not None:
            raise EvalError("--max-kl is for scoring again: give --base-url or --model")
    document = {"files": files.to_dict(), "mismatch": None if mismatch is None else mismatch.to_dict()}
    show(document, _lines(saved, files, mismatch), as_json=args.json)
    if not files.is_intact:
        return Exit.REFUSED
    if mismatch is not None and not mismatch.tokens:
        raise CommandError(f"nothing was scored again: {mismatch.why_not()}", Exit.USAGE)
    too_far = mismatch is not None and args.max_kl is not None and mismatch.kl > args.max_kl
    return Exit.INCOMPLETE if too_far else Exit.OK


async def _score(saved: SavedRun, args: argparse.Namespace) -> Mismatch:
    quiet = args.json or sys.stderr is None
    with announce(f"asking {args.server}" if args.server else f"loading the model {args.model}", quiet=quiet):
        if args.server is None:
            client: Any = open_engine(args.model)
        else:
            make, address = client_class(args.server)
            client = make(address, max_retries=3)
            client.served_tokenizer(is_optional=True)  # says what is wrong with an address
    try:
        vocab_size = None
        if args.server is not None:
            vocab_size = await vocab_size_of(client, args.server, saved.model.get("model_id"))
        with announce("scoring again", quiet=quiet):
            return await measure_mismatch(saved.paths, client, limit=args.limit, vocab_size=vocab_size)
    finally:
        await client.close()


def _lines(saved: SavedRun, files: Verification, mismatch: Mismatch | None) -> Iterator[str]:
    yield f"{saved.paths.results}: {files.samples} samples, {files.with_tokens} with tokens"
    if files.torn_bytes:
        yield f"torn        {files.torn_bytes} bytes of an interrupted write at the end; a resume cuts them off"
    for damage in files.damages[:SHOWN]:
        yield f"damaged     {damage}"
    if files.is_intact:
        yield "files       whole"
    if mismatch is None:
        return
    numbers = mismatch.to_dict()
    yield f"scored      {mismatch.trajectories} trajectories, {mismatch.tokens} sampled tokens"
    for reason, count in mismatch.skipped.items():
        yield f"skipped     {count} trajectories: {reason}"
    if not mismatch.tokens:
        return
    yield f"mismatch KL {mismatch.kl:.3g} nats a token"
    parts = [f"{name} {format_number(numbers[f'{name}_abs_difference'], 6)}" for name in ("mean", "p99", "max")]
    yield f"difference  {', '.join(parts)}  (of log-probabilities, absolute)"
    yield "worst tokens"
    tokenizer = saved.tokenizer().tokenizer

    def texts(token: int) -> str:
        return f"id {token}" if tokenizer is None else f"{str(tokenizer.decode([token]))!r}"

    for one in mismatch.worst:
        yield (
            f"  {one_line(one.sample)} token {one.position} {texts(one.token_id)}: recorded {one.recorded:.4f}, "
            f"scored {one.scored:.4f} ({one.scored - one.recorded:+.2g})"
        )
