"""Near misses: names of a subclass or a field that nobody reads, because they are almost those of known ones."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakSet

_OVERRIDES_SEEN: WeakSet[type] = WeakSet()
_ATTRIBUTES_SEEN: WeakSet[type] = WeakSet()


def warn_of_misspelt_overrides(
    kind: type, base: type, names: Collection[str], known: Mapping[str, str] | None = None
) -> None:
    """Warn once of methods of `kind` whose names look like misspelt overrides of `names`, the methods of `base`.

    `known` has the meanings of other names, in words.
    """
    if kind in _OVERRIDES_SEEN:
        return
    _OVERRIDES_SEEN.add(kind)
    own = _own_attributes(kind, base)
    for method, value in own.items():
        if not callable(value) or hasattr(base, method):
            continue
        close = None if method.startswith("_") else closest_name(method, names, cutoff=0.8)
        meant = f"{close}()" if close is not None and close not in own else (known or {}).get(method)
        if meant is not None:
            warnings.warn(f"{kind.__name__}.{method}() is called by nothing: did you mean {meant}?", stacklevel=3)


def warn_of_misspelt_arguments(made: Any, base: type) -> None:
    """Warn once of class attributes of a subclass that look like arguments of `base`, which stores them by name.

    An argument that was given is no near miss: the subclass reads its attribute itself.
    """
    kind = type(made)
    if kind in _ATTRIBUTES_SEEN:
        return
    _ATTRIBUTES_SEEN.add(kind)
    arguments = inspect.signature(base.__init__).parameters  # type: ignore[misc]
    for name, value in _own_attributes(kind, base).items():
        if name.startswith("_") or hasattr(base, name) or hasattr(value, "__get__"):
            continue
        meant = closest_name(name, arguments, cutoff=0.9)
        if meant is None or vars(made).get(meant) != arguments[meant].default:
            continue
        guess = f"did you mean the argument {meant}? Give it as" if meant != name else "give it as"
        warnings.warn(
            f"{kind.__name__}.{name} sets nothing by itself: {guess} super().__init__({meant}={value!r:.100})",
            stacklevel=3,
        )


def closest_name(name: str, names: Collection[str], *, cutoff: float) -> str | None:
    """The one of `names` that is most like `name`, at least `cutoff` alike as `difflib` counts, or None."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)


def _own_attributes(kind: type, base: type) -> dict[str, object]:
    """What classes between `kind` and `base` define, those of this package left out."""
    own: dict[str, object] = {}
    for parent in kind.__mro__[: kind.__mro__.index(base)]:
        if not parent.__module__.startswith("strands_env."):
            own = vars(parent) | own
    return own
