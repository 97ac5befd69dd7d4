"""Stands in for Triton, whose real wheel takes a gigabyte: kernels can be defined with it, not launched.

SGLang and some of its dependencies define Triton kernels while they are imported; on CPU none is launched. So every
name below `triton` is a class `Absent`: a class, because the importing code annotates with these names, forms unions
of them, derives from them and asks `isinstance`. Called, it is a decorator that changes nothing.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar, NoReturn

__version__ = "3.0.0"  # compared with minimum versions by importing code


class Absent(type):
    """Metaclass of the names that are not there."""

    def __getattr__(cls, name: str) -> Any:
        return _absent(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != __name__:  # a class of the importing code, derived from an absent one
            return super().__call__(*args, **kwargs)
        return args[0] if args else lambda decorated: decorated


def _absent(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(name, (), {"__module__": __name__})


class Kernel:
    """A kernel: has a name, can be indexed by a grid, and refuses to run."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Kernel:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"the Triton kernel {self.__name__!r} needs a GPU")


def jit(fn: Any = None, **options: Any) -> Any:
    """`@triton.jit`, with or without options."""
    return Kernel if fn is None else Kernel(fn)


def autotune(*args: Any, **options: Any) -> Any:
    """`@triton.autotune(...)` and `@triton.heuristics(...)` leave the kernel as it is."""
    return lambda kernel: kernel


heuristics = autotune


def cdiv(x: int, y: int) -> int:
    """The quotient, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


class _Submodule(ModuleType):
    """Any module below `triton`: every name in it is absent."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return _absent(name)


class _Submodules(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def __getattr__(name: str) -> Any:
    return _absent(name)


sys.meta_path.append(_Submodules())
