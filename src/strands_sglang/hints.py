"""Sentences that errors share, and checks of arguments that raise them. Nothing heavy is imported for them."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")

DISTRIBUTION = "strands-rollout"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'hermes'?)` for a name that is nearly a known one, else nothing; for messages."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1) or [each for each in names if name in each.split("_")]
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def refuse_unknown(
    owner: str, given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse keyword arguments of `owner` that are not known: a `TypeError` that names the nearest one.

    `elsewhere` says for a name, or for any (`*`), how the same thing is given instead.
    """
    known = frozenset(known)
    for name in given:
        if name not in known:
            names = sorted(known)
            place = elsewhere.get(name) or did_you_mean(name, names) or elsewhere.get("*")
            hint = f"; there are {', '.join(names)}" if place is None else place.replace("NAME", name)
            raise TypeError(f"{owner} got an unexpected keyword argument {name!r}{hint}")


def explain_arguments(
    init: Callable[P, None], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> Callable[P, None]:
    """Make a constructor refuse a wrong call by a `TypeError` that names the class called and the nearest argument.

    Python names the base class whose constructor it is, and where one argument is missing and another unknown, as after
    a slip of the pen, only the missing one.
    """
    signature = inspect.signature(init)
    _, *parameters = signature.parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)

    @functools.wraps(init)
    def checked_init(*args: P.args, **kwargs: P.kwargs) -> None:
        reason = ""
        try:
            init(*args, **kwargs)
            return
        except TypeError:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                reason = str(error)
            else:  # the call is right: the error is the constructor's own
                raise
        owner = f"{type(args[0]).__name__}()"
        known = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
        unknown = [name for name in kwargs if name not in known]
        if takes_any:  # others are checked where they are used, so only one that was meant for a missing one is wrong
            known = [each.name for each in parameters if each.name in known and each.default is each.empty]
            unknown = [name for name in unknown if did_you_mean(name, known)]
        refuse_unknown(owner, unknown, known, elsewhere)
        raise TypeError(f"{owner}: {reason}")

    return checked_init


def same_arguments(made: Callable[P, Any]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor that hands its arguments on to `made` the signature of `made`: for types, editors, errors."""

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        this, *_ = inspect.signature(init).parameters.values()
        init.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # which `inspect` reads
            [this, *inspect.signature(made).parameters.values()]
        )
        return init

    return decorate


def check_positive(
    of: str = "", *, whole: bool = False, optional: bool = False, zero: bool = False, **values: object
) -> None:
    """Refuse options that are not positive numbers (`of` something, such as seconds) by a `ValueError` that names one.

    Args:
        whole: They must be integers.
        optional: None is taken, too.
        zero: 0 is taken, too.
    """
    what = f"a {'' if zero else 'positive '}{'whole number' if whole else 'number'}{of and f' of {of}'}"
    what += f"{', at least 0' if zero else ''}{' or None' if optional else ''}"
    for name, value in values.items():
        is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
        is_large_enough = is_number and (value >= 0 if zero else value > 0)  # type: ignore[operator]
        if not is_large_enough and not (optional and value is None):
            raise ValueError(f"{name} must be {what}, got {value!r}")


def check_choice(choices: Iterable[str], **values: object) -> None:
    """Refuse options that are none of these choices by a `ValueError` that names one."""
    known = [str(choice) for choice in choices]
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra; pip takes the installed copy for the rest, whatever it is."""
    pip = "pip" if find_spec("pip") is not None else "uv pip"
    return f"{pip} install '{DISTRIBUTION}[{extra}]'"
