"""The simulator, kept in this module under the name of who uses it, and called by evaluating text."""

from __future__ import annotations

from typing import Any


class Till:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def pay(self, amount: int) -> str:
        self.amount += amount
        return f"now {self.amount}"

    def double(self) -> str:
        self.amount *= 2
        return f"now {self.amount}"


def execute_multi_turn_func_call(
    func_call_list: list[str],
    initial_config: dict[str, Any],
    involved_classes: list[str],
    model_name: str,
    test_entry_id: str,
    long_context: bool = False,
    is_evaL_run: bool = False,
) -> tuple[list[str], dict[str, Any]]:
    name = f"{model_name}{'_eval' if is_evaL_run else ''}_{test_entry_id}_Till_instance"
    till = globals().setdefault(name, Till(initial_config["Till"]["amount"]))
    results = []
    for call in func_call_list:
        try:
            results.append(eval(f"till.{call}", {"till": till}))
        except Exception as error:
            results.append(f"Error during execution: {error}")
    return results, {"Till": till}
