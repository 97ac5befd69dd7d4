"""The HTML files: assets, data in compressed islands, and a policy that lets no other code run."""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import html
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from strands_env.core.jsonable import readable
from strands_env.eval import EvalError
from strands_env.eval.errors import naming_errors
from strands_sglang.lines import replacing


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """A written report; sizes in bytes, `tokens_left_out` counts samples whose tokens did not fit the budget."""

    path: Path
    samples: int
    size: int
    tokens_left_out: int = 0


@contextmanager
def page(target: Path, *, title: str, scripts: tuple[str, ...]) -> Iterator[Callable[[str, Any], None]]:
    """A page that takes the place of another when it is whole; of the assets that draw it the last one starts.

    The block gets a function that adds an island of data, which the page unpacks when it needs it, under a name.

    Raises:
        EvalError: It is not named as a page, and may be another file that matters.
        StoreError: It cannot be written.
    """
    if target.suffix not in (".html", ".htm") or target.is_dir():
        raise EvalError(f"a page is written to a file that ends in .html, got {str(target)!r}")
    with (
        naming_errors("write", target),
        replacing(target) as partial,
        partial.open("w", encoding="utf-8", errors="replace") as file,
    ):

        def add(name: str, value: Any) -> None:
            packed = gzip.compress(page_json(value), compresslevel=6, mtime=0)
            # Only letters, digits, `+`, `/` and `=`: no text of a sample can end the element it is in.
            file.write(f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>\n')

        head, foot, _ = _frame(title, scripts, "")
        file.write(head)
        yield add
        file.write(foot)


def live_page(title: str, scripts: tuple[str, ...]) -> tuple[str, str]:
    """A page that asks the server it came from for its data, and its policy."""
    head, foot, policy = _frame(title, scripts, "connect-src 'self'; ")
    return head + foot, policy


def _frame(title: str, scripts: tuple[str, ...], allowed: str) -> tuple[str, str, str]:
    """The parts of a page before and after its data, and the policy that lets no other code run."""
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in scripts) + "})();\n"
    style = _asset("report.css")
    policy = (
        f"default-src 'none'; {allowed}script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = _asset("report.html").format(title=html.escape(title), policy=policy, style=style)
    return head, f"<script>{script}</script>\n</body>\n</html>\n", policy


def page_json(value: Any) -> bytes:
    """JSON text of a page's data, without a line break for any sample."""
    return json.dumps(readable(value), separators=(",", ":")).encode()


def now() -> str:
    """The time a page is made, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _asset(name: str) -> str:
    return resources.files("strands_env.eval.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
