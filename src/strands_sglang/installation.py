"""A warning if upstream distributions with the same import names are installed in this environment."""

from __future__ import annotations

import warnings
from importlib import metadata

_UPSTREAM = ("strands-sglang", "strands-env")


def warn_of_upstream() -> None:
    """Warn if `strands-sglang` or `strands-env` is installed too: of each file only the later copy is left."""
    found = []
    for name in _UPSTREAM:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    if found:
        warnings.warn(
            f"{' and '.join(found)} and strands-rollout are installed in one environment and overwrite each other's "
            f"files: pip uninstall {' '.join(_UPSTREAM)}, then pip install --force-reinstall --no-deps strands-rollout",
            RuntimeWarning,
            stacklevel=3,
        )
