"""Stands in for `sgl_kernel`, whose wheels need CUDA: it can be imported, and nothing in it can be called.

On CPU, with the options of `scripts/sglang-cpu`, SGLang imports names from this package and calls none of them.
"""

from __future__ import annotations

from typing import Any, NoReturn

__version__ = "0+stub"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return kernel
