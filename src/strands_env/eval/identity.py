"""Identity by content: what a task, a configuration and a sample are, as hashes that any machine computes alike."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from strands_env.core import Action

_MISSING = object()


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, so that equal values are equal bytes.

    Raises:
        TypeError: The value is not JSON.
    """
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def digest(*parts: bytes) -> str:
    """32 hexadecimal digits of blake2b over the parts, each with its length so that none runs into the next."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def task_digest(action: Action) -> str:
    """Hash of a task's content. An id the user did not give is random, and so left out."""
    exclude = None if "id" in action.task_context.model_fields_set else {"task_context": {"id"}}
    return digest(canonical(action.model_dump(mode="json", exclude=exclude)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A task of the run.

    Attributes:
        action: The task.
        id: Its id: the user's, or the hash of its content; `#2`, `#3`, ... behind it where the id comes again.
        digest: Hash of its content.
    """

    action: Action
    id: str
    digest: str


class PromptNamer:
    """Gives every task of a run its id, the same in every run over the same data."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def name(self, action: Action) -> Prompt:
        """Name the next task."""
        content = task_digest(action)
        given = action.task_context.id if "id" in action.task_context.model_fields_set else content
        self._seen[given] += 1
        count = self._seen[given]
        return Prompt(action=action, id=given if count == 1 else f"{given}#{count}", digest=content)


def sample_id(config_digest: str, prompt: Prompt, index: int) -> str:
    """Identity of one sample: configuration, task and index."""
    return digest(config_digest.encode(), prompt.digest.encode(), prompt.id.encode(), index.to_bytes(8, "little"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two configurations, a line for each: `model.temperature: 0.7 in the file, now 1.0`."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before, after = old.get(key, _MISSING), new.get(key, _MISSING)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{name}.")
        elif before != after:
            lines.append(f"{name}: {_shown(before)} in the file, now {_shown(after)}")
    return lines


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "absent"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
