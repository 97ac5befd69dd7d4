"""The line of the user's own code in a traceback."""

from __future__ import annotations

import re
import sysconfig
from functools import lru_cache
from pathlib import Path

_FRAME = re.compile(r'^[ |]*File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)
_LINK = re.compile(r"^[ |]*(?:The above exception was|During handling of the above).*$", re.MULTILINE)


def user_line(traceback: str) -> str | None:
    """Where the user's code raised, as `path:line, in name`; None where none of it is in the traceback.

    The innermost frame of the first exception counts that is neither in Python, nor in an installed package, nor in
    this one.

    Args:
        traceback: As `traceback.format_exception` or `faulthandler` writes it.
    """
    for part in _LINK.split(traceback):
        frames = [found for found in _FRAME.findall(part) if not _is_foreign(found[0])]
        if frames:
            path, line, name = frames[-1]
            return f"{path}:{line}, in {name}"
    return None


def user_lines(stacks: str) -> list[str]:
    """The innermost line of the user's code in each thread of a dump by `faulthandler`, each once."""
    lines: list[str] = []
    for stack in re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE):
        frames = [found for found in _FRAME.findall(stack) if not _is_foreign(found[0])]
        if frames:  # `faulthandler` writes the innermost first
            path, line, name = frames[0]
            lines.append(f"{path}:{line}, in {name}")
    return list(dict.fromkeys(lines))


@lru_cache(maxsize=4096)
def _is_foreign(path: str) -> bool:
    ours = Path(__file__).parents[1]
    installed = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return bool(installed) or path.startswith(("<", sysconfig.get_path("stdlib"))) or _is_in(path, ours)


def _is_in(path: str, package: Path) -> bool:
    """Whether a file is in this package or in the one beside it."""
    return any(Path(path).is_relative_to(package.with_name(name)) for name in (package.name, "strands_sglang"))
