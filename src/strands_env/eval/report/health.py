"""Health of rollouts: problems in rows of a run, exported samples, a gateway's sessions or slime's log."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from strands_env.core import End, Outcome, TerminationReason
from strands_env.eval.drift import DriftKind, find_drift
from strands_env.eval.errors import EvalError, StoreError
from strands_env.eval.report.training_page import is_slime_log, slime_rows
from strands_env.eval.sample import EvalSample
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader
from strands_env.rewards.turns import turns_of
from strands_env.training import load_samples, samples_from_step
from strands_env.training.sample import TrainingSample
from strands_sglang.trajectory import Role

LOOP = 4
"""Equal calls in a row that are a loop."""
LARGE_GROUP = 8
"""Rollouts of a group whose equal rewards are no chance."""
IMPROBABLE = -25.0
"""Log-probability that no token has in a million samples, for any vocabulary."""


class Check(NamedTuple):
    """A check: the share that may be unsound (if any, one may be), its unit, the finding in words, and the advice."""

    allowed: float
    unit: str
    finding: str
    advice: str


CHECKS: Final[Mapping[str, Check]] = {
    "no-call": Check(0, "rollouts", "made no model call", "read the program's output: its address or key may be wrong"),
    "lost": Check(0.02, "rollouts", "were lost to infrastructure", "fix their errors, then eval --resume"),
    "ungraded": Check(0, "rollouts", "have no reward: it failed", "fix it, then score them again with rescore"),
    "time-out": Check(0.02, "rollouts", "ran out of time", "raise step_timeout, bound tool_timeout, run fewer at once"),
    "cut": Check(0.05, "rollouts", "hold a reply cut at its length", "raise max_new_tokens, or see if replies end"),
    "truncated": Check(0.2, "rollouts", "were ended by a limit", "raise that limit, or give smaller tasks"),
    "empty": Check(0.02, "rollouts", "end in an empty reply", "look at one: template or stop strings may be wrong"),
    "loop": Check(0.02, "rollouts", f"repeat a call {LOOP} times", "look at the tool's answers: they may not help"),
    "malformed": Check(0.05, "calls", "cannot be parsed", "check parser and template with strands-sglang doctor"),
    "failing-tool": Check(0.02, "calls", "are of tools that never worked", "try the tools with strands-env check"),
    "roots": Check(0.05, "rollouts", "began anew", "find the edits of the history: each root costs its prompt again"),
    "equal-rewards": Check(0.8, "groups", "have equal rewards", "they train nothing: try export --format prompts"),
    "logprobs": Check(1e-4, "tokens", "have none, or an impossible one", "compare with a server: report --server"),
    "refused": Check(0.05, "requests", "were refused", "read why in the answers: a limit, or an unknown field"),
    "undelivered": Check(0.05, "answers", "were not delivered whole", "raise the time that clients and proxies wait"),
    "damaged": Check(0, "sessions", "cannot be read", "remove each with DELETE /sessions/ID: its tokens are lost"),
    "drift": Check(0.05, "rollouts", "hold broken text", "look at one: the model or its tokenizer may be damaged"),
}
"""Every check, in the order of findings."""
_DAMAGE = (DriftKind.BROKEN_UTF8, DriftKind.SPECIAL_TOKEN, DriftKind.OTHER_TEXT)
"""Drift that a sound model hardly shows; other merges of the same text are usual."""


@dataclass(slots=True, kw_only=True)
class HealthRow:
    """A rollout or session, or `times` rollouts that ended alike.

    Attributes:
        counts: By check, how many are unsound, by kind, and of how many. No entry where the source does not say.
        working_tools: Tools of which a call succeeded.
    """

    name: str
    group: str | None = None
    reward: float | None = None
    times: int = 1
    counts: dict[str, tuple[dict[str, int], int]] = field(default_factory=dict)
    working_tools: Collection[str] = ()

    def count(self, check: str, kinds: Mapping[str, int], of: int = 1) -> None:
        """Set the counts of a check."""
        self.counts[check] = ({kind: count * self.times for kind, count in kinds.items() if count}, of * self.times)

    def count_end(self, end: End) -> None:
        """Count how it ended: in one way at most."""
        match end:
            case End(outcome=Outcome.INFRASTRUCTURE):
                found = "lost"
            case End(outcome=Outcome.GRADER):
                found = "ungraded"
            case End(reason=TerminationReason.TIMEOUT | TerminationReason.TASK_TIME_LIMIT_REACHED):
                found = "time-out"
            case End(reason=TerminationReason.MAX_TOKENS_REACHED):
                found = "cut"
            case _:
                found = "truncated" if end.is_limit else ""
        for check in ("lost", "ungraded", "time-out", "cut", "truncated"):
            self.count(check, {end.reason.value: check == found})

    def count_paths(self, samples: Sequence[TrainingSample]) -> None:
        """Count the findings in tokens."""
        finishes = {sample.finish_reason for sample in samples} - {None}
        if "length" in finishes or (finishes and "cut" not in self.counts):
            self.count("cut", {"length": "length" in finishes})
        # Paths that branch share the prompt before the branch. Sub-agents and summaries have prompts of their own.
        own = [each for each in samples if each.role is Role.MAIN]
        roots = {each.token_ids[: each.prompt_length].tobytes() for each in own}
        self.count("roots", {"history": len(roots) > 1})
        trained = [each.logprobs[each.loss_mask == 1] for each in samples if each.logprobs is not None]
        values = np.concatenate([np.zeros(0), *trained])
        missing = int(np.isnan(values).sum())
        impossible = int(((values < IMPROBABLE) | (values > 1e-5)).sum())  # above 0 by more than float32 rounds
        self.count("logprobs", {"missing": missing, "impossible": impossible}, len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A check that failed: `count` of `of`, by kind, with the rows in which it was found, the worst first."""

    check: str
    count: int
    of: int
    kinds: dict[str, int]
    samples: list[str]

    def __str__(self) -> str:
        check = CHECKS[self.check]
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds.items() if kind)
        share = f"{self.count} of {self.of} {check.unit} {check.finding}"
        return f"{share} ({kinds})" if kinds else share

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "text": str(self), "advice": CHECKS[self.check].advice}


