"""The verified part of Humanity's Last Exam (Phan et al. 2025), graded by a judge model."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from strands_env.core import Action, Environment, ModelFactory, RewardResult, StepResult
from strands_env.eval.benchmarks.grading import MATCH, GradedAnswerReward, load_published
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import HubDataset, QuestionBenchmark, Row

SYSTEM_PROMPT = """Answer in this form:
Explanation: why you chose your answer
Answer: your answer
Confidence: how sure you are, from 0% to 100%"""

_PICTURE = re.compile(r"data:image/(png|jpe?g|gif|webp);base64,(.*)", re.IGNORECASE | re.DOTALL)
_CONFIDENCE = re.compile(r"confidence\W{0,8}(\d{1,3})", re.IGNORECASE)


class HLEReward(GradedAnswerReward):
    """The judge's verdict. `info["confidence"]` is the response's own, from 0 to 1; 1 if it states none."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Ask the judge, and read the confidence."""
        result = await super().compute(action, step_result)
        percentages = _CONFIDENCE.findall(step_result.observation.final_response or "")
        confidence = min(int(percentages[-1]), 100) / 100 if percentages else 1.0
        return result.model_copy(update={"info": {**result.info, "confidence": confidence}})


class HLEVerifiedGoldEvaluator(QuestionBenchmark):
    """HLE-Verified, gold: 668 checked questions of Humanity's Last Exam, some with a picture; needs a judge."""

    benchmark_name = "hle-verified-gold"
    dataset = HubDataset(path="skylenage-ai/HLE-Verified", split="train")
    question_fields = ("question",)
    kept_fields = ("category", "raw_subject", "answer_type")
    has_judge = True
    reward_class = partial(HLEReward, grading=MATCH)

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """Reasoning without tools, graded by `judge_model` (the evaluated model itself if not given)."""
        # The published prompt where its package is installed: scores compare under the same prompt only.
        prompt = load_published("hle.prompts", "SYSTEM_MC", SYSTEM_PROMPT)
        return super().environment(model_factory, **{"system_prompt": prompt, **options})

    def rows(self) -> Iterable[Row]:
        """The rows of the gold subset, each with the fields of the original record that it holds as JSON."""
        for row in super().rows():
            if row.get("Verified_Classes") == "Gold subset":
                record = row.get("json") or {}
                yield {**(json.loads(record) if isinstance(record, str) else record), **row}

    def message(self, row: Row, question: str) -> str | list[dict[str, Any]]:
        """The question, and its picture, which is a data URL."""
        address = row.get("image")
        if not address:
            return question
        picture = _PICTURE.fullmatch(address)
        if picture is None:
            raise DatasetError(f"question {row.get('id')!r} has an image that is not a data URL: {address[:60]!r}")
        kind = "jpeg" if picture[1].lower() == "jpg" else picture[1].lower()
        return [{"text": question}, {"image": {"format": kind, "source": {"bytes": base64.b64decode(picture[2])}}}]


class HLEVerifiedGoldTextEvaluator(HLEVerifiedGoldEvaluator):
    """HLE-Verified, gold, without pictures: 575 checked questions of Humanity's Last Exam; needs a judge."""

    benchmark_name = "hle-verified-gold-text"

    def rows(self) -> Iterable[Row]:
        """The rows without a picture."""
        return (row for row in super().rows() if not row.get("image"))
