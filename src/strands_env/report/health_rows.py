"""Rows for the health of rollouts: from a run, exported samples, a gateway's sessions, slime's log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strands_env.core import Outcome
from strands_env.eval.drift import find_drift
from strands_env.eval.errors import EvalError
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader
from strands_env.report.health import HealthRow, row_of
from strands_env.report.training import is_slime_log
from strands_env.training import load_samples
from strands_env.training.sample import TrainingSample
from strands_sglang.trajectory import Role


def rows_of_samples(samples: Iterable[TrainingSample]) -> list[HealthRow]:
    """The rows of exported paths, one a rollout."""
    rollouts: dict[str | None, list[TrainingSample]] = {}
    for sample in samples:
        rollouts.setdefault(sample.rollout_id, []).append(sample)
    rows = []
    for name, (first, *others) in rollouts.items():
        rows.append(row := HealthRow(name=str(name), group=first.group_id, reward=first.reward))
        outcome = Outcome.INFRASTRUCTURE if first.status.is_lost else Outcome.POLICY
        row.count_end(first.metadata.get("termination_reason"), outcome)
        row.count_paths([first, *others])
    return rows


def rows_of_sessions(items: Iterable[Mapping[str, Any]]) -> list[HealthRow]:
    """The rows of a gateway's sessions: of their counters (`GET /sessions`), or of their trajectories."""
    rows, paths = [], []
    for item in items:
        if (counters := item.get("counters")) is not None:
            rows.append(row := HealthRow(name=item["id"]))
            row.count("no-call", {"": not counters["sampled"]})
            row.count("malformed", {"": counters["malformed"]}, counters["calls"] + counters["malformed"])
            row.count("roots", {reason: count for reason, count in counters["roots"].items() if reason != "first"})
        elif not item["is_discarded"]:
            ids, mask = np.array(item["token_ids"], np.int32), np.array(item["loss_mask"], np.uint8)
            logprobs = np.array(item["logprobs"], np.float64)  # None becomes NaN
            paths.append(
                TrainingSample(
                    token_ids=ids,
                    loss_mask=mask,
                    logprobs=logprobs,
                    prompt_length=item["prompt_length"],
                    finish_reason=item["finish_reason"],
                    role=Role(item["role"]),
                    rollout_id=item["session"],
                )
            )
    return [*rows, *rows_of_samples(paths)]


def rows_of_steps(steps: Iterable[Mapping[str, Any]]) -> list[HealthRow]:
    """The rows of slime's log: for each step one a way of ending, and one for each rollout that it shows."""
    rows = []
    for step in steps:
        name, metrics = f"rollout {step['rollout_id']}", step["metrics"]
        for key, share in metrics.items():
            if key.startswith("ended/") and share:
                rows.append(row := HealthRow(name=name, times=round(share * metrics["rollouts"])))
                reason = key.removeprefix("ended/")
                row.count_end(reason)
        for place, shown in enumerate(step.get("samples") or ()):
            prompt = f"{name}: {shown['prompt']!s:.80}"
            rows.append(row := HealthRow(name=f"{name}/{place}", group=prompt, reward=shown["reward"]))
            row.count("empty", {"": not (shown["response"] or "").strip()})
    return rows


def read_rows(path: str | Path, tokenizer: str | None = None) -> list[HealthRow]:
    """The rows of a run; of `.parquet`, exported samples; of `.json`, what a gateway answers; of slime's log.

    Args:
        tokenizer: Name of the run's tokenizer, where it is not known; "none" looks for no drift.

    Raises:
        EvalError: The file holds something else, or there is none.
    """
    source = Path(path)
    try:
        if source.suffix == ".parquet":
            return rows_of_samples(load_samples(source))
        if source.suffix == ".json":
            data = json.loads(source.read_bytes())
            return rows_of_sessions(data.get("sessions", [data]) if isinstance(data, dict) else data)
        if is_slime_log(source):
            return rows_of_steps(map(json.loads, source.read_bytes().split(b"\n")[:-1]))  # the last may be under way
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        kinds = {".parquet": "exported samples", ".json": "a gateway's GET /sessions or the trajectories of a session"}
        expected, why = kinds.get(source.suffix, "slime's log"), f"{type(error).__name__}: {error}"
        raise EvalError(f"{str(path)!r} holds no rollouts: expected {expected} ({why})") from error
    known = SavedRun.of(source, must_exist=True).tokenizer(tokenizer).tokenizer
    rows = []
    with ResultReader(source) as reader:
        for entry in reader.entries:
            sample = reader.read(entry, with_tokens=True)
            paths = sample.step_result.recorded_trajectories if known is not None else ()
            spans = [span for each in paths for span in find_drift(each.token_ids, known)]
            rows.append(row_of(sample, [span.kind for span in spans] if paths else None))
    return rows
