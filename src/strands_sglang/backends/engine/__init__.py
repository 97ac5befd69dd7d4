"""A small language-model engine in this process, on CPU, with the answers of SGLang's native `/generate`.

It stands on PyTorch and transformers (extra `local`), which are imported when one of the names below is first used.

```python
from strands_sglang import SGLangModel
from strands_sglang.backends.engine import EmbeddedEngine

async with EmbeddedEngine("smollm2") as engine:
    model = SGLangModel(client=engine, tokenizer=engine.tokenizer)
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.backends.engine.engine import EmbeddedEngine
    from strands_sglang.backends.engine.loader import load_default_model
    from strands_sglang.backends.engine.own_models import ModelLoadError, UnknownModelError
    from strands_sglang.backends.engine.tiny import TinyModel, make_tiny_model, make_tiny_vision_model

__all__ = [
    "EmbeddedEngine",
    "ModelLoadError",
    "TinyModel",
    "UnknownModelError",
    "load_default_model",
    "make_tiny_model",
    "make_tiny_vision_model",
]

_HOMES = {
    "EmbeddedEngine": "engine",
    "ModelLoadError": "own_models",
    "TinyModel": "tiny",
    "UnknownModelError": "own_models",
    "load_default_model": "loader",
    "make_tiny_model": "tiny",
    "make_tiny_vision_model": "tiny",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
