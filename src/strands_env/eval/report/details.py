"""The report's view of one sample: messages, tokens, branches, and where re-tokenising would have drifted."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from strands_env.core import ErrorRecord, StepResult, TokenObservation, Trajectory
from strands_env.eval.drift import DriftTotals
from strands_env.eval.sample import EvalSample
from strands_sglang.trajectory.tokens import common_prefix, mask_runs

MAX_TEXT = 100_000
"""Characters of one block that are kept."""
MAX_IMAGES = 20_000_000
"""Bytes of base64 of all images in a report; those beyond are named and not shown."""
SNIPPET = 160
"""Characters of a prompt in lists."""
_IMAGE_TYPES = frozenset({"png", "jpeg", "gif", "webp"})


class ReportImages:
    """The images of one sample, each once, as data URLs; `texts` says how much room the report has left."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._places: dict[str, int] = {}
        self.urls: list[str] = []

    def place(self, data: Any, kind: Any = None) -> int | None:
        """Index of an image, bytes, base64 or a data URL, in `urls`; None if it is no image, or there is no room."""
        text = base64.b64encode(data).decode() if isinstance(data, bytes | bytearray) else data
        if not isinstance(text, str) or not text:
            return None
        head, _, encoded = text.rpartition(",")
        kind = head.removeprefix("data:image/").removesuffix(";base64") or kind
        if encoded not in self._places:
            if len(encoded) > self._texts.image_room:
                return None
            self._texts.image_room -= len(encoded)
            self._places[encoded] = len(self.urls)
            self.urls.append(f"data:image/{kind if kind in _IMAGE_TYPES else 'png'};base64,{encoded}")
        return self._places[encoded]


class TokenTexts:
    """Texts of token ids, decoded once each.

    Args:
        tokenizer: Hugging Face style tokenizer, None where texts are not known.
        budget: Tokens the whole report may hold; trajectories beyond it are left out and counted.

    Attributes:
        drift: Changes that re-tokenising the trajectories would make; None without a tokenizer.
    """

    def __init__(self, tokenizer: Any, budget: int) -> None:
        self.tokenizer = tokenizer
        self.drift = None if tokenizer is None else DriftTotals(tokenizer=tokenizer)
        self._texts: dict[int, str] = {}
        self._budget = budget
        self.image_room = MAX_IMAGES
        self.left_out = 0

    def take(self, count: int) -> bool:
        """Reserve room for this many more tokens, if there is some."""
        if count > self._budget:
            self.left_out += 1
            return False
        self._budget -= count
        return True

    def text(self, token_id: int) -> str:
        """The text of one token; a replacement character where it is part of a character."""
        if token_id not in self._texts:
            try:
                self._texts[token_id] = str(self.tokenizer.decode([token_id]))
            except Exception:  # an id the tokenizer does not have is shown by its number
                self._texts[token_id] = ""
        return self._texts[token_id]


def details(
    sample: EvalSample, texts: TokenTexts, vocabulary: dict[int, str], system_prompt: str | None = None
) -> dict[str, Any]:
    """JSON values of a sample with its tokens; `vocabulary` gets the texts of all ids that occur."""
    result = sample.step_result
    truth = sample.action.task_context.ground_truth
    trajectories = result.recorded_trajectories
    main = next((place for place, item in enumerate(trajectories) if item.is_main), None)
    pictures = ReportImages(texts)
    document: dict[str, Any] = {
        "id": sample.id,
        "attempts": sample.attempts,
        "truth": None if truth is None else _cut(str(truth)),
        "given": len(_earlier_messages(sample, system_prompt)),
        "messages": messages_of(sample, system_prompt, pictures),
        "images": pictures.urls,
        "metrics": result.observation.metrics,
        "info": None if result.reward is None else result.reward.info,
        "why": [] if result.reward is None else reasons_of(result.reward.info),
        "tool_errors": [{"tool": item.tool, **_error(item.error)} for item in result.tool_errors],
        "error": None if result.error is None else _error(result.error),
        "cleanup_error": None if result.cleanup_error is None else _error(result.cleanup_error),
    }
    if trajectories and texts.take(sum(len(item.tokens) for item in trajectories)):
        document["trajectories"] = [_trajectory(item, texts, vocabulary, pictures) for item in trajectories]
        document["main"] = main
        document["prompt"] = None if main is None else _prompt_text(trajectories[main], texts)
        document["tree"] = branches([item.tokens.token_ids_array for item in trajectories])
    elif trajectories:
        document["tokens_left_out"] = sum(len(item.tokens) for item in trajectories)
    return document