def find_problems(rows: Sequence[HealthRow]) -> tuple[list[Finding], list[str]]:
    """The findings in rows, in the order of `CHECKS`, and the names of the checks for which the rows say enough."""
    rewards: dict[str, list[float]] = {}
    for row in rows:
        if row.group is not None and row.reward is not None:
            rewards.setdefault(row.group, []).append(row.reward)
    groups = [HealthRow(name=name) for name, values in rewards.items() if len(values) > 1]
    for group in groups:
        group.count("equal-rewards", {f"all {rewards[group.name][0]:g}": len(set(rewards[group.name])) == 1})
    is_one_large_group = len(groups) == 1 and len(rewards[groups[0].name]) >= LARGE_GROUP
    working = {tool for row in rows for tool in row.working_tools}
    findings, checked = [], []
    for name, check in CHECKS.items():
        total, worst, bad, of = Counter[str](), Counter[str](), 0, 0
        for row in (*rows, *groups):
            kinds, all_of_row = row.counts.get(name, ({}, 0))
            of += all_of_row
            if not kinds:
                continue
            kinds = {kind: count for kind, count in kinds.items() if name != "failing-tool" or kind not in working}
            total.update(kinds)
            worst[row.name] += sum(kinds.values())
            bad += min(sum(kinds.values()), all_of_row)
        checked += [name] if of else []
        # Where some are allowed, one is chance; but not the only group, if it is large.
        is_chance = bad <= 1 and check.allowed > 0 and not (name == "equal-rewards" and is_one_large_group)
        if bad > check.allowed * of and not is_chance:
            samples = [row for row, count in worst.most_common() if count]
            findings.append(Finding(check=name, count=bad, of=of, kinds=dict(total.most_common()), samples=samples))
    return findings, checked


def row_of(sample: EvalSample, drift: Iterable[str] | None = None) -> HealthRow:
    """The row of a sample; `drift` has the kinds of its drifted places, None where nobody looked."""
    result, metrics = sample.step_result, sample.step_result.observation.metrics
    row = HealthRow(name=f"{sample.prompt_id}/{sample.index}", group=sample.prompt_id, reward=sample.reward)
    row.count_end(result.end)
    turns = turns_of(result.observation.messages)
    is_answered = result.termination_reason is TerminationReason.TASK_COMPLETE
    row.count("no-call", {"": is_answered and not turns and not metrics.get("model_calls")})
    row.count("empty", {"": is_answered and bool(turns) and not (result.observation.final_response or "").strip()})
    calls = [call for turn in turns for call in turn.calls]
    repeats = groupby(calls, key=lambda call: (call["name"], json.dumps(call["input"], default=str)))
    row.count("loop", {name: 1 for (name, _), run in repeats if len(list(run)) >= LOOP})
    malformed = metrics.get("parse_errors") or 0
    row.count("malformed", {"": malformed}, max(len(calls), malformed))
    errors = {each["toolUseId"] for turn in turns for each in turn.results if each.get("status") == "error"}
    tools = result.observation.tools
    offered = None if tools is None else {tool["function"]["name"] for tool in json.loads(tools)}
    # A tool that the model made up has not failed; without a record of the tools nobody knows.
    failed = Counter(
        call["name"] for call in calls if call["toolUseId"] in errors and (offered is None or call["name"] in offered)
    )
    row.count("failing-tool", failed, len(calls))
    row.working_tools = {call["name"] for call in calls if call["toolUseId"] not in errors}
    row.count_paths(samples_from_step(result, placement=None))
    if drift is not None:
        row.count("drift", dict.fromkeys([kind for kind in drift if kind in _DAMAGE][:1], 1))
    return row


