"""The other arm: the whole road by text, as an OpenAI-style scaffold takes it.

    bash strands_qwen3_8b.sh --baseline retokenized

Environment, tools, sampling, budgets, retries and rewards are those of the token-exact arm. In this one the history is
text: every turn the chat template renders all of it, and that is encoded for the server; the reply comes back as text
and calls. What is trained is the final conversation, rendered and encoded in one piece, with loss on what the assistant
said. There are no recorded log-probabilities, which belong to other tokens: slime computes its own.

Both arms log token counts and drift with `log_rollout`, so that anybody with a node can compare them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from strands_env.eval.drift import find_drift
from strands_env.training import slime
from strands_env.training.slime.generate import make_environment
from strands_sglang import get_tokenizer
from strands_sglang.conversation.messages import format_messages, format_tool_specs
from strands_sglang.exceptions import TokenBudgetReachedError
from strands_sglang.template import ChatTemplate

REFUSED = {
    **dict.fromkeys(("use_rollout_logprobs", "use_tis", "partial_rollout", "use_rollout_routing_replay"), False),
    "rollout_top_p": 1.0,
}
"""Options that need records of the tokens that were sampled, and how they are off."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A model call: its conversation, what it was asked, the length of its prompt, and what was sampled."""

    conversation: Any
    prepared: Any
    sampled: Any


TURNS: ContextVar[list[Turn]] = ContextVar("turns")
"""The model calls of the rollout that this task runs."""


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """A rollout of `strands_env.training.slime.generate` by text. For `--custom-generate-function-path`.

    Raises:
        ValueError: slime is to train on records of the sampled tokens, or to go on with a partial rollout.
    """
    for name, off in REFUSED.items():
        if getattr(args, name, off) != off:
            raise ValueError(f"--{name.replace('_', '-')} needs the tokens that were sampled: leave it out here")
    turns: list[Turn] = []
    TURNS.set(turns)
    by_text = copy.copy(args)
    by_text.exact_args, by_text.strands_env_factory = args, f"{__name__}.make_env"
    by_text.strands_env_fanout = False  # every prompt begins its own path, and one conversation is trained
    made = await slime.generate(by_text, sample, sampling_params, evaluation=evaluation)
    made.rollout_log_probs = None  # of every sample, for slime looks at the first of a batch
    if turns:
        last = [turn for turn in turns if turn.conversation is turns[-1].conversation]  # of the last attempt
        render(made, last, get_tokenizer(args.hf_checkpoint))
    return made


def make_env(*, model_factory: Any, args: Any, sample: Any, evaluation: bool) -> Any:
    """The environment of the other arm, whose models render every prompt afresh."""
    settings = slime.SlimeSettings.from_args(args.exact_args)
    turns = TURNS.get()

    def make_model() -> Any:
        model = model_factory()
        forget(model.conversation, turns)
        return model

    return make_environment(settings, make_model, args=args.exact_args, sample=sample, evaluation=evaluation)


def forget(conversation: Any, turns: list[Turn]) -> None:
    """Have a conversation render and encode its whole history at every turn, and note its turns."""
    prepare, draw = conversation.prepare_aside, conversation.sample
    budget, first = conversation.config["max_response_tokens"], None

    async def prepare_from_text(request: Any) -> Any:
        nonlocal first
        prepared = await prepare(replace(request, as_root=True))
        first = prepared.prompt_length if first is None else first
        if budget is None:
            return prepared
        left = budget - (prepared.prompt_length - first)  # of the whole response, as in the other arm
        if left <= 0:
            raise TokenBudgetReachedError("max_response_tokens", budget, budget - left)
        return replace(prepared, request=replace(request, params={**request.params, "max_new_tokens": left}))

    async def draw_and_note(prepared: Any, **options: Any) -> Any:
        sampled = await draw(prepared, **options)
        turns.append(Turn(conversation, prepared, sampled))
        return sampled

    conversation.prepare_aside, conversation.sample = prepare_from_text, draw_and_note


