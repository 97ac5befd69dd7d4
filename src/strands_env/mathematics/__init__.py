"""Mathematical texts read whole or not at all, and compared; imports SymPy, and math-verify's parser for integrals.

`readings` gives what a text may denote, `judge` whether two texts denote the same, `plain` a text without its looks.
"""

from __future__ import annotations

from collections.abc import Sequence

from .comparing import same
from .nodes import Node
from .products import ordered_letters
from .texts import Reading, as_asked, foreign_nouns, plain, readings

__all__ = ["Node", "Reading", "as_asked", "foreign_nouns", "judge", "ordered_letters", "plain", "readings"]


def judge(gold: Sequence[Reading], answer: Sequence[Reading]) -> bool | None:
    """Whether an answer denotes the same as the expected one; None where it depends on how they are read."""
    verdicts = [(same(one.node, other.node), one is gold[0] and other.certain) for one in gold for other in answer]
    if (True, True) in verdicts:
        return True
    return None if any(verdict for verdict, _ in verdicts) else verdicts[0][0]
