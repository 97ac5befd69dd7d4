"""The public names of strands-sglang and strands-env that do not import here; exits 1 if there are any.

    pip download --no-deps strands-sglang==0.3.8 strands-env==0.1.1 -d wheels
    python scripts/upstream_names.py wheels/*.whl

The wheels are read, not imported: classes, functions and exported names of every module; modules and names that begin
with `_` are private. `docs/migration.md` maps the names of later versions.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import zipfile
from pathlib import Path

_DEFINED = re.compile(r"^(?:class|def|async def|type) ([A-Za-z]\w*)", re.MULTILINE)
_EXPORTED = re.compile(r"^__all__ = [\[(](.*?)[\])]", re.MULTILINE | re.DOTALL)


def public_names(source: str) -> list[str]:
    """Names that a module defines or exports; by text, for the wheels may be of a newer Python than the reader."""
    exported = _EXPORTED.search(source)
    listed = re.findall(r"[\"'](\w+)[\"']", exported[1]) if exported else []
    return sorted({name for name in (*_DEFINED.findall(source), *listed) if not name.startswith("_")})


def modules(wheel: Path) -> dict[str, list[str]]:
    """Public names by module, of the modules that have any."""
    found = {}
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            is_public = name.endswith(".py") and "._" not in module
            if is_public and (names := public_names(files.read(name).decode())):
                found[module] = names
    return found


def is_here(module: str, name: str) -> bool:
    """True where the name imports; one that lacks only an extra counts."""
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        return not module.startswith(error.name or module)
    except ImportError:
        return True


def main() -> None:
    """Print the missing names of some wheels by module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", nargs="+", type=Path)
    count = missing = 0
    for wheel in parser.parse_args().wheels:
        for module, names in modules(wheel).items():
            absent = [name for name in names if not is_here(module, name)]
            count, missing = count + len(names), missing + len(absent)
            if absent:
                print(f"{module}: {', '.join(absent)}")
    print(f"{count - missing} of {count} public names import")
    sys.exit(missing > 0)


if __name__ == "__main__":
    main()
