"""`docs/architecture.md` lists every module, and no other."""

from __future__ import annotations

import re

from tests.conftest import ROOT


def listed() -> set[str]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = re.split(r"^## (strands_\w+)$", text, flags=re.MULTILINE)[1:]
    return {
        f"{package}/{module}"
        for package, body in zip(packages[::2], packages[1::2], strict=True)
        for module in re.findall(r"^\| `([^`]+\.py)` \|", body, flags=re.MULTILINE)
    }


def test_every_module_has_its_line() -> None:
    source = ROOT / "src"
    present = {str(path.relative_to(source)) for path in source.rglob("*.py") if path.name != "__init__.py"}
    assert present - listed() == set()
    assert listed() - present == set()
