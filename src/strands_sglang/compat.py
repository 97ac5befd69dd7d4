"""A warning where the upstream packages are installed too. `docs/migration.md` maps their names."""

from __future__ import annotations

import warnings
from importlib import metadata

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
