"""Rewards for mathematics beside other graders: which answers of a corpus are paid wrongly, refused wrongly, unscored.

    python -m benchmarks.grading [--per-family 120] [--graders ours math-verify lighteval ...] [--wrong FILE]

The corpus is `benchmarks/grading_corpus.py`. A cell is `wrong answers paid / right answers refused / unscored`;
`decided` counts our verdicts by `proof / sample / equal text` (the rest is unreadable, unscored or no answer).
`math-verify` runs by its default settings, `lighteval` as its MATH-500 does, verl's three by the functions its own
dispatch calls; `math_dapo` reads what follows "Answer:", and gets the last box there. The last two come from
an environment of their own, made on the first run under `.cache`, without the gigabytes of torch that they import and
that grading does not use: those imports get an empty module. Prime's grader is verl's `prime_math`.
`--wrong FILE` writes what our reward gets wrong.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from benchmarks.grading_corpus import PER_FAMILY, Pair, corpus
from benchmarks.shape import ROOT, arguments, environment_of, print_figures

OTHERS = ("math-verify", "lighteval", "math_dapo", "math_reward", "prime_math")
PACKAGES = (
    *("latex2sympy2_extended==1.0.6", "antlr4-python3-runtime==4.13.2", "pylatexenc==2.10", "numpy", "pydantic"),
    *("termcolor", "pyyaml", "packaging", "aenum", "langcodes"),
)
WITHOUT_DEPENDENCIES = ("lighteval==0.13.0", "verl==0.9.0")
Verdict = Callable[[str, str], "float | None"]


def math_verify() -> Verdict:
    """A verdict by default settings, as its documentation shows; None where it reads nothing in the expected answer."""
    from math_verify import parse, verify

    def verdict(gold: str, answer: str) -> float | None:
        expected = parse(gold if "$" in gold else f"${gold}$")
        return float(verify(expected, parse(answer))) if expected else None

    return verdict


def lighteval() -> Verdict:
    """The metric of its MATH-500."""
    from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric as Metric  # type: ignore
    from lighteval.metrics.utils.extractive_match_utils import (  # type: ignore
        ExprExtractionConfig,
        LatexExtractionConfig,
    )
    from lighteval.models.model_output import ModelResponse  # type: ignore
    from lighteval.tasks.requests import Doc  # type: ignore

    metric = Metric(
        gold_extraction_target=(LatexExtractionConfig(),),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig(boxed_match_priority=0)),
        precision=6,
    )

    def verdict(gold: str, answer: str) -> float:
        doc = Doc(query="", choices=[gold if "$" in gold else f"${gold}$"], gold_index=0)
        return float(metric.compute(doc, ModelResponse(text=[answer])))

    return verdict


def verl(name: str) -> Verdict:
    """A function of `verl.utils.reward_score`."""
    compute: Any = importlib.import_module(f"verl.utils.reward_score.{name}").compute_score
    boxes: Any = importlib.import_module("verl.utils.reward_score.math_reward")

    def verdict(gold: str, answer: str) -> float:
        if name == "math_dapo" and (boxes.last_boxed_only_string(answer) or "").startswith(r"\boxed{"):
            answer = f"Answer: {boxes.remove_boxed(boxes.last_boxed_only_string(answer))}"
        score = compute(answer, gold)
        score = score["acc"] if isinstance(score, dict) else score[0] if isinstance(score, tuple) else score
        return float(score)

    return verdict


class EmptyModules:
    """Modules that are imported and not used: every name of theirs is a mock."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Any module below these names that nothing else finds."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.names else None  # type: ignore

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module whose names are mocks."""
        module = ModuleType(spec.name)

        def value(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (MagicMock,), {})

        module.__dict__["__getattr__"] = value
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def grade(name: str) -> None:
    """Read pairs as lines of JSON, write each verdict as one; in the environment of a grader."""
    sys.meta_path.append(EmptyModules(
        "torch", "transformers", "tensordict", "pytablewriter", "sacrebleu", "nltk", "rouge_score", "sklearn", "scipy",
        "datasets", "huggingface_hub", "inspect_ai", "ray", "requests", "pandas", "openai", "tqdm",
    ))  # type: ignore[arg-type]  # fmt: skip
    for package in ("verl", "verl.utils") if name.endswith("_math") or name.startswith("math_") else ():
        spec = importlib.util.find_spec(package)
        assert spec is not None
        module = sys.modules[package] = ModuleType(package)  # without its `__init__`, which sets up training
        module.__path__ = list(spec.submodule_search_locations or [])
    verdict = {"math-verify": math_verify, "lighteval": lighteval}.get(name, lambda: verl(name))()
    sys.stdout.flush()
    for line in sys.stdin:
        pair = json.loads(line)
        try:
            score = verdict(pair["gold"], pair["answer"])
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            score = None
        print(json.dumps({"score": score}), flush=True)


def scores_of(name: str, pairs: Sequence[Pair]) -> list[float | None] | str:
    """The verdicts of another grader; the reason where it cannot be run."""
    python: str | None = sys.executable
    if name != "math-verify":
        python, reason = environment_of(*PACKAGES, without_dependencies=WITHOUT_DEPENDENCIES)
        if python is None:
            return reason
    lines = "".join(json.dumps({"gold": pair.gold, "answer": pair.answer}) + "\n" for pair in pairs)
    command = [str(python), "-c", f"from benchmarks.grading import grade; grade({name!r})"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT)
    found = [json.loads(line)["score"] for line in done.stdout.splitlines() if line.startswith('{"score"')]
    return found if len(found) == len(pairs) else f"stopped: {done.stderr.strip()[-300:]}"


async def our_results(pairs: Sequence[Pair]) -> list[Any]:
    """What `MathRewardFunction` gives."""
    from strands_env.core import Action, TaskContext
    from strands_env.rewards import MathRewardFunction
    from strands_env.testing import answered

    function = MathRewardFunction()
    found = []
    for pair in pairs:
        action = Action(message=pair.question, task_context=TaskContext(ground_truth=pair.gold))
        found.append(await function.compute(action, answered(pair.answer)))
    return found


async def our_scores(pairs: Sequence[Pair]) -> list[float | None]:
    """The rewards of `MathRewardFunction`."""
    rewards = [result.reward for result in await our_results(pairs)]
    return [reward if reward is None or isinstance(reward, float) else float(str(reward)) for reward in rewards]


def main() -> None:
    """Grade and count."""
    parser = arguments(__doc__)
    parser.add_argument("--per-family", type=int, default=PER_FAMILY)
    parser.add_argument("--graders", nargs="+", choices=["ours", *OTHERS], default=["ours", *OTHERS])
    parser.add_argument(
        "--wrong", type=Path, metavar="FILE", help="write the pairs that ours gets wrong or cannot score"
    )
    args = parser.parse_args()
    pairs = corpus(args.seed, 10 if args.quick else args.per_family)
    families = Counter(pair.family for pair in pairs)
    rows: dict[str, dict[str, Any]] = {name: {"family": name, "pairs": count} for name, count in families.items()}
    rows["all"] = {"family": "all", "pairs": len(pairs)}
    rows["seconds"] = {"family": "seconds", "pairs": ""}
    absent = []
    for name in args.graders:
        begun = time.monotonic()
        results = asyncio.run(our_results(pairs)) if name == "ours" else []
        found = [result.reward for result in results] if results else scores_of(name, pairs)
        rows["seconds"][name] = round(time.monotonic() - begun, 1)
        if isinstance(found, str):
            absent.append(f"{name} ({found})")
            continue
        paired = list(zip(pairs, found, strict=True))
        for row in list(rows.values())[:-1]:
            mine = [(pair.right, score) for pair, score in paired if row["family"] in (pair.family, "all")]
            paid = sum(not right and score is not None and score > 0 for right, score in mine)
            refused = sum(right and score is not None and score <= 0 for right, score in mine)
            row[name] = f"{paid} / {refused} / {sum(score is None for _, score in mine)}"
            if results:
                graded = zip(pairs, results, strict=True)
                how = Counter(
                    result.info.get("decided") for pair, result in graded if row["family"] in (pair.family, "all")
                )
                row["decided"] = " / ".join(str(how[each]) for each in ("proof", "sample", "text"))
        if name == "ours" and args.wrong:
            failed = [{**asdict(pair), "reward": score} for pair, score in paired if score != float(pair.right)]
            lines = [json.dumps(each, ensure_ascii=False) for each in failed]
            args.wrong.write_text("\n".join([*lines, ""]), encoding="utf-8")
    cells = "wrong answers paid / right answers refused / unscored"
    print_figures("grading", seed=args.seed, absent="; ".join(absent) or "none", cells=cells, rows=list(rows.values()))


if __name__ == "__main__":
    main()
