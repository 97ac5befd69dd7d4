"""The reward of a session, as a grader or a program sends it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Self

from .dialects.reading import quote
from .exact_json import loads, object_text

_MOST_INFO = 64 * 1024  # bytes of JSON: every row repeats it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The reward of a session.

    Attributes:
        value: Of the whole session; None for no score, which is never 0.
        turns: Of single turns, by their index in the session.
        info: Anything worth keeping about it; JSON values.
    """

    value: float | None = None
    turns: Mapping[int, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, turns: Any, info: Any, names: Mapping[str, int]) -> Self:
        """A reward, checked.

        Args:
            turns: Numbers by index or by the id of the reply, or a list with a number or None for each turn.
            names: See `Translation.turn_names`.

        Raises:
            TypeError: `turns` or `info` has another type.
            ValueError: A value that is not a finite number, a turn that does not exist or is named twice, info that is
                not JSON or takes more than 64 KiB.
        """
        if isinstance(turns, Sequence) and not isinstance(turns, str):
            turns = {index: reward for index, reward in enumerate(turns) if reward is not None}
        if not isinstance(turns, Mapping | None):
            raise TypeError(f"turns must be an object or a list of numbers, got {quote(turns)}")
        by_index: dict[int, float] = {}
        for name, reward in (turns or {}).items():
            if (index := names.get(str(name)[-24:])) is None:
                raise ValueError(f"turns names {quote(name)}: give the index of a sampled turn, or the id of a reply")
            if index in by_index:
                raise ValueError(f"turns names turn {index} twice")
            by_index[index] = _number(reward, f"turns[{quote(name)}]")
        text = object_text(info, "info")
        if len(text) > _MOST_INFO:
            raise ValueError(f"info takes {len(text)} bytes as JSON, more than {_MOST_INFO}")
        return cls(value=None if value is None else _number(value, "reward"), turns=by_index, info=loads(text))

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        return {"reward": self.value, "turns": {str(turn): r for turn, r in self.turns.items()}, "info": self.info}


def _number(value: Any, where: str) -> float:
    try:
        if type(value) is not bool and isinstance(value, Real) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer of hundreds of digits
        pass
    raise ValueError(f"{where} must be a finite number, got {quote(value)}")
