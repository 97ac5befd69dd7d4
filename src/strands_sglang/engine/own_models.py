"""The package's own models by name, wherever a model, a tokenizer or a chat template is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from strands_sglang.exceptions import did_you_mean

OWN_MODELS = ("smollm2", "tiny", "tiny-vision")
"""Names that `EmbeddedEngine` knows: the default model, a tiny random one, and one that sees."""


def is_own_model(name: str) -> bool:
    """Whether a name means one of ours; a folder of that name comes first."""
    return name in OWN_MODELS and not Path(name).exists()


def unknown_model(name: str) -> str | None:
    """A hint for a name that is neither a folder nor a hub id but close to one of ours; None otherwise."""
    if "/" in name or is_own_model(name) or Path(name).exists():
        return None
    hint = did_you_mean(name, OWN_MODELS)
    return f"unknown model {name!r}{hint}" if hint else None


def own_tokenizer(name: str) -> Any:
    """The tokenizer of one of our models (extra `local`); the default model is fetched where it is not there yet.

    Raises:
        ModelLoadError: It cannot be fetched.
        ModuleNotFoundError: The extra is not installed.
    """
    # By name: it needs torch, and is loaded only here.
    return import_module("strands_sglang.engine.loader").load_tokenizer(name)