def messages_of(
    sample: EvalSample, system_prompt: str | None, pictures: ReportImages | None = None
) -> list[dict[str, Any]]:
    """The messages of a sample as `{role, blocks}`: the system prompt, the history, and its own.

    `system_prompt` is that of the run's environment, for samples that did not record theirs. `pictures` takes in the
    images.
    """
    unasked = {"role": "the task, which no model was given", "content": [{"text": sample.action.text}]}
    messages = sample.step_result.observation.messages or [unasked]
    return [_message(message, pictures) for message in [*_earlier_messages(sample, system_prompt), *messages]]


def _earlier_messages(sample: EvalSample, system_prompt: str | None) -> list[dict[str, Any]]:
    observation, history_of_task = sample.step_result.observation, sample.action.task_context.conversation_history
    prompt = observation.system_prompt or system_prompt
    system = [{"role": "system", "content": [{"text": prompt}]}] if prompt else []
    by = "environment" if observation.history is not None else "task"
    history = history_of_task if observation.history is None else observation.history
    return [*system, *({**message, "role": f"{message.get('role')}, given by the {by}"} for message in history)]


def branches(paths: Sequence[Any], members: Iterable[int] | None = None, start: int = 0) -> list[dict[str, Any]]:
    """The paths as a forest of shared prefixes: `{start, end, path, children}`, tokens `[start, end)` of path `path`.

    A node without children is the end of its path; `paths` names all that run through it.
    `members` and `start` say which paths, and from where on; all of them, from the beginning.
    """
    nodes = []
    groups: dict[int, list[int]] = {}
    for member in range(len(paths)) if members is None else members:
        if len(paths[member]) > start:
            groups.setdefault(int(paths[member][start]), []).append(member)
    for group in groups.values():
        first = paths[group[0]]
        end = min(start + common_prefix(first[start:], paths[other][start:]) for other in group)
        nodes.append(
            {"start": start, "end": end, "path": group[0], "paths": group, "children": branches(paths, group, end)}
        )
    return nodes


def task_of(text: str, truth: Any, characters: int) -> dict[str, Any]:
    """A task as lists show it: the beginning of its text in one line, and of the expected answer."""
    return {"text": " ".join(text.split())[:characters], "truth": None if truth is None else str(truth)[:80]}


def answer_of(result: StepResult) -> str:
    """The final response, or the message of the error in its place."""
    return result.observation.final_response or (result.error.message if result.error else "")


def _prompt_text(item: Trajectory, texts: TokenTexts) -> str | None:
    """The first prompt as the model read it, with the text an environment put before the task; a token an image."""
    tokens = item.tokens
    if texts.tokenizer is None or not tokens.prompt_length:
        return None
    try:
        keep = np.ones(tokens.prompt_length, dtype=bool)
        for medium in item.media:
            # One token stands for a picture: thousands of placeholders tell a reader nothing.
            keep[medium.offset + 1 : medium.offset + medium.length] = False
        ids = tokens.token_ids_array[: tokens.prompt_length][keep].tolist()
        text = texts.tokenizer.decode(ids, skip_special_tokens=False)
    except Exception:  # ids of another tokenizer; show the tokens without texts
        return None
    return _cut(str(text))


REASONS = 6
"""Parts of a reward's info that are shown beside the score."""


