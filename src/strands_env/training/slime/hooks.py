"""slime's other hooks: rewards, group statistics that count every rollout once, the filter, a teacher, the log."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strands_env.core import Environment, Observation, StepResult, TerminationReason
from strands_env.core.trackers import make_tracker, numbers_of
from strands_env.training.advantages import group_advantages
from strands_env.training.driver import FailureStreakError
from strands_env.training.sample import TrainingSample
from strands_env.training.slime.prompt import read_prompt
from strands_env.training.slime.rows import (
    counted_reward,
    fields_that_stop_the_run,
    flatten,
    group_rollouts,
    notes_of,
    put,
    read_reward,
    reward_value,
    rollout_key,
    unusable_reward,
)
from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings, Trainer, load
from strands_env.training.slime.shared_state import SESSION
from strands_env.training.teacher import score_with_teacher
from strands_sglang import get_client, get_tokenizer
from strands_sglang.exceptions import BackendAnswerError, StrandsSGLangError

logger = logging.getLogger(__name__)


def reward_post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Raw and group-normalised rewards. For `--custom-reward-post-process-path`.

    Groups are those of `group_index` (without it, every `n_samples_per_prompt` rollouts in a row), each rollout
    (`rollout_id`, otherwise `index`) counts once, and removed samples do not count and get advantage 0, as does a
    group with fewer than `strands_env_min_usable` usable rollouts. slime's own normalisation treats the whole batch as
    one group as soon as a rollout gives two samples.

    Args:
        args: slime's; `advantage_estimator`, `rewards_normalization` and `grpo_std_normalization` are read.
        samples: Those of a training step, in any order.

    Returns:
        Raw rewards and those to train on, in the order of the samples.
    """
    flat = list(flatten(samples))
    raw = [read_reward(args, sample) or 0.0 for sample in flat]
    usable = [counted_reward(args, sample) for sample in flat]
    estimator = getattr(args, "advantage_estimator", "grpo")
    normalises = estimator in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
    if not (normalises and getattr(args, "rewards_normalization", True)):
        return raw, [reward or 0.0 for reward in usable]
    scales = estimator != "reinforce_plus_plus_baseline" and getattr(args, "grpo_std_normalization", True)
    keys = [rollout_key(sample, ("position", position)) for position, sample in enumerate(flat)]
    groups = _groups(args, flat, keys)
    least = SlimeSettings.from_args(args).min_usable
    return raw, group_advantages(usable, group_ids=groups, rollout_ids=keys, scale_by_std=scales, min_rollouts=least)


