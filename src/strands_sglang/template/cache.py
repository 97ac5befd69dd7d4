"""What is known about templates, shared by all renderers of a process: thousands of models, one self-check."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from strands_sglang.template.boundary import Boundary
from strands_sglang.template.report import Report
from strands_sglang.template.self_check import self_check
from strands_sglang.template.step import Forms, StepRenderer

_CAPACITY: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Outcome of a self-check, and what was learned since.

    Attributes:
        report: The report.
        forms: Forms in which the template takes its input.
        boundaries: Ends of turns, verified at every use.
        printed_calls: Calls as the template prints them.
    """

    report: Report
    forms: Forms
    boundaries: dict[tuple[Any, ...], Boundary] = field(default_factory=dict)
    printed_calls: dict[Hashable, str | None] = field(default_factory=dict)


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
            checked = self_check(step)
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
