"""`strands-env view`: a run in the terminal, or one sample with its messages."""

from __future__ import annotations

import argparse
import json
import unicodedata
from collections.abc import Iterator
from typing import Any

from strands_env.commands.display import format_number
from strands_env.commands.exits import Exit
from strands_env.commands.out import complain, say
from strands_env.commands.show import summary_lines
from strands_env.eval import EvalError, EvalSample, ScoreTable, read_results, summarize
from strands_env.eval.groups import Grouping
from strands_env.eval.store import StorePaths, load_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("run", help="folder or .jsonl of the run")
    parser.add_argument("sample", nargs="?", help="prompt id, or prompt id and index: p7 or p7/2")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="prompts to list (default: 50)")
    parser.add_argument("--failed", action="store_true", help="list only prompts with unscored samples")


def run(args: argparse.Namespace) -> int:
    """Show."""
    try:
        if args.sample is None:
            return _overview(args)
        return _sample(args)
    except FileNotFoundError as error:
        complain("view", f"there are no results at {error.filename!r}")
        return Exit.USAGE
    except EvalError as error:
        complain("view", error)
        return Exit.REFUSED


def _overview(args: argparse.Namespace) -> int:
    prompts: dict[str, list[tuple[int, str]]] = {}
    questions: dict[str, str] = {}
    table = ScoreTable()
    for sample in read_results(args.run):
        table.add(sample.prompt_id, sample)
        reward = sample.reward
        shown = sample.step_result.termination_reason.value if reward is None else f"{reward:g}"
        prompts.setdefault(sample.prompt_id, []).append((sample.index, shown))
        questions.setdefault(sample.prompt_id, " ".join(sample.action.text.split())[:60])
    Grouping.of(load_run(StorePaths.of(args.run).run)).apply(table)
    say("\n".join(summary_lines(summarize(table), title=str(args.run))))
    say()
    listed = [
        (name, score)
        for name, score in zip(table.prompt_ids, table.by_prompt(), strict=True)
        if not args.failed or score.n < len(prompts[name])
    ]
    width = max((len(name) for name, _ in listed[: args.limit]), default=0)
    for name, score in listed[: args.limit]:
        rewards = " ".join(shown for _, shown in sorted(prompts[name]))
        say(f"{name:{width}}  {format_number(score.mean)}  {_safe(questions[name])}  [{rewards}]")
    if len(listed) > args.limit:
        say(f"... and {len(listed) - args.limit} more (--limit)")
    return Exit.OK


def _sample(args: argparse.Namespace) -> int:
    name, _, number = args.sample.rpartition("/")
    wanted = [
        sample
        for sample in read_results(args.run, with_tokens=True)
        if sample.prompt_id == args.sample or (sample.prompt_id == name and str(sample.index) == number)
    ]
    if not wanted:
        complain("view", f"{args.run!r} has no sample {args.sample!r}")
        return Exit.USAGE
    for sample in sorted(wanted, key=lambda sample: sample.index):
        say("\n".join(_lines(sample)))
    return Exit.OK


def _lines(sample: EvalSample) -> Iterator[str]:
    result = sample.step_result
    reward = "-" if sample.reward is None else f"{sample.reward:g}"
    yield f"== {sample.prompt_id}/{sample.index}  reward {reward}  {result.termination_reason.value}"
    if sample.action.task_context.ground_truth is not None:
        yield f"   expected {_safe(str(sample.action.task_context.ground_truth))}"
    for message in result.observation.messages:
        yield f"-- {message.get('role')}"
        for block in message.get("content") or []:
            yield from (f"   {line}" for line in _safe(_block(block)).splitlines())
    if result.error is not None:
        yield f"-- error in {result.error.where}: {result.error.type}: {_safe(result.error.message)}"
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


def _safe(text: str) -> str:
    """Text that cannot move the cursor or change colours of the terminal."""
    return "".join(char if char in "\n\t" or unicodedata.category(char) != "Cc" else "�" for char in text)
