"""`strands-env demo`: sampled rollouts of a real model, and one of them whose text tokenises to other tokens."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from strands_env.commands.recipe.factories import loading, make_model_factory
from strands_env.commands.terminal import announce, columns, one_line, show
from strands_env.core import Action, ModelFactory, StepResult
from strands_env.core.seeds import RolloutSeed, derive_seed
from strands_env.eval.benchmarks.arithmetic import ArithmeticEvaluator
from strands_env.eval.drift import DriftKind, DriftSpan, DriftTotals
from strands_env.eval.options import EvalOptions
from strands_sglang.command_line import Exit

ROUNDS = 5
"""Times the questions are asked, with new seeds, until a rollout drifts."""
CONTEXT = 4
"""Tokens shown on either side of a changed stretch."""
_NEXT = "strands-env eval arithmetic --limit 20 -n 4 --temperature 1 -o runs/first"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuestion:
    """A question, the rollout that answered it, and the stretches that its text would bring back as other tokens."""

    question: str
    result: StepResult
    spans: list[DriftSpan]

    @property
    def is_right(self) -> bool:
        """The last number of the answer is the expected one."""
        return self.result.reward is not None and self.result.reward.reward == 1.0


def run(args: argparse.Namespace) -> int:
    """Sample, and show."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    logging.getLogger("strands").setLevel(logging.CRITICAL)  # a small model calls tools that do not exist
    announce_step = partial(announce, quiet=args.json)
    sampling = {"temperature": args.temperature, "max_new_tokens": args.max_new_tokens}
    options = EvalOptions(model_id=args.model, sampling=sampling)
    with announce_step(loading(options)):
        models = make_model_factory(options)
    return asyncio.run(_demo(args, models, announce_step))


async def _demo(args: argparse.Namespace, models: Any, announce: Any) -> Exit:
    totals, answered, example = DriftTotals(tokenizer=models.engine.tokenizer), [], None
    try:
        for number in range(ROUNDS):
            more = "" if number == 0 else " more, none of the others drifted"
            with announce(
                f"sampling {args.questions * args.samples} rollouts at temperature {args.temperature:g}{more}"
            ):
                answered += await _sample(models, args, totals, seed=args.seed + number)
            if drifted := [one for one in answered if one.spans]:
                example = await _example(drifted, models.engine)
                break
    finally:
        await models.engine.close()
    right = sum(one.is_right for one in answered)
    counts = totals.to_dict()
    del counts["examples"]
    document = {"rollouts": len(answered), "right": right, **counts, "example": example}
    show(document, summary_lines(answered, example, totals, right), as_json=args.json)
    return Exit.OK if right else Exit.FAILED


async def _sample(
    models: ModelFactory, args: argparse.Namespace, totals: DriftTotals, *, seed: int
) -> list[AnsweredQuestion]:
    """Every question, `args.samples` times, all at once."""
    make_environment = ArithmeticEvaluator.environment(models)
    benchmark = ArithmeticEvaluator(make_environment, limit=args.questions, seed=seed, output_path=None)
    environment = make_environment()

    async def answer(action: Action, index: int) -> AnsweredQuestion:
        with RolloutSeed(derive_seed(seed, action.task_context.id, index)).active():
            result = await environment.step(action)
        spans: list[DriftSpan] = []
        if result.main_trajectory is not None:
            tokens = result.main_trajectory.tokens
            spans = [span for span in totals.add(tokens) if any(tokens.output_mask[span.start : span.end])]
        return AnsweredQuestion(question=str(action.message), result=result, spans=spans)

    actions = [benchmark.action(row, number) for number, row in enumerate(benchmark.rows())]
    return list(await asyncio.gather(*(answer(action, index) for action in actions for index in range(args.samples))))


