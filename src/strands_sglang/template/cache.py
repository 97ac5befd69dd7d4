"""What is known about templates, shared by all renderers of a process: thousands of models, one self-check.

Outcomes are also kept on disk, so that worker processes start at once: a small file for each template, its variables
and tokens, with or without tools, under `$XDG_CACHE_HOME/strands-sglang` (`~/.cache/strands-sglang`). Its name is a
digest of all that and of this package's and jinja's code. `STRANDS_SGLANG_CACHE=0` turns the files off; a broken one is
replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jinja2

from strands_sglang.fast_paths import FastPath
from strands_sglang.template.boundary import Boundary, Plant
from strands_sglang.template.chat_messages import ArgumentForm, ContentForm
from strands_sglang.template.compiled import CompiledDelta
from strands_sglang.template.report import Flag, Report, Shape, ShapeResult, Verdict
from strands_sglang.template.self_check import Checked, self_check
from strands_sglang.template.step import Forms, StepRenderer
from strands_sglang.template.step import Path as StepPath

logger = logging.getLogger(__name__)

_CAPACITY: Final = 1024
_OFF: Final = ("0", "off", "no", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Outcome of a self-check, and what was learned since.

    Attributes:
        report: The report.
        forms: Forms in which the template takes its input.
        boundaries: Ends of turns, verified at every use.
        printed_calls: Calls as the template prints them.
        compiled: Deltas of steps, where these do not depend on the tools.
    """

    report: Report
    forms: Forms
    boundaries: dict[tuple[Any, ...], Boundary] = field(default_factory=dict)
    printed_calls: dict[Hashable, str | None] = field(default_factory=dict)
    compiled: dict[tuple[Any, ...], CompiledDelta | None] = field(default_factory=dict)


_known: OrderedDict[Hashable, Knowledge] = OrderedDict()
_running: dict[Hashable, threading.Lock] = {}
_lock = threading.Lock()


def knowledge_for(step: StepRenderer) -> Knowledge:
    """Look up, or find out once: concurrent callers of the same template wait for one self-check."""
    key = _key(step)
    with _lock:
        known = _known.get(key)
        if known is not None:
            _known.move_to_end(key)
            return known
        mine = _running.setdefault(key, threading.Lock())
    with mine:
        with _lock:
            known = _known.get(key)
        if known is None:
            file = _file(step)
            checked = _load(file) if file is not None else None
            if checked is None:
                checked = self_check(step)
                if file is not None:
                    _store(file, checked)
            known = Knowledge(report=checked.report, forms=checked.forms)
            with _lock:
                _known[key] = known
                _running.pop(key, None)
                if len(_known) > _CAPACITY:
                    _known.popitem(last=False)
        return known


def _key(step: StepRenderer) -> Hashable:
    tools = step.tools
    return (
        step.template.key(tools_present=tools is not None),
        step.template.key(tools_present=False),  # tools may be left out, so both texts count
        None if tools is None else all("function" in tool for tool in tools),
        json.dumps(step.kwargs, sort_keys=True, default=repr),
        step.vocabulary,
    )


# ---- on disk --------------------------------------------------------------------------------------------------------


def _file(step: StepRenderer) -> Path | None:
    """Where the outcome for this template is kept; None if it is not kept."""
    if not FastPath.SELF_CHECK_CACHE.is_on or os.environ.get("STRANDS_SGLANG_CACHE", "1").lower() in _OFF:
        return None
    digests = [step.template.key(tools_present=present) for present in (True, False)]
    if not all(isinstance(digest, bytes) for digest in digests):
        return None  # rendered by the tokenizer itself
    nested = None if step.tools is None else all("function" in tool for tool in step.tools)
    try:
        variables = json.dumps([nested, step.kwargs, step.vocabulary], sort_keys=True)
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except (TypeError, ValueError, RuntimeError):  # a variable that is not JSON, or a user without a home
        return None
    key = hashlib.sha256(_code() + repr(digests).encode() + variables.encode("utf-8", "surrogatepass"))
    return base / "strands-sglang" / "self-check" / f"{key.hexdigest()}.json"


@lru_cache(maxsize=1)
def _code() -> bytes:
    """Digest of the code that the outcome depends on."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {jinja2.__version__}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _load(file: Path) -> Checked | None:
    try:
        return _decode(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        logger.debug("file=<%s>, error=<%r> | self-check is not readable, repeating it", file, error)
        return None


def _store(file: Path, checked: Checked) -> None:
    try:
        text = json.dumps(_encode(checked))
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".tmp", delete=False, encoding="utf-8") as out:
            out.write(text)
        os.replace(out.name, file)
    except (OSError, TypeError, ValueError) as error:
        logger.debug("file=<%s>, error=<%r> | self-check is not kept", file, error)


def _encode(checked: Checked) -> dict[str, Any]:
    report, forms = asdict(checked.report), asdict(checked.forms)
    return {"report": {**report, "flags": sorted(report["flags"])}, "forms": forms}


def _decode(value: Any) -> Checked:
    report, forms = value["report"], value["forms"]
    content = {role: ContentForm(form) for role, form in report["content_forms"].items()}
    shapes = {
        Shape(shape): ShapeResult(**{**result, "path": None if result["path"] is None else StepPath(result["path"])})
        for shape, result in report["shapes"].items()
    }
    return Checked(
        report=Report(
            **{
                **report,
                "verdict": Verdict(report["verdict"]),
                "path": StepPath(report["path"]),
                "argument_form": ArgumentForm(report["argument_form"]),
                "content_forms": content,
                "shapes": shapes,
                "flags": frozenset(map(Flag, report["flags"])),
            }
        ),
        forms=Forms(
            arguments=ArgumentForm(forms["arguments"]),
            content={role: ContentForm(form) for role, form in forms["content"].items()},
            plants=tuple(map(Plant, forms["plants"])),
        ),
    )
