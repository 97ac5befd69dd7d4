"""The other arm: the same rollouts, given to slime as text and encoded again.

    bash run-qwen3-8b.sh --baseline retokenized

Environment, sampling, retries and rewards are those of the token-exact arm. Only what is trained differs: the
conversation is decoded and encoded in one piece, a token has loss where its characters were sampled, and there are no
recorded log-probabilities, which belong to other tokens. Both arms log token counts and drift with `log_rollout`,
computed on the tokens that were sampled, so that anybody with a node can compare them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from strands_env.training import slime
from strands_sglang import get_tokenizer
from strands_sglang.trajectory.drift import count_changed_tokens


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """A rollout of `strands_env.training.slime.generate`, re-tokenised. For `--custom-generate-function-path`.

    Raises:
        ValueError: slime is to train with the log-probabilities of the rollout, or to go on with a partial rollout.
    """
    for option in ("use_rollout_logprobs", "use_tis", "partial_rollout", "use_rollout_routing_replay"):
        if getattr(args, option, False):
            raise ValueError(f"--{option.replace('_', '-')} needs the tokens that were sampled: leave it out here")
    made = await slime.generate(args, sample, sampling_params, evaluation=evaluation)
    for one in made if isinstance(made, list) else [made]:
        retokenize(one, get_tokenizer(args.hf_checkpoint))
    return made


def retokenize(sample: Any, tokenizer: Any) -> None:
    """Replace the tokens of a slime `Sample` by those its text encodes to, in place."""
    sample.metadata["token_counts"] = count_tokens(sample, tokenizer)
    mask = [0] * (len(sample.tokens) - sample.response_length) + list(sample.loss_mask or [])
    text, spans, position = "", [], 0
    for is_sampled, run in groupby(mask):
        end = position + len(list(run))
        piece = tokenizer.decode(sample.tokens[position:end], skip_special_tokens=False)
        spans += [(len(text), len(text) + len(piece))] if is_sampled else []
        text, position = text + piece, end
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    trained = [
        int(end > start and any(first <= start and end <= last for first, last in spans))
        for start, end in encoded["offset_mapping"]
    ]
    sample.rollout_log_probs = None  # of every sample, for slime looks at the first of a batch
    if 1 not in trained:  # a failed rollout: its placeholder stays
        return
    prompt_length = trained.index(1)
    sample.tokens, sample.loss_mask = encoded["input_ids"], trained[prompt_length:]
    sample.response_length = len(sample.loss_mask)
    sample.metadata["token_counts"]["trained"] = sum(trained)


def count_tokens(sample: Any, tokenizer: Any) -> dict[str, int]:
    """Tokens that were sampled, those of them that encoding their text again changes, and those that are trained."""
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    runs = groupby(zip(response, sample.loss_mask or [], strict=True), key=lambda pair: pair[1])
    sampled = [[token for token, _ in run] for is_sampled, run in runs if is_sampled]
    total = sum(map(len, sampled))
    changed = sum(count_changed_tokens(ids, tokenizer) for ids in sampled)
    return {"sampled": total, "changed": changed, "trained": total}


def log_rollout(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> bool:
    """Our log of a rollout step, and a line of drift in `drift.jsonl`, in both arms the same way."""
    tokenizer = get_tokenizer(args.hf_checkpoint)
    counts = [one.metadata.get("token_counts") or count_tokens(one, tokenizer) for one in flatten(samples)]
    total = {name: sum(count[name] for count in counts) for name in ("sampled", "changed", "trained")}
    line = {
        "step": rollout_id,
        "rollouts_with_drift": sum(count["changed"] > 0 for count in counts) / max(len(counts), 1),
        "tokens_with_drift": total["changed"] / max(total["sampled"], 1),
        **{f"tokens_{name}": number for name, number in total.items()},
    }
    folder = Path(getattr(args, "strands_env_log_dir", None) or "outputs/slime")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "drift.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return slime.log_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time)


def flatten(samples: Any) -> Iterable[Any]:
    """Samples of a step, which may be lists of paths."""
    for one in samples:
        yield from flatten(one) if isinstance(one, list) else (one,)