# ---- rows of other sources -------------------------------------------------------------------------------------------


def rows_of_samples(samples: Iterable[TrainingSample]) -> list[HealthRow]:
    """The rows of exported paths, one a rollout."""
    rollouts: dict[str | None, list[TrainingSample]] = {}
    for sample in samples:
        rollouts.setdefault(sample.rollout_id, []).append(sample)
    rows = []
    for name, (first, *others) in rollouts.items():
        rows.append(row := HealthRow(name=str(name), group=first.group_id, reward=first.reward))
        row.count_end(first.end)
        row.count_paths([first, *others])
    return rows


def rows_of_sessions(items: Iterable[Mapping[str, Any]]) -> list[HealthRow]:
    """The rows of a gateway's sessions: of their counters (`GET /sessions`), or of their trajectories.

    Sessions of one task are a group: those with the same label `task` or, without it, the same labels.

    Raises:
        ValueError: A value that no gateway writes; so do `LookupError`, `TypeError` and `OverflowError`.
    """
    rows: list[HealthRow] = []
    paths: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        if "id" not in item and "error" in item:
            raise ValueError(f"the gateway answered with an error: {item['error']!s:.200}")
        name = item["id"] if "id" in item else item["session"]
        if not isinstance(name, str):
            raise TypeError(f"a session is named {name!r}, expected a string")
        if "id" not in item:
            paths.setdefault(name, []).append(item)
            continue
        rows.append(row := HealthRow(name=name))
        row.count("damaged", {"": "error" in item})
        if "error" not in item:
            _count_counters(row, item["counters"])
            _set_reward(row, item.get("labels"), (item.get("reward") or {}).get("reward"))
    sessions = [_row_of_paths(name, own) for name, own in paths.items()]
    # A row tells of a call that it could not be parsed, never how its tool answered: without one it says nothing.
    if any(row.counts["malformed"][0] for row in sessions):
        return [*rows, *sessions]
    for row in sessions:
        del row.counts["failing-tool"]
    return [*rows, *sessions]


def _count_counters(row: HealthRow, counters: Mapping[str, Any]) -> None:
    later = ("requests", "refused", "joined", "replayed", "undelivered", "final")  # a listing may be without these
    counters = {**dict.fromkeys(later, 0), **counters}
    known = {name: counters[name] for name in ("sampled", "calls", "malformed", *later)}
    for name, count in {**known, **counters["roots"]}.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"session {row.name!r} counts {name}: {count!r:.80}, expected an integer from 0")
    row.count("no-call", {"": not counters["sampled"]})
    row.count("truncated", {"final answer": bool(counters["final"])})
    row.count("malformed", {"": counters["malformed"]}, counters["calls"] + counters["malformed"])
    row.count("roots", {reason: count for reason, count in counters["roots"].items() if reason != "first"})
    row.count("refused", {"": counters["refused"]}, max(counters["requests"], counters["refused"]))
    answers = counters["sampled"] + counters["joined"] + counters["replayed"]
    row.count("undelivered", {"": counters["undelivered"]}, max(answers, counters["undelivered"]))


def _set_reward(row: HealthRow, labels: Mapping[str, Any] | None, reward: Any) -> None:
    if reward is not None and (isinstance(reward, bool) or not math.isfinite(reward)):
        raise ValueError(f"the reward of session {row.name!r} is {reward!r}, expected a finite number")
    row.group = json.dumps(labels.get("task", labels), sort_keys=True) if labels else None
    row.reward = reward


