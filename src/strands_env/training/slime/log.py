"""The log of slime's steps: a file, the run of W&B that slime has opened, and the figures in both."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strands_env.trackers import make_tracker, numbers_of
from strands_env.training.slime.sample import counted_reward, flatten, group_rollouts, notes_of, read_reward
from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings

logger = logging.getLogger(__name__)


def log_rollout(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> bool:
    """Log a training rollout. For `--custom-rollout-log-function-path`.

    Returns:
        False, so that slime's own metrics are logged as well.
    """
    seconds = {} if rollout_time is None else {"time_s": float(rollout_time)}
    _log_step(args, "rollout", rollout_id, seconds, samples)
    return False


def log_eval_rollout(rollout_id: Any, args: Any, data: Any, extra_metrics: Any) -> bool:
    """Log an evaluation, one line per data set. For `--custom-eval-rollout-log-function-path`.

    Returns:
        False, so that slime's own metrics are logged as well.
    """
    for name, part in data.items():
        samples = part.get("samples") if isinstance(part, Mapping) else part
        _log_step(args, f"eval_{name}", rollout_id, {}, samples or ())
    return False


def rollout_metrics(args: Any, samples: Iterable[Any]) -> dict[str, float]:
    """Means over rollouts, each counted once: rewards, lengths, ends, tool calls, cache hits, weight versions.

    `untrained/other_paths` is the share of sampled tokens that only paths hold which are not exported,
    `untrained/off_policy` of those that `--mask-offpolicy-in-partial-rollout` takes the loss off, `untrained_tokens`
    the number of those sampled by summaries, tools and whatever else is not meant to be trained.

    A mean over nothing is NaN. Elements may be samples or lists of samples.
    """
    flat = list(flatten(samples))
    firsts = [members[0] for members in group_rollouts(flat).values()]
    rewards = [reward for sample in firsts if (reward := counted_reward(args, sample)) is not None]
    metrics: dict[str, float] = {
        "rollouts": len(firsts),
        "samples": len(flat),
        "removed": sum(bool(getattr(sample, "remove_sample", False)) for sample in firsts),
        "reward": _mean(rewards),
        "response_tokens": _mean([getattr(sample, "response_length", None) or 0 for sample in flat]),
        "trained_tokens": _mean([sum(getattr(sample, "loss_mask", None) or ()) for sample in flat]),
        "weight_versions": _mean([len(set(getattr(sample, "weight_versions", None) or ())) for sample in flat]),
    }
    notes = [notes_of(sample) for sample in firsts]
    for reason, count in Counter(note.get("termination_reason", "unknown") for note in notes).items():
        metrics[f"ended/{reason}"] = count / len(firsts)
    tokens = [counts for note in notes if (counts := note.get("tokens"))]
    if sampled := sum(counts["sampled"] for counts in tokens):
        for reason in ("other_paths", "off_policy"):
            metrics[f"untrained/{reason}"] = sum(counts[reason] for counts in tokens) / sampled
    for name in ("tool_calls", "tool_iters", "tool_s", "wall_s", "reward_latency_s", "untrained_tokens"):
        measured = [(note.get("metrics") or {}).get(name) for note in notes]
        values = [value for value in measured if isinstance(value, int | float)]
        if values:
            metrics[name] = _mean(values)
    cache = [info for sample in firsts if (info := getattr(sample, "prefix_cache_info", None)) is not None]
    if prompt := sum(info.total_prompt_tokens for info in cache):
        metrics["prefix_cache_hit_rate"] = sum(info.cached_tokens for info in cache) / prompt
    return metrics


def _log_step(args: Any, kind: str, rollout_id: Any, metrics: Mapping[str, float], samples: Iterable[Any]) -> None:
    """Log a step. Whatever goes wrong in it is a warning: a full disk or a lost network must not end the training."""
    try:
        settings = SlimeSettings.from_args(args, factory_required=False)
        flat = list(flatten(samples))
        measured = {**metrics, **rollout_metrics(args, flat)}
        logger.info("kind=<%s>, rollout=<%s>, metrics=<%s> | rollout finished", kind, rollout_id, measured)
        rows = [_row(args, sample) for sample, *_ in list(group_rollouts(flat).values())[: settings.log_messages]]
        # A mean over nothing is NaN, which JSON has no word for and trackers draw as a gap or not at all.
        numbers = {name: value if math.isfinite(value) else None for name, value in measured.items()}
        if settings.log_dir:
            folder = Path(settings.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"rollout_id": rollout_id, "metrics": numbers, "samples": rows}, default=str)
            with (folder / f"{kind.replace('/', '_')}.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        # slime imports wandb where it is used, and opens its run: it is joined, and not ours to open.
        if getattr(args, "use_wandb", False) and getattr(sys.modules.get("wandb"), "run", None) is not None:
            tracker = make_tracker("wandb", project="", name="")
            tracker.log(numbers_of(measured, f"{kind}/"), step=rollout_id)
    except SlimeConfigError:
        raise
    except Exception as error:
        logger.warning("kind=<%s>, rollout=<%s>, error=<%s> | rollout not logged", kind, rollout_id, error)


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