def render(sample: Any, turns: Sequence[Turn], tokenizer: Any) -> None:
    """Replace the tokens of a slime `Sample` by those of its conversation as text, in place."""
    sampled = [list(turn.sampled.turn.completion.output_ids) for turn in turns]
    counts = count_tokens(sampled, tokenizer)
    sample.metadata = {**sample.metadata, "token_counts": {**counts, "trained": 0}}
    if sample.remove_sample or not sample.response_length:
        return  # a failed rollout: its placeholder stays
    request, reply = turns[-1].prepared.request, turns[-1].sampled.reply
    chat = format_messages([*request.messages, reply], request.system)
    kwargs = turns[-1].conversation.config["chat_template_kwargs"]
    tools = format_tool_specs(request.tools) or None
    tokens, mask = encode(chat, tokenizer, tools=tools, **kwargs)
    if 1 not in mask:
        raise ValueError("the rendered conversation has no reply of the assistant: the template prints none")
    prompt_length = mask.index(1)
    sample.tokens, sample.loss_mask = tokens, mask[prompt_length:]
    sample.response_length = len(sample.loss_mask)
    same = [token for token, trained in zip(tokens, mask, strict=True) if trained] == list(chain(*sampled))
    sample.metadata["token_counts"] |= {"trained": sum(mask), "other": not same}


def encode(chat: Sequence[Mapping[str, Any]], tokenizer: Any, **options: Any) -> tuple[list[int], list[int]]:
    """A conversation through the chat template, encoded in one piece, and 1 for the tokens of the assistant.

    The assistant's are those between the beginning of a reply, as the template prints it for generation, and the end
    of sequence; the end is trained, too.
    """
    template = ChatTemplate.from_tokenizer(tokenizer)
    text, user = template.render(chat, **options), [{"role": "user", "content": "x"}]
    opening = template.render(user, add_generation_prompt=True).removeprefix(template.render(user))
    opening = opening.splitlines(keepends=True)[0]  # what may follow is an empty reasoning block, which replies lack
    spans, end = [], 0
    for _ in (message for message in chat if message["role"] == "assistant"):
        start = text.index(opening, end) + len(opening)
        end = text.index(tokenizer.eos_token, start) + len(tokenizer.eos_token)
        spans.append((start, end))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    places = encoded["offset_mapping"]
    mask = [int(end > start and any(a <= start and end <= b for a, b in spans)) for start, end in places]
    return encoded["input_ids"], mask


# ---- the log of both arms -------------------------------------------------------------------------------------------


def count_tokens(sampled: Sequence[list[int]], tokenizer: Any) -> dict[str, int]:
    """Tokens of the sampled replies, and those of them that encoding their text again changes."""
    return {
        "sampled": sum(map(len, sampled)),
        "changed": sum(span.end - span.start for ids in sampled for span in find_drift(ids, tokenizer)),
    }


def count_exact(sample: Any, tokenizer: Any) -> dict[str, int]:
    """The counts of a sample of the token-exact arm, which trains what was sampled."""
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    runs = groupby(zip(response, sample.loss_mask or [], strict=True), key=lambda pair: pair[1])
    counts = count_tokens([[token for token, _ in run] for is_sampled, run in runs if is_sampled], tokenizer)
    return {**counts, "trained": counts["sampled"], "other": 0}


def log_rollout(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> bool:
    """Our log of a rollout step, and a line of drift in `drift.jsonl`, in both arms the same way.

    `rollouts_with_drift`: re-encoding the text of their replies changes tokens; `tokens_with_drift`: share of the
    sampled ones that it changes; `rollouts_of_other_tokens`: what is trained is not what was sampled.
    """
    tokenizer = get_tokenizer(args.hf_checkpoint)
    counts = [one.metadata.get("token_counts") or count_exact(one, tokenizer) for one in flatten(samples)]
    total = {name: sum(count[name] for count in counts) for name in ("sampled", "changed", "trained")}
    line = {
        "step": rollout_id,
        "rollouts_with_drift": sum(count["changed"] > 0 for count in counts) / max(len(counts), 1),
        "rollouts_of_other_tokens": sum(count.get("other", 0) for count in counts) / max(len(counts), 1),
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
