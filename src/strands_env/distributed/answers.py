"""What a worker says about a rollout: pickled apart, so that what cannot be read costs that rollout and no other."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from strands_env.core import StepResult


def pack(answer: StepResult | Exception) -> bytes:
    """The result or the exception as bytes that can be read again; what cannot be sent becomes a `RuntimeError`."""
    try:
        data = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
        if isinstance(answer, Exception):
            pickle.loads(data)  # an exception with arguments of its own may pickle and not come back
        return data
    except Exception as error:
        if isinstance(answer, Exception):
            what, shown = "exception", "".join(traceback.format_exception(answer))
        else:
            what, shown = "result", repr(error)
        return pickle.dumps(RuntimeError(f"the {what} cannot be sent back: {shown}"))


def unpack(data: bytes) -> StepResult:
    """The result, here.

    Raises:
        Exception: The rollout raised it, or what came cannot be read here.
    """
    try:
        answer: Any = pickle.loads(data)
    except Exception as error:
        raise RuntimeError(f"the answer of a worker cannot be read here: {error!r}") from error
    if isinstance(answer, Exception):
        raise answer
    result: StepResult = answer
    return result
