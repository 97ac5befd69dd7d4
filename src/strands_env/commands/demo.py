"""`strands-env demo`: sampled rollouts of a real model, and one of them whose text tokenises to other tokens."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from strands_env.commands.terminal import announce, columns, complain, one_line, paint, paints, safe, say
from strands_env.core import Action, ModelFactory, StepResult
from strands_env.core.seeds import RolloutSeed, derive_seed
from strands_env.eval import EvalError
from strands_env.eval.benchmarks.arithmetic import ArithmeticEvaluator
from strands_env.recipe.models import loading, make_model_factory
from strands_sglang.command_line import Exit
from strands_sglang.trajectory.drift import DriftKind, DriftSpan, DriftTotals

ROUNDS = 5
"""Times the questions are asked, with new seeds, until a rollout drifts."""
CONTEXT = 4
"""Tokens shown on either side of a changed stretch."""
MAX_TOKENS = 16
"""Longest stretch that is shown, if there is a shorter one."""
_NEXT = "strands-env eval arithmetic --limit 20 -n 4 --temperature 1 -o runs/first"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuestion:
    """One answered question."""

    action: Action
    result: StepResult

    @property
    def is_right(self) -> bool:
        """The last number of the answer is the expected one."""
        return self.result.reward is not None and self.result.reward.reward == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A stretch of sampled tokens beside the tokens of the same text.

    Attributes:
        before: Texts of the tokens in front of it; `after`: of those behind it.
        sampled_logprob: Sum of the log-probabilities of the sampled tokens of the stretch.
        retokenized_logprob: The model's for the tokens of the text, in the same place.
    """

    question: str
    kind: str
    before: list[str]
    after: list[str]
    sampled_ids: list[int]
    sampled: list[str]
    retokenized_ids: list[int]
    retokenized: list[str]
    sampled_logprob: float | None
    retokenized_logprob: float | None