def reasons_of(info: Any) -> list[list[str]]:
    """The short values of a reward's info as `[name, text]`: the reason for it, without reading JSON."""
    reasons: list[list[str]] = []

    def look(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                look(inner, f"{name}.{key}" if name else str(key))
        elif name == "ground_truth":  # the page shows it elsewhere
            return
        elif isinstance(value, str | int | float | bool) and len(text := str(value)) <= MAX_REASON and text:
            reasons.append([name.replace("_", " "), text])

    look(info, "")
    return sorted(reasons, key=lambda part: part[0] not in _FIRST)[:REASONS]


MAX_REASON = 400
"""Characters of a part that may be shown there."""
_FIRST = ("reason", "reasoning", "judgment.reasoning", "judgment.verdict", "error", "answer", "extracted")


def _trajectory(
    item: Trajectory, texts: TokenTexts, vocabulary: dict[int, str], pictures: ReportImages
) -> dict[str, Any]:
    tokens = item.tokens
    ids = tokens.token_ids
    document: dict[str, Any] = {
        "agent": item.agent_name,
        "role": item.role,
        "trainable": item.trainable,
        "discarded": item.is_discarded,
        "finish": item.finish_reason,
        "media": [[medium.offset, medium.length, pictures.place(medium.data)] for medium in item.media],
        "prompt": tokens.prompt_length,
        "ids": ids,
        "segments": [[int(part.is_output), part.start, part.end, part.turn] for part in tokens.segments],
        "trained": mask_runs(tokens.loss_mask_array),
        "logprobs": _logprobs(tokens),
        "versions": [[span.version, span.start, span.end] for span in tokens.weight_versions],
    }
    if texts.drift is not None:
        vocabulary.update((token, texts.text(token)) for token in ids if token not in vocabulary)
        document["drift"] = [
            [span.start, span.end, span.kind.value, [texts.text(token) for token in again], list(again)]
            for span in texts.drift.add(tokens)
            for again in [span.retokenized_ids[:32]]
        ]
    return document


def _logprobs(tokens: TokenObservation) -> list[list[Any]]:
    """`[start, [logprob, ...]]` of every stretch that has them; None within it where there is none."""
    stretches = []
    values = tokens.logprobs_array
    for part in tokens.segments:
        here = values[part.start : part.end]
        if not np.isnan(here).all():
            # JSON has no minus infinity; four digits are what the page shows.
            rounded = [None if np.isnan(value) else round(max(float(value), -999.0), 4) for value in here]
            stretches.append([part.start, rounded])
    return stretches


def _message(message: dict[str, Any], pictures: ReportImages | None) -> dict[str, Any]:
    blocks = [_block(block, pictures) for block in message.get("content") or []]
    role = str(message.get("role"))
    # The SDK has results come from the user.
    if role.startswith("user") and blocks and all(block["kind"] == "result" for block in blocks):
        role = f"tool{role[4:]}"
    return {"role": role, "blocks": blocks}


def _block(block: Any, pictures: ReportImages | None) -> dict[str, Any]:
    match block:
        case {"text": text}:
            return {"kind": "text", "text": _cut(str(text))}
        case {"toolUse": {"name": name, **rest}}:
            return {"kind": "call", "name": str(name), "id": str(rest.get("toolUseId")), "input": rest.get("input")}
        case {"toolResult": dict() as result}:
            inner = [_block(item, pictures) for item in result.get("content") or []]
            status = str(result.get("status", "success"))
            return {"kind": "result", "id": str(result.get("toolUseId")), "status": status, "blocks": inner}
        case {"reasoningContent": {"reasoningText": {"text": text}}}:
            return {"kind": "reasoning", "text": _cut(str(text))}
        case {"json": value}:
            return {"kind": "json", "value": value}
        case {"image": dict() as image} | {"document": dict() as image} | {"video": dict() as image}:
            data = image.get("source", {}).get("bytes") or b""
            text = f"{next(iter(block))} ({image.get('format')}, {len(data):,} bytes)"
            place = pictures.place(data, image.get("format")) if pictures and "image" in block else None
            return {"kind": "media", "text": text, "image": place}
    return {"kind": "json", "value": block}


def _error(error: ErrorRecord) -> dict[str, str]:
    facts = {name: _cut(str(value or "")) for name, value in asdict(error).items()}
    return {**facts, "cause": _cut(error.cause)}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} more characters]"
