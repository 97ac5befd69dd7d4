"""The imports of both packages: names load on use, and where the upstream packages are installed too, users are warned.

`docs/migration.md` maps the names of upstream.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

_UPSTREAM = ("strands-sglang", "strands-env")


def warn_of_upstream() -> None:
    """Warn if `strands-sglang` or `strands-env` is installed too: of each file only the later copy is left."""
    installed = [f"{name} {each.version}" for name in _UPSTREAM for each in metadata.distributions(name=name)]
    if installed:
        warnings.warn(
            f"{' and '.join(installed)} and strands-rollout are installed in one environment and overwrite each "
            f"other's files: pip uninstall {' '.join(_UPSTREAM)}, then install strands-rollout again, from where it "
            "came, with pip's options --force-reinstall --no-deps",
            RuntimeWarning,
            stacklevel=3,
        )


def names_on_use(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package: its names and modules are imported when they are first used.

    Args:
        homes: The names of each module, which begins with a dot inside the package; the last that has a name counts.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in home_of:
            value = getattr(import_module(home_of[name], package), name)
        elif name.isidentifier() and not name.startswith("_") and find_spec(f"{package}.{name}"):
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return load, names
