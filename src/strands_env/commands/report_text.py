"""`strands-env report` in the terminal: a run (`--text`), its samples with their messages, and whether it is whole.

`--verify` reads every line of the files; a server or a model then scores the tokens again.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from strands_env.commands.display import summary_lines
from strands_env.commands.terminal import announce, explain_errors, format_number, one_line, say, show
from strands_env.core.jsonable import shown_text
from strands_env.eval import EvalError, EvalSample, ScoreTable, Verification, summarize, verify_run
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.report.details import SNIPPET, messages_of, task_of
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader
from strands_env.eval.verify import Mismatch, check_temperature, measure_mismatch, vocab_size_of
from strands_sglang.backends.clients import client_class, open_engine
from strands_sglang.command_line import CommandError, Exit
from strands_sglang.exceptions import StrandsSGLangError, did_you_mean

DAMAGES = 10
"""Damages that are shown."""


def show_run(args: argparse.Namespace) -> Exit:
    """Show a run, prompt by prompt."""
    saved = SavedRun.of(args.run)
    table = ScoreTable(replace(saved.options, reward_threshold=saved.threshold(args.reward_threshold)))
    rows: dict[str, dict[str, Any]] = {}
    with ResultReader(saved.paths.results) as reader:
        for sample in map(reader.read, reader.in_task_order()):
            name, result = sample.prompt_id, sample.step_result
            table.add(name, sample)
            text = task_of(sample.action.text, None, SNIPPET)["text"]
            row = rows.setdefault(name, {"prompt": name, "text": text, "samples": {}})
            reward = result.termination_reason.value if sample.reward is None else f"{sample.reward:g}"
            row["samples"][sample.index] = reward
    summary = summarize(table)
    prompts = [{**row, "mean": score.mean} for row, score in zip(rows.values(), table.by_prompt(), strict=True)]
    chosen = prompts[: 50 if args.limit is None else args.limit]
    lines = [*summary_lines(summary, title=str(args.run), wall_s=saved.wall_s), ""]
    width = max((len(one_line(each["prompt"])) for each in chosen), default=0)
    for each in chosen:
        scores = " ".join(each["samples"].values())
        name, mean = one_line(each["prompt"]), format_number(each["mean"])
        lines.append(f"{name:{width}}  {mean}  {each['text'][:60]}  [{scores}]")
    if len(prompts) > len(chosen):
        lines.append(f"... and {len(prompts) - len(chosen)} more (--limit)")
    if prompts:
        first = f"{prompts[0]['prompt']}/{next(iter(prompts[0]['samples']))}"
        lines += ["", f"one sample  strands-env report {args.run} {shlex.quote(first)}"]
    show({**summary.to_dict(), "prompts_shown": without_nan(chosen)}, lines, as_json=args.json)
    return Exit.OK


def show_samples(args: argparse.Namespace) -> Exit:
    """Show the samples of a prompt, or one of them."""
    name, _, number = args.sample.rpartition("/")
    with ResultReader(args.run) as reader:
        samples = [
            reader.read(entry, with_tokens=True)
            for entry in reader.entries
            if entry.prompt_id == args.sample or (entry.prompt_id == name and str(entry.index) == number)
        ]
        indices: dict[str, list[int]] = {}
        for entry in reader.entries:
            indices.setdefault(entry.prompt_id, []).append(entry.index)
    if not samples:
        if name in indices:
            hint = f" (the samples of {name!r} are {', '.join(map(str, sorted(indices[name])))})"
        else:
            hint = did_you_mean(name or args.sample, indices) or (f" (there is {min(indices)!r})" if indices else "")
        text = f"{args.run!r} has no sample {args.sample!r}{hint}: give a prompt's id, or id/index"
        raise CommandError(text, Exit.USAGE)
    system_prompt = SavedRun.of(args.run).system_prompt
    for sample in sorted(samples, key=lambda sample: sample.index):
        say(sample.model_dump_json() if args.json else "\n".join(_lines(sample, system_prompt)))
    return Exit.OK


def _lines(sample: EvalSample, system_prompt: str | None) -> Iterator[str]:
    result = sample.step_result
    reward = "-" if sample.reward is None else f"{sample.reward:g}"
    yield f"== {one_line(sample.prompt_id)}/{sample.index}  reward {reward}  {result.termination_reason.value}"
    if sample.action.task_context.ground_truth is not None:
        yield f"   expected {sample.action.task_context.ground_truth}"
    for message in messages_of(sample, system_prompt):
        yield f"-- {message['role']}"
        for block in message["blocks"]:
            yield from (f"   {line}" for line in _text(block).splitlines())
    if result.error is not None:
        yield f"-- error in {result.error.where}: {result.error}"
        if result.error.raised_at is not None:
            yield f"   raised at {result.error.raised_at}"
    if (tokens := result.observation.tokens) is not None:
        sampled = sum(tokens.output_mask)
        logprobs = [value for value in tokens.logprobs if value is not None]
        mean = f", mean logprob {sum(logprobs) / len(logprobs):.3f}" if logprobs else ""
        yield f"-- {len(tokens)} tokens, {tokens.prompt_length} of the first prompt, {sampled} sampled{mean}"
    yield ""


def _text(block: dict[str, Any]) -> str:
    """A block of a report's message as text."""
    match block["kind"]:
        case "call":
            return f"call {block['name']}({shown_text(block['input'])})"
        case "result":
            return f"result ({block['status']}): " + "\n".join(map(_text, block["blocks"]))
        case "reasoning":
            return f"(thinks) {block['text']}"
        case "json":
            return shown_text(block["value"])
    return str(block["text"])


# ---- verifying -------------------------------------------------------------------------------------------------------


def verify(args: argparse.Namespace) -> Exit:
    """Verify a run."""
    # A wrong address or name is usage, a server that fails is none.
    with explain_errors(StrandsSGLangError, OSError, status=Exit.FAILED), explain_errors(ValueError):
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
    show(document, _verify_lines(saved, files, mismatch), as_json=args.json)
    if not files.is_intact:
        return Exit.REFUSED
    if mismatch is not None and not mismatch.tokens:
        reasons = "; ".join(f"{count} trajectories: {reason}" for reason, count in mismatch.skipped.items())
        raise CommandError(f"nothing was scored again: {reasons or 'no tokens'}", Exit.USAGE)
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
            client.served_tokenizer(is_optional=True)  # explains a wrong address
    try:
        vocab_size = None
        if args.server is not None:
            vocab_size = await vocab_size_of(client, args.server, saved.model.get("model_id"))
        with announce("scoring again", quiet=quiet):
            return await measure_mismatch(saved.paths, client, limit=args.limit, vocab_size=vocab_size)
    finally:
        await client.close()


def _verify_lines(saved: SavedRun, files: Verification, mismatch: Mismatch | None) -> Iterator[str]:
    yield f"{saved.paths.results}: {files.samples} samples, {files.with_tokens} with tokens"
    if files.torn_bytes:
        yield f"torn        {files.torn_bytes} bytes of an interrupted write at the end; a resume cuts them off"
    for damage in files.damages[:DAMAGES]:
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
