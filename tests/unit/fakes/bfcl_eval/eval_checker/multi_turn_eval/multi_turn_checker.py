"""The checker: the same state after every request."""

from __future__ import annotations

from typing import Any

from .multi_turn_utils import execute_multi_turn_func_call as execute


def multi_turn_checker(
    calls: list[list[list[str]]], expected: list[list[str]], entry: dict[str, Any], category: str, name: str
) -> dict[str, Any]:
    fixed = (entry["initial_config"], entry["involved_classes"])
    for turn, wanted in enumerate(expected):
        for reply in calls[turn]:
            execute(reply, *fixed, name, entry["id"], is_evaL_run=True)
        _, ours = execute([], *fixed, name, entry["id"], is_evaL_run=True)
        _, truth = execute(wanted, *fixed, f"{name}_ground_truth", entry["id"], is_evaL_run=True)
        if ours["Till"].amount != truth["Till"].amount:
            return {"valid": False, "error_message": f"request {turn} left another state", "error_type": "state"}
    return {"valid": True}
