"""Names of the upstream packages whose place or name is another one here; `docs/migration.md` lists all of them.

A table says for a module of upstream what its names are: `module:name` where it is now, or words that say what to
use instead. `install` answers for modules that are not here, `old_names` for names that a module here no longer has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Names = Mapping[str, str]

MODULES: Mapping[str, Names] = {
    "limiter": {
        "LoopLimiter": "strands_sglang.tool_limiter:ToolLimiter",
        "ToolLimiter": "strands_sglang.tool_limiter:ToolLimiter",
        "LoopLimitReachedError": "strands_sglang.exceptions:ToolLimitReachedError",
        "MaxToolIterationsReachedError": "strands_sglang.exceptions:MaxToolIterationsReachedError",
        "MaxToolCallsReachedError": "strands_sglang.exceptions:MaxToolCallsReachedError",
        "MaxMessagesReachedError": "max_tool_iters, or limits={'turns': n} of the SDK's Agent.invoke_async",
    },
    "rollout": {"Rollout": "strands_sglang.trajectory:TokenManager"},
    "sglang": {
        "SGLangModel": "strands_sglang.model:SGLangModel",
        "SGLangConfig": "strands_sglang.conversation.options:SGLangConfig",
    },
    "tool_parsers.hermes": {"HermesToolParser": "strands_sglang.tool_parsers:HermesToolParser"},
    "tool_parsers.kimi_k2": {"KimiK2ToolParser": "strands_sglang.tool_parsers:KimiK2ToolParser"},
    "tool_parsers.qwen_xml": {"QwenXMLToolParser": "strands_sglang.tool_parsers:QwenXMLToolParser"},
}


def install(package: str, modules: Mapping[str, Names]) -> None:
    """Make modules of upstream importable; nothing behind a name is imported before it is asked for."""
    for name, names in modules.items():
        full = f"{package}.{name}"
        module = ModuleType(full, f"Names of upstream's `{full}`.")
        module.__spec__ = ModuleSpec(full, None)
        module.__dict__["__getattr__"] = old_names(full, names)
        module.__dict__["__dir__"] = lambda names=names: sorted(names)
        sys.modules.setdefault(full, module)


def old_names(module: str, names: Names) -> Callable[[str], Any]:
    """A module's `__getattr__` for names of upstream.

    A name that is left out raises an `ImportError` with the reason, which `from module import name` shows.
    """

    def find(name: str) -> Any:
        target = names.get(name)
        if target is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if " " in target:
            raise ImportError(f"{module}.{name} is a name of upstream that is not here: {target}")
        home, _, own = target.partition(":")
        return getattr(import_module(home), own)

    return find
