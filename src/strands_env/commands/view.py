"""`strands-env view`: a run in the terminal, or one sample with its messages."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from typing import Any

from strands_env.commands.summary import summary_lines
from strands_env.commands.terminal import complain, complain_of, format_number, one_line, say
from strands_env.eval import EvalError, EvalSample, ScoreTable, summarize
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.run.groups import Grouping
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader
from strands_env.report.details import before
from strands_sglang.command_line import Exit
from strands_sglang.exceptions import did_you_mean


def run(args: argparse.Namespace) -> int:
    """Show."""
    try:
        if args.sample is None:
            return _overview(args)
        return _sample(args)
    except (FileNotFoundError, EvalError) as error:
        return complain_of("view", error)


def _overview(args: argparse.Namespace) -> int:
    prompts: dict[str, list[tuple[int, str]]] = {}
    questions: dict[str, str] = {}
    table = ScoreTable()
    with ResultReader(args.run) as reader:
        for entry in reader.in_task_order():
            sample = reader.read(entry)
            table.add(sample.prompt_id, sample)
            reward = sample.reward
            shown = sample.step_result.termination_reason.value if reward is None else f"{reward:g}"
            prompts.setdefault(sample.prompt_id, []).append((sample.index, shown))
            questions.setdefault(sample.prompt_id, one_line(sample.action.text)[:60])
    saved = SavedRun.of(args.run)
    Grouping.of(saved.document).apply(table)
    summary = summarize(table, reward_threshold=saved.threshold(None))
    listed = list(zip(table.prompt_ids, table.by_prompt(), strict=True))
    if args.json:
        shown_prompts = [
            {"prompt": name, "samples": dict(sorted(prompts[name])), **without_nan({"mean": score.mean})}
            for name, score in listed[: args.limit]
        ]
        say(json.dumps({**summary.to_dict(), "prompts_shown": shown_prompts}))
        return Exit.OK
    say("\n".join(summary_lines(summary, title=str(args.run), wall_s=saved.wall_s)))
    say()
    width = max((len(one_line(name)) for name, _ in listed[: args.limit]), default=0)
    for name, score in listed[: args.limit]:
        rewards = " ".join(shown for _, shown in sorted(prompts[name]))
        say(f"{one_line(name):{width}}  {format_number(score.mean)}  {questions[name]}  [{rewards}]")
    if len(listed) > args.limit:
        say(f"... and {len(listed) - args.limit} more (--limit)")
    if listed:
        name = listed[0][0]
        say(f"\none sample  strands-env view {args.run} {shlex.quote(f'{name}/{min(prompts[name])[0]}')}")
    return Exit.OK


def _sample(args: argparse.Namespace) -> int:
    name, _, number = args.sample.rpartition("/")
    with ResultReader(args.run) as reader:
        wanted = [
            reader.read(entry, with_tokens=True)
            for entry in reader.entries
            if entry.prompt_id == args.sample or (entry.prompt_id == name and str(entry.index) == number)
        ]
        known: dict[str, list[int]] = {}
        for entry in reader.entries:
            known.setdefault(entry.prompt_id, []).append(entry.index)
    if not wanted:
        if name in known:
            hint = f" (the samples of {name!r} are {', '.join(map(str, sorted(known[name])))})"
        else:
            hint = did_you_mean(name or args.sample, known) or (f" (there is {min(known)!r})" if known else "")
        return complain(
            "view", f"{args.run!r} has no sample {args.sample!r}{hint}: give a prompt's id, or id/index", Exit.USAGE
        )
    if args.json:
        for sample in sorted(wanted, key=lambda sample: sample.index):
            say(sample.model_dump_json())
        return Exit.OK
    system_prompt = SavedRun.of(args.run).system_prompt
    for sample in sorted(wanted, key=lambda sample: sample.index):
        say("\n".join(_lines(sample, system_prompt)))
    return Exit.OK


def _lines(sample: EvalSample, system_prompt: str | None) -> Iterator[str]:
    result = sample.step_result
    reward = "-" if sample.reward is None else f"{sample.reward:g}"
    yield f"== {one_line(sample.prompt_id)}/{sample.index}  reward {reward}  {result.termination_reason.value}"
    if sample.action.task_context.ground_truth is not None:
        yield f"   expected {sample.action.task_context.ground_truth}"
    for message in [*before(sample, system_prompt), *result.observation.messages]:
        yield f"-- {message.get('role')}"
        for block in message.get("content") or []:
            yield from (f"   {line}" for line in _block(block).splitlines())
    if result.error is not None:
        yield f"-- error in {result.error.where}: {result.error.type}: {result.error.message}"
        if result.error.raised_at is not None:
            yield f"   raised at {result.error.raised_at}"
    if (tokens := result.observation.tokens) is not None:
        sampled = sum(tokens.output_mask)
        known = [value for value in tokens.logprobs if value is not None]
        mean = f", mean logprob {sum(known) / len(known):.3f}" if known else ""
        yield f"-- {len(tokens)} tokens, {tokens.prompt_length} of the first prompt, {sampled} sampled{mean}"
    yield ""


def _block(block: dict[str, Any]) -> str:
    if "text" in block:
        return str(block["text"])
    if "toolUse" in block:
        return f"call {block['toolUse'].get('name')}({json.dumps(block['toolUse'].get('input'), ensure_ascii=False)})"
    if "toolResult" in block:
        inner = "\n".join(_block(item) for item in block["toolResult"].get("content") or [])
        return f"result ({block['toolResult'].get('status')}): {inner}"
    if "reasoningContent" in block:
        return f"(thinks) {block['reasoningContent'].get('reasoningText', {}).get('text', '')}"
    return json.dumps(block, ensure_ascii=False, default=repr)
