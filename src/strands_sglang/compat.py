"""The upstream packages: their names that are elsewhere here, and a warning where they are installed too.

A table says for a module of upstream what its names are: `module:name` or `module` where it is now, or words that
say what to use instead: such a name imports as a `LeftOut`, whose first use raises them. `install` takes the tables of
a package and answers for modules that are not here; `old_names` answers for the others. `docs/migration.md` lists all.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

Names = Mapping[str, str]

_UPSTREAM = ("strands-sglang", "strands-env")

_tables: dict[str, Names] = {}


class LeftOut:
    """A name of upstream that is not here: it imports, and calls, subclasses and the like raise an `ImportError`.

    Attributes:
        left_out_because: What to use instead.
    """

    def __init__(self, name: str, reason: str) -> None:
        self._name = name
        self.left_out_because = reason

    def __repr__(self) -> str:
        return f"{self._name} is a name of upstream that is not here: {self.left_out_because}"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python's own questions, such as `inspect.unwrap`'s, are not uses
            raise AttributeError(repr(self))
        self._refuse()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ImportError(repr(self))

    __call__ = __getitem__ = __mro_entries__ = __instancecheck__ = __subclasscheck__ = __fspath__ = _refuse


class _Finder(MetaPathFinder, Loader):
    """Makes the modules of the tables that no file has."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in _tables else None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"Names of upstream's `{module.__name__}`."
        module.__dict__["__getattr__"] = old_names(module.__name__)
        module.__dict__["__dir__"] = lambda: sorted(_tables[module.__name__])


def install(package: str, modules: Mapping[str, Names], names: Mapping[str, Names] | None = None) -> None:
    """Make names of upstream importable; nothing behind one is imported before it is asked for.

    Args:
        modules: Tables of modules that are not here. A module that is here and above one has an empty `__path__`.
        names: Tables of modules that are here, and call `old_names`.
    """
    _tables.update({f"{package}.{name}": table for name, table in {**modules, **(names or {})}.items()})
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # the last: what has a file is found before


def old_names(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__` for names of upstream."""

    def find(name: str) -> Any:
        target = _tables.get(module, {}).get(name)
        if target is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if " " in target:
            return LeftOut(f"{module}.{name}", target)
        return object_at(target)

    return find


def object_at(target: str) -> Any:
    """The object of `module:name`, or the module where there is no name."""
    home, _, own = target.partition(":")
    module = import_module(home)
    return getattr(module, own) if own else module


def warn_of_upstream() -> None:
    """Warn if `strands-sglang` or `strands-env` is installed too: of each file only the later copy is left."""
    found = []
    for name in _UPSTREAM:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    if found:
        warnings.warn(
            f"{' and '.join(found)} and strands-rollout are installed in one environment and overwrite each other's "
            f"files: pip uninstall {' '.join(_UPSTREAM)}, then install strands-rollout again, from where it came, with "
            "pip's options --force-reinstall --no-deps",
            RuntimeWarning,
            stacklevel=3,
        )
