"""Identity by content: what a task, a configuration and a sample are, as hashes that any machine computes alike.

The seed of a sample follows from its identity, not from when it runs; it travels in the task context to every executor.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strands_env.core import Action, TaskContext
from strands_env.core.jsonable import canonical, changed, is_json, plain
from strands_env.core.seeds import derive_seed
from strands_env.eval.errors import DatasetError

__all__ = [
    "Prompt",
    "PromptNamer",
    "canonical",
    "copy_of",
    "differences",
    "differing",
    "digest",
    "fixed_seed",
    "sample_id",
    "sample_seed",
    "task_digest",
]

_MISSING = object()
_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})
_LONGEST, _SHORT = 120, 60


def digest(*parts: bytes) -> str:
    """32 hexadecimal digits of blake2b over the parts, each with its length so that none runs into the next."""
    data = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def task_digest(action: Action) -> str:
    """Hash of a task's content. An id the user did not give is random, and so left out.

    Raises:
        DatasetError: The task holds something without content, such as an open file.
    """
    try:
        return digest(_content(action))
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetError(
            f"the task {_name(action)} cannot be recognised when the run is resumed: {error}; keep such objects out "
            "of the task, and make them in the environment from plain values"
        ) from error


def copy_of(action: Action) -> Action:
    """A deep copy of a task.

    Raises:
        DatasetError: The task holds something that cannot be copied, such as a lock.
    """
    try:
        context = action.task_context
        fields = {**context.__dict__, **(context.__pydantic_extra__ or {})}
        copies = {name: _copy(value) for name, value in fields.items() if type(value) not in _IMMUTABLE}
        return changed(action, {"message": _copy(action.message), "task_context": changed(context, copies)})
    except Exception as error:  # of any object's own copying
        raise DatasetError(
            f"the task {_name(action)} cannot be copied for a rollout: {type(error).__name__}: {error}; keep such "
            "objects out of the task, and make them in the environment from plain values"
        ) from error


def _copy(value: Any) -> Any:
    """A deep copy, of plain values at a tenth of the cost of `copy.deepcopy`."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if (kind is list or kind is dict) and not value:
        return kind()
    return copy.deepcopy(value)


def _content(action: Action) -> bytes:
    """The task as canonical JSON; most tasks are JSON already, and need no dump first."""
    is_named, context = _is_named(action), action.task_context
    if type(action) is Action and type(context) is TaskContext:
        fields = {**context.__dict__, **(context.__pydantic_extra__ or {})}
        if not is_named:
            del fields["id"]
        if is_json(action.message) and is_json(fields):
            with suppress(TypeError):  # a lone surrogate, or an integer of more than 64 bits
                return canonical({"message": action.message, "task_context": fields})
    exclude = None if is_named else {"task_context": {"id"}}
    return canonical(plain(action.model_dump(exclude=exclude), "action"))


def _is_named(action: Action) -> bool:
    return "id" in action.task_context.model_fields_set


def _name(action: Action) -> str:
    return repr(action.task_context.id) if _is_named(action) else f"with the message {action.text[:60]!r}"


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
        self._next: dict[str, int] = {}

    def name(self, action: Action) -> Prompt:
        """Name the next task.

        Raises:
            DatasetError: The task holds something without content, or its id holds half a surrogate pair.
        """
        content = task_digest(action)
        given = action.task_context.id if _is_named(action) else content
        try:
            given.encode()
        except UnicodeEncodeError:
            raise DatasetError(f"the id {given!r} of a task cannot be stored: it holds half a surrogate pair") from None
        return Prompt(action=action, id=self._unused(given), digest=content)

    def _unused(self, given: str) -> str:
        name = given
        while name in self._next:  # also where a user's own ids look like ours
            name = f"{given}#{self._next[given]}"
            self._next[given] += 1
        self._next[name] = 2
        return name


def sample_id(config_digest: str, prompt: Prompt, index: int) -> str:
    """Identity of one sample: configuration, task and index."""
    return digest(config_digest.encode(), prompt.digest.encode(), prompt.id.encode(), index.to_bytes(8, "little"))


def sample_seed(seed: int, prompt: Prompt, index: int) -> int:
    """The seed of one sample: the same in every run over the same data, here and on every executor."""
    return derive_seed(seed, prompt.digest, prompt.id, index)


def fixed_seed(config: Any, n_samples: int) -> str | None:
    """What is wrong with a model's configuration whose seed is fixed while prompts have several samples, or None.

    Args:
        config: The model's configuration, with its `sampling_params`.
        n_samples: Samples of each prompt.
    """
    params = config.get("sampling_params") if isinstance(config, Mapping) else None
    if n_samples < 2 or not isinstance(params, Mapping):
        return None
    for name in ("sampling_seed", "seed"):
        if (seed := params.get(name)) is not None:
            return (
                f"{name}={seed!r} in the sampling parameters would make all {n_samples} samples of a prompt the same: "
                "leave it out, for every sample gets its own seed from that of the run (sampling_seed of the "
                "evaluator, --seed)"
            )
    return None


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two configurations, a line for each: `model.temperature: 0.7 in the file, now 1.0`."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before, after = old.get(key, _MISSING), new.get(key, _MISSING)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{name}.")
        elif before != after:
            old_text, new_text = _shown(before), _shown(after)
            same = next(
                (at for at, (one, other) in enumerate(zip(old_text, new_text, strict=False)) if one != other), 0
            )
            lines.append(f"{name}: {_part(old_text, same)} in the file, now {_part(new_text, same)}")
    return lines


def differing(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between the configurations of two runs, for one line: `model.temperature (0.7, 1.0)`."""
    found: list[str] = []
    for key in sorted({*first, *second}):
        one, other = first.get(key, _MISSING), second.get(key, _MISSING)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differing(one, other, f"{prefix}{key}.")
        elif one != other:
            shown = [f"{text[:_SHORT]}..." if len(text) > _SHORT else text for text in map(_shown, (one, other))]
            found.append(f"{prefix}{key} ({', '.join(shown)})")
    return found


def _shown(value: Any) -> str:
    return "absent" if value is _MISSING else repr(value)


def _part(text: str, start: int) -> str:
    """A text, and of a long one the part where it begins to differ."""
    if len(text) <= _LONGEST:
        return text
    first = max(0, start - _LONGEST // 3)
    last = first + _LONGEST
    return f"{'...' if first else ''}{text[first:last]}{'...' if last < len(text) else ''}"