async def _example(drifted: list[AnsweredQuestion], engine: Any) -> dict[str, Any]:
    """The stretch that is easiest to read: other merges of the same characters, in a right answer, and short.

    `sampled` and `retokenized` are the texts of the tokens, each with its ids and the model's log-probability of them
    in this place; `before` and `after` are the texts of the tokens around them.
    """

    def awkwardness(place: tuple[AnsweredQuestion, DriftSpan]) -> tuple[bool, bool, int]:
        one, span = place
        return span.kind is not DriftKind.OTHER_MERGE, not one.is_right, span.end - span.start

    one, span = min(((one, span) for one in drifted for span in one.spans), key=awkwardness)
    assert one.result.main_trajectory is not None
    tokens = one.result.main_trajectory.tokens
    ids, again = [int(token) for token in tokens.token_ids], list(span.retokenized_ids)
    # The other tokens in the same place, and their cost for the model.
    scored = await engine.score([*ids[: span.start], *again], start=span.start)

    def texts(tokens: list[int]) -> list[str]:
        return [engine.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    return {
        "question": one.question,
        "kind": span.kind.value,
        "before": texts(ids[max(0, span.start - CONTEXT) : span.start]),
        "after": texts(ids[span.end : span.end + CONTEXT]),
        "sampled_ids": ids[span.start : span.end],
        "sampled": texts(ids[span.start : span.end]),
        "retokenized_ids": again,
        "retokenized": texts(again),
        "sampled_logprob": sum(value for value in tokens.logprobs[span.start : span.end] if value is not None),
        "retokenized_logprob": float(sum(scored.logprobs)),
    }


# ---- showing ---------------------------------------------------------------------------------------------------------


def summary_lines(
    answered: list[AnsweredQuestion], example: dict[str, Any] | None, totals: DriftTotals, right: int
) -> Iterator[str]:
    """The rollouts and their count, the place where one drifts and its meaning, and the next command."""
    yield ""
    for one in answered:
        text, width = _text(one.result), max(20, columns(sys.stdout) - 29)
        shown = text if len(text) <= width else f"{text[: width - 3]}..."
        yield f"  {'right' if one.is_right else 'wrong'}  {one.question:19} {shown}"
    yield from ("", f"{right} of {len(answered)} answers are right.")
    if example is None:
        yield (
            f"Tokenising the text again would change none of these {totals.sampled_tokens} tokens: that happens, more "
            "rarely the shorter the rollouts. Try another --seed."
        )
    else:
        yield from _lines(example, totals)
    yield f"\nnext        {_NEXT}"


def _text(result: StepResult) -> str:
    """The calls, their results and the answer in one line."""
    parts: list[str] = []
    for block in (block for message in result.observation.messages for block in message["content"]):
        if "toolUse" in block:
            arguments = ", ".join(map(str, dict(block["toolUse"]["input"]).values()))
            parts.append(f"{block['toolUse']['name']}({arguments})")
        elif "toolResult" in block:
            parts += ["->", *(str(part.get("text", "...")) for part in block["toolResult"]["content"]), "|"]
    return one_line(" ".join([*parts, result.observation.final_response or f"({result.termination_reason.value})"]))


def _lines(example: dict[str, Any], totals: DriftTotals) -> list[str]:
    """The two rows of tokens, and their meaning."""
    changed = f"{totals.changed_tokens} of {totals.sampled_tokens} sampled tokens, in {totals.changed_trajectories}"
    rows, numbers = [], []
    for title, name in (("sampled", "sampled"), ("from text", "retokenized")):
        marked = [f"[{_piece(text)}]" for text in example[name]]
        pieces = [*map(_piece, example["before"]), *marked, *map(_piece, example["after"])]
        rows.append(f"  {title:10}{'|'.join(pieces)}")
        ids, logprob = " ".join(map(str, example[f"{name}_ids"])), example[f"{name}_logprob"]
        numbers.append(f"  {title:10}ids {ids}  log-probability {logprob:.2f}")
    difference = example["sampled_logprob"] - example["retokenized_logprob"]
    factor = f"{math.exp(min(abs(difference), 20.0)):.3g} times as {'un' * (difference > 0)}likely"
    return [
        f"A tokenizer that reads the text of these rollouts again changes {changed} of {totals.trajectories} rollouts.",
        f"One place, in the answer to {one_line(example['question'])!r}:",
        *("", *rows, "", *numbers, ""),
        f"Same text, other tokens: a trainer that is given text learns from tokens nobody sampled, here ones {factor}.",
        "strands-rollout hands over the sampled ones with their log-probabilities, through every turn.",
    ]


def _piece(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
