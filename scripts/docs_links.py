"""Copy the documentation for the site: scripts/docs_links.py SOURCE TARGET

Links to files outside docs/, which the site lacks, become their paths in the repository, and pictures among them are
copied along.
"""

import re
import shutil
import sys
from pathlib import Path

_OUTSIDE = re.compile(
    r"(?P<picture>!?)\[(?P<text>[^\]]+)\]\(\.\./(?P<path>(?:examples|src|tests|benchmarks|scripts|deploy)/[^)#]*)"
    r"(?:#[^)]*)?\)"
)


def without_outside(markdown: str, root: Path, target: Path) -> str:
    """The page with `[text](../examples/a.py)` as text and path, or the path alone where the text says no more."""

    def inside(match: re.Match[str]) -> str:
        path, text = match["path"], match["text"]
        if match["picture"]:
            name = path.replace("/", "-")
            shutil.copyfile(root / path, target / name)
            return f"![{text}]({name})"
        return f"`{path}`" if text.strip("`/") in path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(inside, markdown)


def main(source: Path, target: Path) -> None:
    """Copy the folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for page in target.rglob("*.md"):
        page.write_text(without_outside(page.read_text(encoding="utf-8"), source.resolve().parent, target), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
