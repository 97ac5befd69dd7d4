"""Readers of answers of inspect_ai beside ours: which answers of the corpus are paid wrongly, which refused wrongly.

    python -m benchmarks.others_readers [--per-family 120]

Each scorer runs as tasks use it, an episode per answer: `match(numeric=True)` as in `inspect_evals/gsm8k`, on whole
numbers; `choice()` behind `multiple_choice()` as in `gpqa_diamond` and `mmlu_pro`, on letters. Ours are the rewards
that `--reward` puts in their place. A cell is `wrong answers paid / right answers refused`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.grading_corpus import Pair, corpus
from benchmarks.shape import arguments, print_figures
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import choice, match
from inspect_ai.solver import generate, multiple_choice

from strands_env.core import Action, TaskContext
from strands_env.environments.inspect import InspectReward
from strands_env.rewards import ChoiceReward, MathRewardFunction
from strands_env.rewards.proof import answered

OPTIONS = ["one", "two", "three", "four", "five"]


def _bare(gold: str, form: str) -> str:
    text = re.sub(r"\\[a-z]+|[{}()]", "", gold)
    return text if re.fullmatch(form, text) else ""


def _cell(pairs: list[Pair], rewards: list[float | None]) -> str:
    paid = sum(reward == 1.0 and not pair.right for pair, reward in zip(pairs, rewards, strict=True))
    refused = sum(reward != 1.0 and pair.right for pair, reward in zip(pairs, rewards, strict=True))
    return f"{paid} / {refused}"


async def _score(reward: Any, pairs: list[Pair], choices: list[str] | None) -> list[float | None]:
    async def score(pair: Pair) -> float | None:
        more = {} if choices is None else {"choices": choices}
        action = Action(message=pair.question, task_context=TaskContext(ground_truth=pair.gold, **more))
        return (await reward.compute(action, answered(pair.answer))).reward

    found: list[float | None] = []
    for start in range(0, len(pairs), 20):  # the run of inspect goes on while an episode is under way
        found += await asyncio.gather(*map(score, pairs[start : start + 20]))
    return found


async def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--per-family", type=int, default=120)
    args = parser.parse_args(argv)
    count = 8 if args.quick else args.per_family
    pairs = corpus(args.seed, count)
    empty = [Sample(input="?")]
    number = InspectReward(Task(dataset=empty, solver=generate(), scorer=match(numeric=True), name="numbers"))
    letter = InspectReward(Task(dataset=empty, solver=multiple_choice(), scorer=choice(), name="letters"))
    kinds: tuple[tuple[str, str, Any, Any, list[str] | None], ...] = (
        ("match(numeric=True)", "integers", number, MathRewardFunction(), None),
        ("choice()", "letters", letter, ChoiceReward(), OPTIONS),
    )
    for name, family, theirs, ours, choices in kinds:
        form = r"-?\d+" if choices is None else "[A-E]"
        # Golds as these tasks have them: digits, and a bare letter.
        own = [replace(pair, gold=gold) for pair in pairs if pair.family == family and (gold := _bare(pair.gold, form))]
        cells = [_cell(own, await _score(reward, own, choices)) for reward in (theirs, ours)]
        right = sum(pair.right for pair in own)
        row = {"answers": len(own), "right": right, "inspect_ai": cells[0], "ours": cells[1]}
        print_figures("others_readers", scorer=name, family=family, **row)


if __name__ == "__main__":
    asyncio.run(main())
