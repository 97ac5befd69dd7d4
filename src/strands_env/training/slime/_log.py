"""Rollout logger: metrics and conversations of every rollout step, to files, wandb or the log."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strands_env.training.slime._fill import read_reward
from strands_env.training.slime._generate import METADATA_KEY
from strands_env.training.slime._hooks import _flatten, _is_removed, _rollout_key
from strands_env.training.slime._settings import SlimeSettings

logger = logging.getLogger(__name__)


def log_rollout(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: float) -> bool:
    """Log a training rollout. For `--custom-rollout-log-function-path`.

    Returns:
        False, so that slime's own metrics are logged as well.
    """
    metrics = {"time_s": float(rollout_time), **rollout_metrics(args, samples)}
    _write(args, "rollout", rollout_id, metrics, list(_flatten(samples)))
    return False


def log_eval_rollout(rollout_id: Any, args: Any, data: Any, extra_metrics: Any) -> bool:
    """Log an evaluation, one line a data set. For `--custom-eval-rollout-log-function-path`.

    Returns:
        False, so that slime's own metrics are logged as well.
    """
    for name, part in data.items():
        samples = list(_flatten(part.get("samples") or ()))
        _write(args, f"eval_{name}", rollout_id, rollout_metrics(args, samples), samples)
    return False


def rollout_metrics(args: Any, samples: Iterable[Any]) -> dict[str, float]:
    """Means over rollouts, each counted once: rewards, lengths, ends, tool calls, cache hits, weight versions.

    Args:
        args: slime's arguments.
        samples: Samples or lists of samples.
    """
    flat = list(_flatten(samples))
    rollouts: dict[Any, list[Any]] = {}
    for position, sample in enumerate(flat):
        rollouts.setdefault((getattr(sample, "group_index", None), _rollout_key(sample, position)), []).append(sample)
    firsts = [members[0] for members in rollouts.values()]
    usable = [sample for sample in firsts if not _is_removed(sample)]
    rewards = [reward for sample in usable if (reward := read_reward(args, sample)) is not None]
    metrics: dict[str, float] = {
        "rollouts": len(firsts),
        "samples": len(flat),
        "removed": len(firsts) - len(usable),
        "reward": _mean(rewards),
        "response_tokens": _mean([getattr(sample, "response_length", 0) for sample in flat]),
        "trained_tokens": _mean([sum(getattr(sample, "loss_mask", None) or ()) for sample in flat]),
        "weight_versions": _mean([len(set(getattr(sample, "weight_versions", ()))) for sample in flat]),
    }
    notes = [_notes(sample) for sample in firsts]
    for reason, count in Counter(note.get("termination_reason", "unknown") for note in notes).items():
        metrics[f"ended/{reason}"] = count / len(firsts)
    for name in ("tool_calls", "tool_iters", "tool_s", "wall_s", "reward_latency_s"):
        values = [note["metrics"][name] for note in notes if name in note.get("metrics", {})]
        if values:
            metrics[name] = _mean(values)
    cache = [info for sample in firsts if (info := getattr(sample, "prefix_cache_info", None)) is not None]
    if prompt := sum(info.total_prompt_tokens for info in cache):
        metrics["prefix_cache_hit_rate"] = sum(info.cached_tokens for info in cache) / prompt
    return metrics


def _write(args: Any, kind: str, rollout_id: Any, metrics: Mapping[str, float], samples: Sequence[Any]) -> None:
    settings = SlimeSettings.from_args(args, factory_required=False)
    logger.info("kind=<%s>, rollout=<%s>, metrics=<%s> | rollout finished", kind, rollout_id, metrics)
    shown = [_row(args, sample) for sample in samples[: settings.log_messages]]
    if settings.log_dir:
        try:
            folder = Path(settings.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{kind}.jsonl").open("a", encoding="utf-8") as file:
                line = {"rollout_id": rollout_id, "metrics": dict(metrics), "samples": shown}
                file.write(json.dumps(line, default=str) + "\n")
        except OSError as error:  # a full disk must not end the training
            logger.warning("folder=<%s>, error=<%s> | rollout log not written", settings.log_dir, error)
    wandb = sys.modules.get("wandb")  # slime imports it when it is used; never ours to start
    if getattr(args, "use_wandb", False) and getattr(wandb, "run", None) is not None:
        values: dict[str, Any] = {f"strands/{kind}/{name}": value for name, value in metrics.items()}
        columns = ["reward", "status", "ended", "response"]
        rows = [[row[name] for name in columns] for row in shown]
        values[f"strands/{kind}/samples"] = wandb.Table(columns=columns, data=rows)  # type: ignore[union-attr]
        wandb.log(values)  # type: ignore[union-attr]


def _row(args: Any, sample: Any) -> dict[str, Any]:
    return {
        "reward": read_reward(args, sample),
        "status": getattr(getattr(sample, "status", None), "value", None),
        "ended": _notes(sample).get("termination_reason"),
        "prompt": sample.prompt,
        "response": sample.response,
        "label": sample.label,
    }


def _notes(sample: Any) -> dict[str, Any]:
    notes: dict[str, Any] = (getattr(sample, "metadata", None) or {}).get(METADATA_KEY, {})
    return notes


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