def check_reward_nonzero_std(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """Keep a group whose rollouts differ in reward. For `--dynamic-sampling-filter-path`.

    Elements may be samples or lists of samples (fan-out), which count once. Removed samples do not count.
    """
    firsts = [members[0] for members in group_rollouts(samples).values()]
    rewards = [reward for sample in firsts if (reward := counted_reward(args, sample)) is not None]
    reason = None
    if len(rewards) < max(SlimeSettings.from_args(args).min_usable, 1):
        reason = "too_few_usable_rollouts" if rewards else "no_usable_rollout"
    elif max(rewards) - min(rewards) <= 1e-6:
        reason = f"zero_std_{round(rewards[0], 1)}"
    try:
        trainer = Trainer.of_sample(firsts[0] if firsts else None)
        module = importlib.import_module(f"{trainer.name}.rollout.filter_hub.base_types")
    except ImportError:
        return reason is None
    return module.DynamicFilterOutput(keep=reason is None, reason=reason)


def _groups(args: Any, samples: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
    """The group of each sample; without an index, every `n_samples_per_prompt` rollouts, for slime orders by prompt."""
    size = int(getattr(args, "n_samples_per_prompt", None) or len(samples) or 1)
    numbers: dict[Any, int] = {}
    slices = [("slice", numbers.setdefault(key, len(numbers)) // size) for key in keys]
    indices = [getattr(sample, "group_index", None) for sample in samples]
    return [place if index is None else index for index, place in zip(indices, slices, strict=True)]


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The reward of a sample, or of a list of samples. For `--custom-rm-path`.

    `generate` sets the reward of its environment, and then slime does not call this. It scores where the environment
    has no reward function: with `strands_env_reward`, on the agent's final answer and the label alone. Samples of one
    rollout in a list are scored once and share the reward.

    Raises:
        SlimeConfigError: There is neither a reward of the environment nor `strands_env_reward`.
        FailureStreakError: `strands_env_reward` failed too many times in a row in training.
    """
    samples = list(sample) if isinstance(sample, Sequence) else [sample]
    rollouts = list(group_rollouts(samples).values())
    try:
        scores = await asyncio.gather(*(_score_rollout(args, members) for members in rollouts))
        score_of = {id(one): score for members, score in zip(rollouts, scores, strict=True) for one in members}
        rewards = [score_of[id(one)] if one.reward is None else one.reward for one in samples]
    except (SlimeConfigError, FailureStreakError) as error:
        rewards = [put(one, [fields_that_stop_the_run(error)]).reward for one in samples]
    return rewards if isinstance(sample, Sequence) else rewards[0]


async def _score_rollout(args: Any, samples: Sequence[Any]) -> Any:
    """The reward of a rollout; an abstention removes its samples."""
    sample = samples[0]
    if sample.reward is not None:
        return sample.reward
    settings = SlimeSettings.from_args(args)
    if settings.reward is None:
        raise SlimeConfigError(
            "nothing scores this rollout: give the environment a reward_fn, or set strands_env_reward to the import "
            "path of a reward function"
        )
    reward = load(settings.reward)
    scorer = Environment(model_factory=_no_model, reward_fn=reward() if isinstance(reward, type) else reward)
    notes = notes_of(sample)
    answer = notes.get("final_response", sample.response) or ""
    result = StepResult(
        observation=Observation(messages=[{"role": "assistant", "content": [{"text": answer}]}]),
        termination_reason=TerminationReason(notes.get("termination_reason", TerminationReason.TASK_COMPLETE)),
    )
    action = read_prompt(sample)
    evaluation, call = bool(notes.get("evaluation")), object()
    with SESSION.reward_failures.running(call):
        if not evaluation:
            await SESSION.prove_data(args, settings, scorer.reward_fn)
        await scorer.score(action, result)
        if result.error is None:
            SESSION.reward_failures.reset()
        elif not evaluation:
            SESSION.reward_failures.add(call, result.error, settings.max_failures)
    if result.reward is None or result.reward.reward is None:
        for one in samples:
            one.remove_sample = True
        return unusable_reward(args, sample.tokens, "unscored", evaluation=evaluation)
    return reward_value(args, result.reward.reward, result.reward.info, evaluation=evaluation)


def _no_model() -> Any:
    raise RuntimeError("scores rollouts that ended, and runs none")


# ---- a teacher ----------------------------------------------------------------------------------------------------


async def teacher_log_probs(args: Any, sample: Any, evaluation: bool = False) -> None:
    """Have a teacher score a sample, into `sample.teacher_log_probs`. For `--rollout-sample-hook-path`.

    With `--use-opd --opd-type sglang` slime takes the reverse KL off the advantages, beside the rewards of the
    environment. A sample that the teacher fails on, after the client's own attempts, is removed from training.

    Args:
        args: slime's arguments: `rm_url` is the address of the teacher (`vllm+http://...` is vLLM), whose tokenizer
            must have the vocabulary of `hf_checkpoint`.
        sample: slime's sample, filled by `generate`. One that is aborted is left alone: it will come again.
        evaluation: slime evaluates, which needs no teacher.

    Raises:
        SlimeConfigError: There is no `rm_url`, the tokenizers differ, or the sample has images.
    """
    if evaluation or getattr(sample.status, "value", None) == "aborted":
        return
    length = sample.response_length
    sample.teacher_log_probs = [0.0] * length  # every sample of a batch has them, or slime drops all
    if sample.remove_sample or not length:
        return
    if not (url := getattr(args, "rm_url", None)):
        raise SlimeConfigError("teacher_log_probs needs the address of the teacher: give --rm-url")
    if sample.multimodal_train_inputs is not None:
        raise SlimeConfigError("teacher_log_probs: a sample with images holds tensors, which no teacher takes")
    mask = np.zeros(len(sample.tokens), dtype=np.uint8)
    mask[-length:] = 1
    source = TrainingSample(
        token_ids=np.array(sample.tokens, dtype=np.int32), prompt_length=len(mask) - length, loss_mask=mask
    )
    try:
        tokenizer = await asyncio.to_thread(get_tokenizer, args.hf_checkpoint)
        (scored,) = await score_with_teacher([source], get_client(url.removesuffix("/generate")), tokenizer=tokenizer)
        assert scored.teacher_logprobs is not None  # of a single sample, a failure is raised
        logprobs = scored.teacher_logprobs[-length:]
        if np.isnan(logprobs).any():  # a NaN in the tensor of a batch would make every weight NaN
            raise BackendAnswerError("the teacher has no log-probability of some token")
        sample.teacher_log_probs = logprobs.tolist()
    except StrandsSGLangError as error:
        logger.warning("sample=<%s>, error=<%s> | the teacher did not score it: removed", sample.index, error)
        sample.remove_sample = True
    except ValueError as error:
        raise SlimeConfigError(str(error)) from error


# ---- the log ---------------------------------------------------------------------------------------------------------


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
    the number of those sampled by summaries, tools and other agents that are not trained.

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
        settings = SlimeSettings.from_args(args)
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
