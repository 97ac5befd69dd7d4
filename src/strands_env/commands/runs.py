"""A saved run as commands open it: its options, its tokenizer, its prices, and its summary as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from strands_env.commands.terminal import format_number, format_seconds, one_line
from strands_env.core import Phase
from strands_env.eval import EvalError, Prices, read_results
from strands_env.eval.metrics import Interval, RunSummary
from strands_env.eval.sample import recorded_trajectories
from strands_env.eval.store import ResultReader, StorePaths, load_run
from strands_env.recipe.options import PRICES
from strands_sglang.backends.engine.own_models import UnknownModelError
from strands_sglang.command_line import Exit
from strands_sglang.trajectory.drift import DriftTotals

MESSAGE = 160
"""Characters of an error's message in a summary."""
_WITHOUT_REWARD = "whose environment has no reward function"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTokenizer:
    """The tokenizer of a run, Hugging Face style; `note` says why there is none."""

    tokenizer: Any
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A run on disk; `document` is its saved configuration, empty where there is none."""

    paths: StorePaths
    document: Mapping[str, Any]

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """The run at a path: its folder or its `.jsonl`."""
        paths = StorePaths.of(path)
        return cls(paths=paths, document=load_run(paths.run) or {})

    @property
    def name(self) -> str:
        """The benchmark, or the name of the file."""
        return str((self.document.get("config") or {}).get("benchmark") or self.paths.results.stem)

    @property
    def options(self) -> dict[str, Any]:
        """Options that `strands-env eval` saved; empty for a run of a program."""
        return dict((self.document.get("about") or {}).get("options") or {})

    @property
    def model(self) -> dict[str, Any]:
        """Description of the model in the saved configuration or environment."""
        described = (self.document.get("environment") or {}).get("model") or {}
        configured = (self.document.get("config") or {}).get("model") or {}
        parts = [part for part in (described, configured) if isinstance(part, dict)]
        return {name: value for part in parts for name, value in part.items() if value is not None}

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of the environment, where it was described."""
        prompt = (self.document.get("environment") or {}).get("system_prompt")
        return prompt if isinstance(prompt, str) else None

    @property
    def wall_s(self) -> float | None:
        """Seconds the run took, all its parts; of a killed one up to the last time saved. None where none was saved."""
        value = (self.document.get("about") or {}).get("wall_s")
        return float(value) if value else None

    def drift(self, tokenizer: Any, *, budget: int | None = None, examples: int = 0) -> DriftTotals | None:
        """The changes that re-tokenising the run's texts would make; None if it has more than `budget` tokens.

        `examples` is the number of places to keep.
        """
        totals, seen = DriftTotals(tokenizer=tokenizer, max_examples=examples), 0
        with ResultReader(self.paths.results) as reader:
            for entry in reader.entries:
                for item in recorded_trajectories(reader.read(entry, with_tokens=True).step_result):
                    seen += len(item.tokens)
                    if budget is not None and seen > budget:
                        return None
                    totals.add(item.tokens.token_ids, item.tokens.output_mask, name=f"{entry.prompt_id}/{entry.index}")
        return totals

    def threshold(self, given: float | None) -> float:
        """The reward from which on a sample passes: the one given here, else the run's, else 1."""
        return float(given if given is not None else self.options.get("reward_threshold", 1.0))

    def prices(self, given: Mapping[str, Any]) -> Prices | None:
        """The prices given here, else the run's; None without any."""
        return prices_of(given, self.options)

    def tokenizer(self, given: str | None = None) -> RunTokenizer:
        """The tokenizer that is named (an `EvalError` if it cannot be loaded), else the run's own; `none` for none."""
        if given == "none":
            return RunTokenizer(tokenizer=None, note="Tokens are shown as ids: no tokenizer was asked for.")
        name = given or self._tokenizer_name()
        if name is None and self.options.get("backend") == "scripted":
            return RunTokenizer(tokenizer=_Bytes())
        if name is None:
            return RunTokenizer(
                tokenizer=None,
                note="Tokens are shown as ids: name the tokenizer with --tokenizer to see texts and drift.",
            )
        from strands_sglang import get_tokenizer

        try:
            return RunTokenizer(tokenizer=get_tokenizer(name))
        except Exception as error:
            if given is not None:
                cannot = f"the tokenizer {given!r} cannot be loaded: " if isinstance(error, UnknownModelError) else ""
                raise EvalError(f"{cannot}{error}") from error
            note = f"Tokens are shown as ids: the run's tokenizer {name!r} cannot be loaded ({type(error).__name__})."
            return RunTokenizer(tokenizer=None, note=note)

    def _tokenizer_name(self) -> str | None:
        options = self.options
        if options.get("tokenizer"):
            return str(options["tokenizer"])
        if options.get("backend") == "sglang":
            return self.model.get("model_id")  # the factory's label is where the server's tokenizer came from
        if options.get("backend") != "local":
            return None
        name = str(options.get("model_id") or "smollm2")
        if name != "smollm2":
            return name
        from strands_sglang.backends.engine.loader import default_model_cached

        return name if default_model_cached() else None


