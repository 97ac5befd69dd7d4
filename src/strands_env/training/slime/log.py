"""Rollout logger: metrics and conversations of every rollout step, to files, wandb or the log."""

from __future__ import annotations

import functools
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strands_env.trackers import BackgroundTracker, TrackerError, make_tracker
from strands_env.training.slime.fill import notes_of, read_reward, rollout_key
from strands_env.training.slime.rewards import _flatten, _is_removed
from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings

logger = logging.getLogger(__name__)


def log_rollout(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> bool:
    """Log a training rollout. For `--custom-rollout-log-function-path`.

    Returns:
        False, so that slime's own metrics are logged as well.
    """
    seconds = {} if rollout_time is None else {"time_s": float(rollout_time)}
    _write(args, "rollout", rollout_id, seconds, samples)
    return False


def log_eval_rollout(rollout_id: Any, args: Any, data: Any, extra_metrics: Any) -> bool:
    """Log an evaluation, one line per data set. For `--custom-eval-rollout-log-function-path`.

    Returns:
        False, so that slime's own metrics are logged as well.
    """
    for name, part in data.items():
        samples = part.get("samples") if isinstance(part, Mapping) else part
        _write(args, f"eval_{name}", rollout_id, {}, samples or ())
    return False


def rollout_metrics(args: Any, samples: Iterable[Any]) -> dict[str, float]:
    """Means over rollouts, each counted once: rewards, lengths, ends, tool calls, cache hits, weight versions.

    A mean over nothing is NaN.

    Args:
        args: slime's arguments.
        samples: Samples or lists of samples.
    """
    flat = list(_flatten(samples))
    firsts = _first_of_each_rollout(flat)
    usable = [sample for sample in firsts if not _is_removed(sample)]
    rewards = [reward for sample in usable if (reward := read_reward(args, sample)) is not None]
    metrics: dict[str, float] = {
        "rollouts": len(firsts),
        "samples": len(flat),
        "removed": len(firsts) - len(usable),
        "reward": _mean(rewards),
        "response_tokens": _mean([getattr(sample, "response_length", None) or 0 for sample in flat]),
        "trained_tokens": _mean([sum(getattr(sample, "loss_mask", None) or ()) for sample in flat]),
        "weight_versions": _mean([len(set(getattr(sample, "weight_versions", None) or ())) for sample in flat]),
    }
    notes = [notes_of(sample) for sample in firsts]
    for reason, count in Counter(note.get("termination_reason", "unknown") for note in notes).items():
        metrics[f"ended/{reason}"] = count / len(firsts)
    for name in ("tool_calls", "tool_iters", "tool_s", "wall_s", "reward_latency_s"):
        given = [(note.get("metrics") or {}).get(name) for note in notes]
        values = [value for value in given if isinstance(value, int | float)]
        if values:
            metrics[name] = _mean(values)
    cache = [info for sample in firsts if (info := getattr(sample, "prefix_cache_info", None)) is not None]
    if prompt := sum(info.total_prompt_tokens for info in cache):
        metrics["prefix_cache_hit_rate"] = sum(info.cached_tokens for info in cache) / prompt
    return metrics


def _first_of_each_rollout(flat: Sequence[Any]) -> list[Any]:
    firsts: dict[Any, Any] = {}
    for position, sample in enumerate(flat):
        firsts.setdefault((getattr(sample, "group_index", None), rollout_key(sample, position)), sample)
    return list(firsts.values())


def _write(args: Any, kind: str, rollout_id: Any, metrics: Mapping[str, float], samples: Iterable[Any]) -> None:
    """Log a step. Whatever goes wrong in it is a warning: a full disk or a lost network must not end the training."""
    try:
        settings = SlimeSettings.from_args(args, factory_required=False)
        flat = list(_flatten(samples))
        measured = {**metrics, **rollout_metrics(args, flat)}
        logger.info("kind=<%s>, rollout=<%s>, metrics=<%s> | rollout finished", kind, rollout_id, measured)
        shown = [_row(args, sample) for sample in _first_of_each_rollout(flat)[: settings.log_messages]]
        known = {name: value if math.isfinite(value) else None for name, value in measured.items()}
        if settings.log_dir:
            folder = Path(settings.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"rollout_id": rollout_id, "metrics": known, "samples": shown}, default=str)
            with (folder / f"{kind.replace('/', '_')}.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        project = str(getattr(args, "wandb_project", None) or "slime")
        numbers = {f"{kind}/{name}": value for name, value in known.items() if value is not None}
        for tracker in _trackers(settings.trackers, project, settings.log_dir):
            tracker.log(numbers, step=rollout_id)
        if getattr(args, "use_wandb", False):
            _write_wandb(kind, rollout_id, known, shown)
    except SlimeConfigError:
        raise
    except Exception as error:
        logger.warning("kind=<%s>, rollout=<%s>, error=<%s> | rollout not logged", kind, rollout_id, error)


@functools.cache
def _trackers(names: str | None, project: str, folder: str | None) -> tuple[BackgroundTracker, ...]:
    """The trackers of this process, started with the first rollout logged; one that does not start is left out."""
    started, place = [], Path(folder or ".")
    for kind in filter(None, (name.strip() for name in (names or "").split(","))):
        try:
            tracker = make_tracker(kind, project=project, name=place.resolve().name, folder=place)
        except TrackerError as error:
            logger.warning("tracker=<%s>, error=<%s> | tracker left out", kind, error)
        else:
            started.append(BackgroundTracker(tracker))
    return tuple(started)


def _write_wandb(kind: str, rollout_id: Any, metrics: Mapping[str, float | None], shown: Sequence[Any]) -> None:
    """To the run that slime has started, with the rollout as the step; wandb's own step is slime's."""
    wandb: Any = sys.modules.get("wandb")  # slime imports it when it is used; it is not ours to start
    if getattr(wandb, "run", None) is None:
        return
    wandb.define_metric("strands/*", step_metric="strands/step")
    values: dict[str, Any] = {f"strands/{kind}/{name}": value for name, value in metrics.items() if value is not None}
    columns = ["reward", "status", "ended", "response"]
    rows = [[row[name] for name in columns] for row in shown]
    values[f"strands/{kind}/samples"] = wandb.Table(columns=columns, data=rows)
    wandb.log({"strands/step": rollout_id, **values})


def _row(args: Any, sample: Any) -> dict[str, Any]:
    return {
        "reward": read_reward(args, sample),
        "status": getattr(getattr(sample, "status", None), "value", None),
        "ended": notes_of(sample).get("termination_reason"),
        "prompt": getattr(sample, "prompt", None),
        "response": getattr(sample, "response", None),
        "label": getattr(sample, "label", None),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
