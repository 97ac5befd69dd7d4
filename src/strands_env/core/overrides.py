"""Near misses: methods of a subclass that nobody calls, because their names are almost those of known ones."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Mapping
from weakref import WeakSet

_SEEN: WeakSet[type] = WeakSet()


def warn_of_misspelt_overrides(
    kind: type, base: type, names: Collection[str], known: Mapping[str, str] | None = None
) -> None:
    """Warn once of methods of `kind` whose names look like misspelt overrides of `names`, the methods of `base`.

    `known` has the meanings of other names, in words.
    """
    if kind in _SEEN:
        return
    _SEEN.add(kind)
    own: dict[str, object] = {}  # of classes between the two, those of this package left out
    for parent in kind.__mro__[: kind.__mro__.index(base)]:
        if not parent.__module__.startswith("strands_env."):
            own = vars(parent) | own
    for method, value in own.items():
        if not callable(value) or hasattr(base, method):
            continue
        close = [] if method.startswith("_") else difflib.get_close_matches(method, list(names), n=1, cutoff=0.8)
        meant = f"{close[0]}()" if close and close[0] not in own else (known or {}).get(method)
        if meant is not None:
            warnings.warn(f"{kind.__name__}.{method}() is called by nothing: did you mean {meant}?", stacklevel=3)
