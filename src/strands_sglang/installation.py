"""This installation: the command that adds an extra to it, and a warning of upstream's distributions."""

from __future__ import annotations

import json
import os
import re
import shlex
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "strands-rollout"
_UPSTREAM = ("strands-sglang", "strands-env")
_CHECKOUT = Path(__file__).resolve().parents[2]


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra beside this copy.

    A checkout is named by its folder, a wheel, an archive or a repository by its address; where that is not known or is
    gone, the packages themselves are named.

    Args:
        extra: Name of the extra, such as `local`.
    """
    pip = "pip" if find_spec("pip") is not None else "uv pip"
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"{pip} install -e {shlex.quote(f'{_CHECKOUT}[{extra}]')}"
    try:
        distribution = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:  # the code alone, on a path
        return f"{pip} install 'CHECKOUT[{extra}]', CHECKOUT being the folder of this project's pyproject.toml"
    address = _address(json.loads(distribution.read_text("direct_url.json") or "{}"))
    if address is not None:
        return f"{pip} install {shlex.quote(f'{NAME}[{extra}] @ {address}')}"
    of_extra = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    packages = [text.partition(";")[0].strip() for text in distribution.requires or () if of_extra.search(text)]
    return f"{pip} install {shlex.join(packages)}"


def cache_folder() -> Path:
    """The folder for models, images and other things that can be fetched again.

    `$STRANDS_ROLLOUT_CACHE`, else `$XDG_CACHE_HOME/strands-rollout`, else `~/.cache/strands-rollout`.
    """
    if override := os.environ.get("STRANDS_ROLLOUT_CACHE"):
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "strands-rollout"


def _address(direct: dict[str, Any]) -> str | None:
    """The requirement's address after PEP 610; None where there is none, or its file is gone."""
    url = direct.get("url")
    if not isinstance(url, str):
        return None
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).exists():
        return None
    if vcs := direct.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"{url}#subdirectory={direct['subdirectory']}" if direct.get("subdirectory") else url


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
            f"files: pip uninstall {' '.join(_UPSTREAM)}, then install strands-rollout again, from where it came, with "
            "pip's options --force-reinstall --no-deps",
            RuntimeWarning,
            stacklevel=3,
        )
