"""The public names of strands-sglang and strands-env, and what becomes of each here: a table for `docs/migration.md`.

    pip download --no-deps strands-sglang==0.6.2 strands-env==0.7.3 -d wheels
    python scripts/upstream_names.py wheels/*.whl [--write docs/migration.md]

The wheels are read, not imported: classes, functions and exported names of every module; modules and names that begin
with `_` are private.
"""

from __future__ import annotations

import argparse
import importlib
import re
import zipfile
from collections import Counter
from pathlib import Path

from strands_sglang.compat import LeftOut

BEGIN, END = "<!-- begin: scripts/upstream_names.py -->\n", "<!-- end: scripts/upstream_names.py -->\n"


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


def fate(module: str, name: str) -> str:
    """'runs', or the reason why it does not; a name whose extra is not installed runs."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return "the module is not here"
    try:
        value = getattr(found, name)
    except ImportError:
        return "runs"
    except AttributeError:
        return "the name is not here"
    return value.left_out_because if isinstance(value, LeftOut) else "runs"


def table(wheels: list[Path]) -> str:
    """The names by module, as Markdown."""
    lines, totals = ["| module | runs | does not |", "|---|---|---|"], Counter[str]()
    for wheel in wheels:
        for module, names in modules(wheel).items():
            fates = {name: fate(module, name) for name in names}
            totals.update("runs" if text == "runs" else "does not" for text in fates.values())
            runs = ", ".join(f"`{name}`" for name, text in fates.items() if text == "runs")
            reasons: dict[str, list[str]] = {}
            for name, text in fates.items():
                if text != "runs":
                    reasons.setdefault(text, []).append(f"`{name}`")
            others = "; ".join(f"{', '.join(named)}: {text}" for text, named in reasons.items())
            lines.append(f"| `{module}` | {runs or '–'} | {others or '–'} |")
    versions = ", ".join(" ".join(wheel.name.split("-")[:2]) for wheel in wheels)
    return f"{versions}: {totals['runs']} of {totals.total()} public names run.\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace what is between the markers of a page")
    options = parser.parse_args()
    printed = table(options.wheels)
    if options.write is None:
        print(printed)
        return
    text = options.write.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    options.write.write_text(f"{head}{BEGIN}\n{printed}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
