"""IFEval: instructions whose following can be checked by program (Zhou et al. 2023). In part.

Checked are the instructions whose rule leaves no doubt, listed in `CHECKS`. A prompt with another one (languages,
word positions that depend on a sentence splitter, ...) gets no reward and is counted as unscored; `info["unchecked"]`
names it. So a score here is over the covered prompts only and is not the published metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from strands_env.core import Action, Environment, ModelFactory, RewardFunction, RewardResult, StepResult, TaskContext
from strands_env.eval.benchmark import Benchmark, HubDataset, Row, field

Check = Callable[[str, str, Mapping[str, Any]], bool]


def _relation(count: int, kind: str | None, bound: int) -> bool:
    if kind not in ("less than", "at least"):
        raise ValueError(f"a relation is 'less than' or 'at least', got {kind!r}")
    return count < bound if kind == "less than" else count >= bound


def _has(word: str, text: str) -> int:
    return len(re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE))


def _bare(text: str) -> str:
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", text, re.DOTALL | re.IGNORECASE)
    return fenced.group(1) if fenced else text


def _is_json(text: str) -> bool:
    try:
        json.loads(_bare(text))
    except ValueError:
        return False
    return True


CHECKS: dict[str, Check] = {
    "keywords:existence": lambda text, prompt, a: all(_has(word, text) for word in a["keywords"]),
    "keywords:forbidden_words": lambda text, prompt, a: not any(_has(word, text) for word in a["forbidden_words"]),
    "keywords:frequency": lambda text, prompt, a: _relation(_has(a["keyword"], text), a["relation"], a["frequency"]),
    "keywords:letter_frequency": lambda text, prompt, a: _relation(
        text.lower().count(a["letter"].lower()), a["let_relation"], a["let_frequency"]
    ),
    "length_constraints:number_words": lambda text, prompt, a: _relation(
        len(re.findall(r"\w+", text)), a["relation"], a["num_words"]
    ),
    "punctuation:no_comma": lambda text, prompt, a: "," not in text,
    "change_case:english_lowercase": lambda text, prompt, a: text == text.lower(),
    "change_case:english_capital": lambda text, prompt, a: text == text.upper(),
    "startend:quotation": lambda text, prompt, a: (
        len(text.strip()) > 1 and text.strip().startswith('"') and text.strip().endswith('"')
    ),
    "startend:end_checker": lambda text, prompt, a: (
        text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower())
    ),
    "detectable_format:json_format": lambda text, prompt, a: _is_json(text),
    "detectable_format:title": lambda text, prompt, a: any(
        title.strip() for title in re.findall(r"<<([^\n]+?)>>", text)
    ),
    "detectable_format:number_bullet_lists": lambda text, prompt, a: (
        len(re.findall(r"(?m)^\s*[*-]\s+\S", text)) == a["num_bullets"]
    ),
    "detectable_format:number_highlighted_sections": lambda text, prompt, a: (
        len([part for part in re.findall(r"\*\*[^\n*]+\*\*|\*[^\n*]+\*", text) if part.strip("* ")])
        >= a["num_highlights"]
    ),
    "detectable_content:number_placeholders": lambda text, prompt, a: (
        len(re.findall(r"\[[^\[\]]*\]", text)) >= a["num_placeholders"]
    ),
    "detectable_content:postscript": lambda text, prompt, a: bool(
        re.search(r"p\.\s?p\.\s?s" if a["postscript_marker"] == "P.P.S" else r"p\.\s?s", text, re.IGNORECASE)
    ),
    "combination:repeat_prompt": lambda text, prompt, a: (
        text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower())
    ),
    "combination:two_responses": lambda text, prompt, a: _two_responses(text),
}


def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


class InstructionReward(RewardFunction):
    """1.0 where every instruction of the prompt is followed, 0.0 where one is not; none where one cannot be checked."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Check each instruction."""
        context = action.task_context.model_dump()
        names, arguments = context["instructions"], context["arguments"]
        unchecked = sorted({name for name in names if name not in CHECKS})
        if unchecked:
            return RewardResult(reward=None, info={"unchecked": unchecked})
        text = step_result.observation.final_response or ""
        followed = [
            bool(text.strip()) and CHECKS[name](text, action.text, given)
            for name, given in zip(names, arguments, strict=True)
        ]
        return RewardResult(reward=float(all(followed)), info={"followed": dict(zip(names, followed, strict=True))})


class IFEvalEvaluator(Benchmark):
    """IFEval in part: prompts whose instructions can be checked without doubt; the others stay unscored."""

    benchmark_name = "ifeval"
    dataset = HubDataset(path="google/IFEval", split="train", size=541)

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """A plain conversation, checked by program."""
        options = {"reward_fn": InstructionReward(), **options}
        return lambda: Environment(model_factory=model_factory, **options)

    def action(self, row: Row, index: int) -> Action | None:
        """The prompt with its instructions and their arguments."""
        prompt = field(row, "prompt")
        names = row.get("instruction_id_list")
        if prompt is None or not names:
            return None
        given = row.get("kwargs") or [{} for _ in names]
        arguments = [{key: value for key, value in (item or {}).items() if value is not None} for item in given]
        name = field(row, "key") or str(index)
        rules = {"instructions": list(names), "arguments": arguments}
        context = TaskContext(id=f"{self.benchmark_name}_{name}", **rules)
        return Action(message=prompt, task_context=context)