class _Bytes:
    """The scripted model's tokens are bytes."""

    def decode(self, ids: list[int], **options: Any) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(text.encode())


def prices_of(given: Mapping[str, Any], saved: Mapping[str, Any] | None = None) -> Prices | None:
    """The prices that are given, else those of the saved run; None without any."""
    found = {name: (given if given.get(name) is not None else saved or {}).get(name) for name in PRICES}
    if all(value is None for value in found.values()):
        return None
    return Prices(
        input=found["price_input"] or 0.0, output=found["price_output"] or 0.0, cached_input=found["price_cached_input"]
    )


# ---- its summary as text ---------------------------------------------------------------------------------------------


def interval(value: Interval) -> str:
    """`0.512  [0.433, 0.590]`."""
    return f"{format_number(value.value)}  [{format_number(value.low)}, {format_number(value.high)}]"


def summary_lines(
    summary: RunSummary, *, title: str, wall_s: float | None = None, drift: DriftTotals | None = None
) -> list[str]:
    """A run in a few lines; intervals are over prompts.

    `wall_s` is the seconds from its start to its end, without the time between an interruption and a resume.
    """
    level = f"{summary.mean_reward.level:.0%}"
    lines = [
        title,
        f"samples     {summary.samples} of {summary.prompts} prompts, {summary.scored} scored, "
        f"{summary.unscored} unscored",
        f"reward      {interval(summary.mean_reward)}  ({level} interval over prompts)",
    ]
    if summary.left_out:
        prompts = "1 prompt" if summary.left_out == 1 else f"{summary.left_out} prompts"
        lines.append(f"left out    {prompts} with lost or missing samples (group policy of the run)")
    lines += [f"pass@{k:<6} {interval(value)}  ({value.prompts} prompts)" for k, value in summary.pass_at.items()]
    lines += [f"pass^{k:<6} {interval(value)}" for k, value in summary.pass_hat.items() if k > 1]
    lines.append("ended       " + ", ".join(f"{reason} {count}" for reason, count in summary.terminations.items()))
    for label, errors in (("errors", summary.errors), ("tools", summary.tool_errors)):
        for name, count in errors.items():
            where = "raised in 1 sample" if count == 1 else f"raised in {count} samples"
            shown = f"{name} {count}" if label == "errors" else f"{name} {where}"
            lines.append(f"{label:<11} {shown}: {one_line(summary.messages.get(name, ''))[:MESSAGE]}")
    totals = summary.totals
    if summary.samples:
        lines.append(
            f"tokens      {totals.get('input_tokens', 0):,.0f} read, {totals.get('output_tokens', 0):,.0f} sampled; "
            f"{totals.get('tool_calls', 0):,.0f} tool calls"
        )
        each = totals.get("wall_s", 0.0) / summary.samples
        took = "" if wall_s is None else f"{format_seconds(wall_s)} in all; "
        lines.append(f"time        {took}{each:.1f} s a rollout")
    if drift is not None and drift.trajectories:
        kinds = ", ".join(f"{kind} {count}" for kind, count in drift.kinds.most_common())
        lines.append(
            f"drift       {drift.changed_trajectories} of {drift.trajectories} trajectories would change if their text "
            f"were tokenised again{f' ({kinds})' if kinds else ''}"
        )
    if summary.cost is not None:
        lines.append(f"cost        {summary.cost:,.4f}")
    return lines


def nothing_scored(path: Path, samples: int) -> tuple[Exit, str]:
    """The reason nothing was scored: as it should be without a reward function, a failure with one."""
    why: Counter[str] = Counter()
    said: str | None = None
    is_rewards = False
    for sample in read_results(path):
        result = sample.step_result
        if sample.reward is not None:
            why["whose prompt the group policy leaves out"] += 1
        elif sample.aborted or result.termination_reason.is_failure:
            if said is None and result.error is not None:
                said = f"{result.error.type}: {result.error.message}"
                is_rewards = result.error.where is Phase.REWARD
            why[f"that ended with {result.termination_reason.value}"] += 1
        else:
            why[_WITHOUT_REWARD if result.reward is None else "whose reward function abstained"] += 1
    reasons = ", ".join(f"{count} {reason}" for reason, count in why.most_common())
    status = Exit.OK if set(why) == {_WITHOUT_REWARD} else Exit.USAGE
    complaint = f"nothing was scored: of {samples} samples there are {reasons}"
    if said is not None:
        complaint += f" ({said})"
    if is_rewards:
        complaint += f"; fix the reward, then score the saved rollouts again: strands-env rescore {path.parent}"
    return status, complaint
