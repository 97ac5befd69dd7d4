"""Ground truths: the values that any grader can compare with, each as the text that a model would write."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

from strands_env.core.types import Action

_EXACT_DIGITS = 15
"""Significant digits that every float keeps."""
_STATED = re.compile(r"(?s)(?:.*\s|\A)####[ \t]*([^\n]*\S)\s*\Z|\s*<answer>\s*(.*\S)\s*</answer>\s*\Z")


class GroundTruthError(ValueError):
    """A ground truth that no answer can be compared with."""


@dataclass(frozen=True, slots=True)
class Gold:
    """An answer that is accepted: as a model would write it, and as the data has it if that is a text."""

    text: str
    original: str | None = None


def golds(truth: object) -> list[Gold]:
    """The answers that a ground truth accepts: one, or those of a list or set.

    Texts, booleans, whole numbers, floats, `Decimal`, `Fraction` and numpy's scalars and arrays are read. Of a text
    whose last line begins with `####`, as in GSM8K, or that is one `<answer>` tag, that part is the answer.

    Raises:
        GroundTruthError: It is missing, empty, of another type, not finite, or a float too large to be exact.
    """
    if isinstance(truth, np.generic | np.ndarray):
        truth = truth.tolist()
    match truth:
        case None:
            why = "is missing: name its column, or drop the task"
        case list() | tuple() | set() | frozenset():
            if found := [gold for item in truth for gold in golds(item)]:
                return found
            why = f"{truth!r} accepts no answer: expected at least one item"
        case str():
            if truth.strip():
                stated = _STATED.match(truth)
                return [Gold(stated[1] or stated[2] if stated else truth, truth)]
            why = f"{truth!r} is empty: expected an answer"
        case bool() | Fraction():
            return [Gold(str(truth))]
        case int():
            return [Gold(str(Decimal(truth)))]  # `str` refuses integers of more than 4,300 digits
        case float() | Decimal() if not math.isfinite(truth):
            why = f"{truth!r} is not finite: expected a number or a text"
        case float():
            digits = re.sub(r"\.0\b|[-.]|e.*", "", repr(truth))
            if abs(truth) < 2**53 or len(digits) <= _EXACT_DIGITS:
                return [Gold(repr(truth))]
            why = f"{truth!r} is a float that was rounded: give an int or a text"
        case Decimal():
            return [Gold(f"{truth:f}")]
        case _:
            kind = type(truth).__name__
            why = f"must be a text, a number, a boolean or a list of these, got {kind} {truth!r:.60}"
    raise GroundTruthError(f"the ground truth {why}")


def only_gold(truth: object) -> str:
    """The text of the one answer that a ground truth accepts.

    Raises:
        GroundTruthError: As `golds`, and for a list of several, which says neither "any of them" nor "in this order".
    """
    found = golds(truth)
    if len(found) > 1:
        raise GroundTruthError(
            f"the ground truth {truth!r:.60} has {len(found)} items: write it as one text, '(1, 2)' if their order"
            " counts, '1, 2' if not"
        )
    return found[0].text


def gold_text(action: Action, *, lists: bool = True) -> str | None:
    """The task's ground truth as a model would write it; None unless it is a single answer that can be read.

    Args:
        lists: A list of one is that one; otherwise it is not a text.
    """
    if not lists and isinstance(action.task_context.ground_truth, list | tuple | set | frozenset):
        return None
    try:
        return only_gold(action.task_context.ground_truth)
    except GroundTruthError:
        return None