def run(args: argparse.Namespace) -> int:
    """Sample, and show."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    logging.getLogger("strands").setLevel(logging.CRITICAL)  # a small model calls tools that do not exist
    announce_step = partial(announce, quiet=args.json)
    sampling = {"temperature": args.temperature, "max_new_tokens": args.max_new_tokens}
    options = {"backend": "local", "model_id": args.model}
    try:
        with announce_step(loading(options)):
            models = make_model_factory(**options, sampling_params=sampling)
    except EvalError as error:
        return complain("demo", error, Exit.USAGE)
    return asyncio.run(_demo(args, models, announce_step))


async def _demo(args: argparse.Namespace, models: Any, announce: Any) -> Exit:
    try:
        totals = DriftTotals(tokenizer=models.engine.tokenizer)
        rollouts: list[AnsweredQuestion] = []
        places: list[tuple[AnsweredQuestion, DriftSpan]] = []
        for number in range(ROUNDS):
            count = args.questions * args.samples
            again = "" if number == 0 else " more, none of the others drifted"
            with announce(f"sampling {count} rollouts at temperature {args.temperature:g}{again}"):
                new = await _sample(models, args, seed=args.seed + number)
            rollouts += new
            places += [(rollout, span) for rollout in new for span in _drift(rollout, totals)]
            if places:
                break
        example = await _example(*_choose(places), models) if places else None
    finally:
        await models.engine.close()
    right = sum(rollout.is_right for rollout in rollouts)
    if args.json:
        counts = totals.to_dict()
        del counts["examples"]
        shown = {"rollouts": len(rollouts), "right": right, **counts, "example": example and asdict(example)}
        say(json.dumps(shown))
    else:
        _show(rollouts, example, totals, right)
    return Exit.OK if right else Exit.FAILED


async def _sample(models: ModelFactory, args: argparse.Namespace, *, seed: int) -> list[AnsweredQuestion]:
    """Every question, `args.samples` times, all at once."""
    make_environment = ArithmeticEvaluator.environment(models)
    benchmark = ArithmeticEvaluator(make_environment, limit=args.questions, seed=seed, output_path=None)
    environment = make_environment()

    async def one(action: Action, index: int) -> AnsweredQuestion:
        with RolloutSeed(derive_seed(seed, action.task_context.id, index)).active():
            return AnsweredQuestion(action=action, result=await environment.step(action))

    actions = [benchmark.action(row, number) for number, row in enumerate(benchmark.rows())]
    return list(await asyncio.gather(*(one(action, index) for action in actions for index in range(args.samples))))


def _drift(rollout: AnsweredQuestion, totals: DriftTotals) -> list[DriftSpan]:
    """Stretches with sampled tokens that its text would bring back as others."""
    trajectory = rollout.result.main_trajectory
    if trajectory is None:
        return []
    mask = trajectory.tokens.loss_mask
    spans = totals.add(trajectory.tokens.token_ids, [bool(value) for value in mask])
    return [span for span in spans if any(mask[span.start : span.end])]


def _choose(places: list[tuple[AnsweredQuestion, DriftSpan]]) -> tuple[AnsweredQuestion, DriftSpan]:
    """The one that is easiest to read: short, other merges of the same characters, in a right answer."""

    def awkwardness(place: tuple[AnsweredQuestion, DriftSpan]) -> tuple[bool, bool, bool]:
        rollout, span = place
        tokens = span.end - span.start + len(span.retokenized_ids)
        return (tokens > 2 * MAX_TOKENS, span.kind is not DriftKind.OTHER_MERGE, not rollout.is_right)

    return min(places, key=awkwardness)


async def _example(rollout: AnsweredQuestion, span: DriftSpan, models: Any) -> Example:
    trajectory = rollout.result.main_trajectory
    assert trajectory is not None
    engine, ids = models.engine, [int(token) for token in trajectory.tokens.token_ids]
    logprobs = [None if value is None else float(value) for value in trajectory.tokens.logprobs]

    def texts(tokens: list[int]) -> list[str]:
        return [engine.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    sampled, again = ids[span.start : span.end], list(span.retokenized_ids)
    scored = await engine.score([*ids[: span.start], *again], start=span.start)
    return Example(
        question=str(rollout.action.message),
        kind=span.kind.value,
        before=texts(ids[max(0, span.start - CONTEXT) : span.start]),
        after=texts(ids[span.end : span.end + CONTEXT]),
        sampled_ids=sampled,
        sampled=texts(sampled),
        retokenized_ids=again,
        retokenized=texts(again),
        sampled_logprob=_sum(logprobs[span.start : span.end]),
        retokenized_logprob=float(sum(scored.logprobs)) if span.start else None,  # nothing comes before the first
    )


def _sum(logprobs: list[float | None]) -> float | None:
    known = [value for value in logprobs if value is not None]
    return sum(known) if known and len(known) == len(logprobs) else None


# ---- showing ---------------------------------------------------------------------------------------------------------


def _show(rollouts: list[AnsweredQuestion], example: Example | None, totals: DriftTotals, right: int) -> None:
    colour = paints(sys.stdout)
    say()
    for rollout in rollouts:
        say(_row(rollout, colour=colour), painted=colour)
    say()
    if example is None:
        say(
            f"Tokenising the text again would change none of these {totals.sampled_tokens} tokens: that happens, more "
            "rarely the shorter the rollouts. Try another --seed."
        )
    else:
        for line in _lines(example, totals, colour=colour):
            say(line, painted=colour)
    say()
    say(f"next        {_NEXT}")
    say(f"{right} of {len(rollouts)} answers right")


def _row(rollout: AnsweredQuestion, *, colour: bool) -> str:
    observation, reason = rollout.result.observation, rollout.result.termination_reason
    calls = [call for message in observation.messages for block in message["content"] for call in _call(block)]
    mark = paint("right", "green", colour) if rollout.is_right else paint("wrong", "red", colour)
    text = safe(one_line(" ".join([*calls, observation.final_response or f"({reason.value})"])))
    width = max(20, columns(sys.stdout) - 29)
    return f"  {mark}  {rollout.action.message!s:19} {text if len(text) <= width else f'{text[: width - 3]}...'}"


def _call(block: Any) -> list[str]:
    """A tool call or its result as text; nothing for other blocks."""
    if "toolUse" in block:
        return [f"{block['toolUse']['name']}({', '.join(map(str, dict(block['toolUse']['input']).values()))})"]
    if "toolResult" in block:
        return ["->", *(str(part.get("text", "...")) for part in block["toolResult"]["content"]), "|"]
    return []


def _lines(example: Example, totals: DriftTotals, *, colour: bool) -> list[str]:
    """The two rows of tokens, and what they mean."""
    changed = f"{totals.changed_tokens} of {totals.sampled_tokens} sampled tokens, in {totals.changed_trajectories}"
    lines = [
        f"A tokenizer that reads the text of these rollouts again changes {changed} of {totals.trajectories} rollouts.",
        f"One place, in the answer to {one_line(example.question)!r}:",
        "",
    ]
    rows = (
        ("sampled", example.sampled, example.sampled_ids, example.sampled_logprob, "green"),
        ("from text", example.retokenized, example.retokenized_ids, example.retokenized_logprob, "red"),
    )
    for name, pieces, _, _, hue in rows:
        shown = [
            *map(_piece, example.before),
            *(paint(_piece(text), hue, colour) if colour else f"[{_piece(text)}]" for text in pieces),
        ]
        lines.append(f"  {name:10}{'|'.join([*shown, *map(_piece, example.after)])}")
    lines.append("")
    for name, _, ids, logprob, _ in rows:
        said = "" if logprob is None else f"  log-probability {logprob:.2f}"
        lines.append(f"  {name:10}ids {' '.join(map(str, ids))}{said}")
    lines += [
        "",
        f"Same text, other tokens: a trainer that is given text learns from tokens nobody sampled{_factor(example)}.",
        "strands-rollout hands over the sampled ones with their log-probabilities, through every turn.",
    ]
    return lines


def _factor(example: Example) -> str:
    """The other tokens' probability, relative to the sampled ones."""
    if example.sampled_logprob is None or example.retokenized_logprob is None:
        return ""
    factor = math.exp(min(abs(example.sampled_logprob - example.retokenized_logprob), 20.0))
    return f", here ones {factor:.3g} times as {'un' * (example.retokenized_logprob < example.sampled_logprob)}likely"


def _piece(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
