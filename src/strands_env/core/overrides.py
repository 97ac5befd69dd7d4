"""Misspelt overrides: a method that nobody calls, because its name is almost that of one to override."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from weakref import WeakSet

_SEEN: WeakSet[type] = WeakSet()


def warn_of_misspelt_overrides(
    kind: type, base: type, names: Iterable[str], known: Mapping[str, str] | None = None
) -> None:
    """Warn once of methods of `kind` whose names look like misspelt overrides of `names`, the methods of `base`.

    `known` has the meanings of other names, in words.
    """
    if kind in _SEEN:
        return
    _SEEN.add(kind)
    for method, meant in _misspelt(kind, base, tuple(names), tuple((known or {}).items())):
        warnings.warn(f"{kind.__name__}.{method}() is called by nothing: did you mean {meant}?", stacklevel=3)


def _misspelt(
    kind: type, base: type, names: tuple[str, ...], known: tuple[tuple[str, str], ...]
) -> list[tuple[str, str]]:
    own: dict[str, object] = {}
    for parent in kind.__mro__[: kind.__mro__.index(base)]:
        if not parent.__module__.startswith("strands_env."):
            own |= vars(parent)
    found = []
    for name, value in own.items():
        if callable(value) and not name.startswith("_") and not hasattr(base, name):
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
            if close and close[0] not in own:
                found.append((name, f"{close[0]}()"))
            elif name in dict(known):
                found.append((name, dict(known)[name]))
    return found