def _row_of_paths(name: str, items: Sequence[Mapping[str, Any]]) -> HealthRow:
    """The row of a session's trajectories: discarded ones tell only that it was sampled."""
    row = HealthRow(name=name)
    _set_reward(row, items[0].get("labels"), items[0].get("reward"))
    row.count("no-call", {"": not any(1 in item.get("output_mask", item["loss_mask"]) for item in items)})
    # Paths that branch share the calls before the branch.
    calls = {call["id"]: call for item in items for call in item.get("tool_calls", ())}.values()
    malformed = Counter(str(call["name"]) for call in calls if call["error"] is not None)
    row.count("malformed", {"": malformed.total()}, len(calls))
    row.count("failing-tool", malformed, len(calls))
    row.working_tools = {call["name"] for call in calls if call["error"] is None}
    row.count_paths([_sample_of(item) for item in items if not item["is_discarded"]])
    return row


def _sample_of(item: Mapping[str, Any]) -> TrainingSample:
    if any(value not in (0, 1) for value in item["loss_mask"]):
        raise ValueError(f"loss_mask of session {item['session']!r} must hold 0 and 1 only")
    logprobs = item["logprobs"]
    return TrainingSample(
        token_ids=np.array(item["token_ids"], np.int32),
        loss_mask=np.array(item["loss_mask"], np.uint8),
        logprobs=None if logprobs is None else np.array(logprobs, np.float64),  # None becomes NaN
        prompt_length=item["prompt_length"],
        finish_reason=item["finish_reason"],
        role=Role(item["role"]),
    )


def rows_of_steps(steps: Iterable[Mapping[str, Any]]) -> list[HealthRow]:
    """The rows of slime's log: for each step one a way of ending, and one for each rollout that it shows."""
    rows = []
    for step in steps:
        name, metrics = f"rollout {step['rollout_id']}", step["metrics"]
        for key, share in metrics.items():
            if key.startswith("ended/") and share:
                rows.append(row := HealthRow(name=name, times=round(share * metrics["rollouts"])))
                if (reason := key.removeprefix("ended/")) in set(TerminationReason):
                    row.count_end(End(TerminationReason(reason)))
        for place, shown in enumerate(step.get("samples") or ()):
            prompt = f"{name}: {shown['prompt']!s:.80}"
            rows.append(row := HealthRow(name=f"{name}/{place}", group=prompt, reward=shown["reward"]))
            row.count("empty", {"": not (shown["response"] or "").strip()})
    return rows


def read_rows(path: str | Path, tokenizer: str | None = None) -> list[HealthRow]:
    """The rows of a run; of `.parquet`, exported samples; of `.json`, a gateway's answers; of slime's log.

    Args:
        tokenizer: Name of the run's tokenizer, where it is not known; "none" looks for no drift.

    Raises:
        EvalError: The file holds other data, or there is none.
    """
    source = Path(path)
    try:
        if source.suffix == ".parquet":
            return rows_of_samples(load_samples(source))
        if source.suffix == ".json":
            data = json.loads(source.read_bytes())
            return rows_of_sessions(data.get("sessions", [data]) if isinstance(data, dict) else data)
        if is_slime_log(source):
            return rows_of_steps(slime_rows(source))
    except (ValueError, LookupError, TypeError, AttributeError, OSError, OverflowError, RecursionError) as error:
        kinds = {".parquet": "exported samples", ".json": "a gateway's GET /sessions or the trajectories of a session"}
        expected, why = kinds.get(source.suffix, "slime's log"), f"{type(error).__name__}: {error}"
        raise EvalError(f"{str(path)!r} holds no rollouts: expected {expected} ({why})") from error
    known = SavedRun.of(source, must_exist=True).tokenizer(tokenizer).tokenizer
    rows = []
    try:
        with ResultReader(source) as reader:
            for entry in reader.entries:
                sample = reader.read(entry, with_tokens=True)
                paths = sample.step_result.recorded_trajectories if known is not None else ()
                spans = [span for each in paths for span in find_drift(each.token_ids, known)]
                rows.append(row_of(sample, [span.kind for span in spans] if paths else None))
    except (StoreError, ValueError) as error:
        from strands_sglang.gateway.state import is_state_log  # loads the gateway

        if not is_state_log(source):
            raise
        raise EvalError(
            f"{str(path)!r} is the state log of a gateway's session, which only the gateway reads: give what the "
            "gateway answers, `curl URL/sessions > sessions.json` or `curl URL/sessions/ID/trajectories > rows.json`"
        ) from error
    return rows
