"""Copy the documentation for the site: scripts/docs_links.py SOURCE TARGET

Files outside docs/ that a page links to are copied along: pictures as they are, everything else as text. Links to
folders become their paths.
"""

import re
import shutil
import sys
from pathlib import Path

_OUTSIDE = re.compile(
    r"(?P<picture>!?)\[(?P<text>[^\]]+)\]\((?P<up>(?:\.\./)+)"
    r"(?P<path>(?:(?:examples|src|tests|benchmarks|scripts|deploy)/[^)#]*)|README\.md|CONTRIBUTING\.md|CHANGELOG\.md)(?:#[^)]*)?\)"
)


def copy_outside(markdown: str, root: Path, target: Path, up: str = "") -> str:
    """The page with its links to files outside docs/ leading to copies in `target/files`, `up` from the page."""

    def replace(match: re.Match[str]) -> str:
        path, text = match["path"], match["text"]
        if (root / path).is_dir():
            return f"`{path}`" if text.strip("`/") in path else f"{text} (`{path}`)"
        # A browser shows text and downloads the rest; a page in Markdown would be taken for one of the site's own.
        name = f"files/{path}" + ("" if match["picture"] else ".txt")
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target / name)
        return f"{match['picture']}[{text}]({up}{name})"

    return _OUTSIDE.sub(replace, markdown)


def main(source: Path, target: Path) -> None:
    """Copy the folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for page in target.rglob("*.md"):
        up = "../" * (len(page.relative_to(target).parts) - 1)
        page.write_text(copy_outside(page.read_text(encoding="utf-8"), source.resolve().parent, target, up), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
