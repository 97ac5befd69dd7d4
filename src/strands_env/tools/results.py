"""Results of tools whose answer is text."""

from __future__ import annotations

from typing import Any


def text_result(text: str) -> dict[str, Any]:
    """The result of a call that went well."""
    return {"status": "success", "content": [{"text": text}]}


def error_result(text: str) -> dict[str, Any]:
    """The result of a call that failed, and why."""
    return {"status": "error", "content": [{"text": f"Error: {text}"}]}
