"""How a step is scored, and the identity of a reward: JSON values, so that a resumed run is scored as it was begun."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import logging
import math
import re
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Real
from types import CodeType
from typing import Any, TypeAlias

import numpy as np

from .deadline import run_with_timeout
from .jsonable import canonical, digest, plain, redact
from .termination import Phase, TerminationReason
from .threads import DaemonThreads, reward_threads
from .types import Action, RewardFunction, RewardResult, StepResult

logger = logging.getLogger(__name__)

RewardValue: TypeAlias = RewardResult | float | None
RewardCallable: TypeAlias = Callable[[Action, StepResult], RewardValue | Awaitable[RewardValue]]
"""A plain function, sync or async. A sync one runs in a thread of its own, so that it cannot block other rollouts."""


class FunctionReward(RewardFunction):
    """A plain function as a reward function.

    Args:
        function: Takes the action and the step result; returns a `RewardResult`, a number, or None to abstain.
        threads: Threads of a synchronous one; those of all rewards if None.
    """

    def __init__(self, function: RewardCallable, threads: DaemonThreads | None = None) -> None:
        if not callable(function):
            raise TypeError(
                f"a reward function has an async compute(action, step_result) or is a plain function, got {function!r}"
            )
        try:
            inspect.signature(function).bind(None, None)
        except ValueError:  # a built-in without a signature
            pass
        except TypeError as error:
            name, takes = getattr(function, "__name__", repr(function)), inspect.signature(function)
            raise TypeError(f"a reward function takes (action, step_result), got {name}{takes}") from error
        self.function = function
        self._threads = threads or reward_threads

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Call the function and give its value the right type."""
        if inspect.iscoroutinefunction(self.function):
            value = await self.function(action, step_result)
        else:
            value = await self._threads.run(self.function, action, step_result)
            if inspect.isawaitable(value):
                value = await value
        return as_reward_result(value)


def as_reward_result(value: Any) -> RewardResult:
    """A reward function's value as a `RewardResult`.

    Raises:
        TypeError: It is not a result, a number or None.
        ValueError: It is infinite or NaN.
    """
    if isinstance(value, RewardResult):
        return value
    if value is None:
        return RewardResult()
    if isinstance(value, Real | np.bool_):  # numpy's numbers are Real, its truth values are not
        if not math.isfinite(value):
            raise ValueError(f"a reward must be a finite number, or None to abstain, got {value!r}")
        return RewardResult(reward=float(value))
    raise TypeError(f"a reward function must return a RewardResult, a number or None, got {value!r}")


_REFUSED = {
    TerminationReason.CONTEXT_WINDOW_OVERFLOW: "answer_too_long",
    TerminationReason.CONTENT_FILTERED: "answer_filtered",
}
"""The ends of a judge's call that an answer can bring about, as the reason of its 0."""


async def computed_reward(
    reward: Any, action: Action, result: StepResult, *, timeout: float | None = None
) -> RewardResult:
    """The checked reward of a step; 0 if the reward function fails because of the policy's answer.

    That is an answer the policy never gave, or one that a model asked by the function cannot take although it takes a
    short one. Unscored, such episodes would leave the denominator.
    """

    async def compute(scored: StepResult) -> RewardResult:
        computed = reward.compute(action, scored)
        if not hasattr(computed, "__await__"):
            raise TypeError(f"{type(reward).__name__}.compute() must be async: write 'async def compute'")
        return as_reward_result(await run_with_timeout(computed, timeout, Phase.REWARD))

    try:
        return await compute(result)
    except Exception as error:
        # A client's own exceptions (unreachable, throttled) are of other types than those of reading an absent answer.
        reads_answer = isinstance(error, AttributeError | TypeError | LookupError)
        refused = await refused_answer(error, result, compute, reads_answer=reads_answer)
        if refused is None:
            raise
        return refused


async def refused_answer(
    error: Exception, result: StepResult, judge: Callable[[StepResult], Awaitable[Any]], *, reads_answer: bool
) -> RewardResult | None:
    """0 for an answer that is missing, too long for a judge, or filtered; None if the grader itself is broken.

    Decided by trying, never by the words of the error: a grader that works takes a short answer in place of the
    policy's part of the conversation, and the missing answer makes it fail a second time.

    Args:
        judge: Scores a result as the call that failed did.
        reads_answer: The call that failed may have tried to read an answer that is missing.
    """
    is_missing = reads_answer and result.observation.final_response is None
    reason = _REFUSED.get(TerminationReason.from_error(error)) or ("no_final_response" if is_missing else None)
    if reason is None:
        return None
    messages = result.observation.messages
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    for text in ("I do not know.", "0")[: 1 + is_missing]:  # "0" for a reward that reads a number
        short = [*messages[:first], {"role": "assistant", "content": [{"text": text}]}]
        observation = result.observation.model_copy(update={"messages": short})
        try:
            await judge(result.model_copy(update={"observation": observation}))
            break
        except Exception as other:
            logger.debug("answer=<%s>, error=<%s> | the grader cannot take a short answer either", text, other)
    else:
        return None
    if is_missing:
        try:
            again = await judge(result)
        except type(error):
            logger.debug("error=<%s> | the grader needs an answer", error)
        else:  # it failed once, for another reason
            return again if isinstance(again, RewardResult) else None
    logger.warning("reason=<%s>, error=<%s> | the grader cannot take the answer: 0", reason, error)
    info = {"status": "success", "reason": reason, "error": f"{type(error).__name__}: {error}"}
    return RewardResult(reward=0.0, info=info)


def as_reward_function(reward: Any, threads: DaemonThreads | None = None) -> Any:
    """Anything with a `compute` as it is, a plain function wrapped; `TypeError` for anything else.

    A synchronous function runs in these threads.
    """
    if inspect.isclass(reward) and hasattr(reward, "compute"):
        raise TypeError(f"give an instance of the reward function, {reward.__name__}(...), not the class {reward!r}")
    return reward if hasattr(reward, "compute") else FunctionReward(reward, threads)


# ---- identity --------------------------------------------------------------------------------------------------------

_LONGEST = 1000
_DEPTH = 3
"""Objects within objects whose options are read."""
_SERVICE = re.compile("model|client|factory")
_VOLATILE_NAMES = """
time time_ns monotonic perf_counter now utcnow today uuid1 uuid4 random randint randbits getrandbits
token_hex token_urlsafe urandom getpid get_ident gethostname getcwd cwd mkdtemp mkstemp gettempdir TemporaryDirectory
NamedTemporaryFile id
"""
_VOLATILE = frozenset(_VOLATILE_NAMES.split())
"""Functions that give another value in every process."""
_CHANGING_NAMES = """
append extend insert add update setdefault pop popitem clear remove discard sort reverse appendleft
"""
_CHANGING = frozenset(_CHANGING_NAMES.split())
"""Methods that change a container."""
_OF_OTHERS = {"strands_env", "strands_sglang", "strands", *sys.stdlib_module_names}


def identify_reward(reward_fn: Any) -> dict[str, Any]:
    """Options of a reward function as far as they can be read, and a digest of its own code.

    Options are arguments of the constructor, defaults of arguments, attributes of the user's classes, what a closure
    holds, and JSON values under whatever attribute an instance or a function keeps them; those of objects in them too.
    An attribute that a method sets or may change after the constructor (a counter, a cache), or that comes from a
    clock, a process or chance, is state and no option. The code is the user's: of the function or
    class, its bases, and what they name of the same module, without comments and docstrings. `code` is None where there
    is no source, and for rewards of this package, whose version is recorded beside them.
    """
    code: dict[str, Any] = {}
    options = _options(reward_fn, code, _DEPTH)
    for name, value in options.items():
        if len(content := canonical(value)) > _LONGEST:  # a table of answers is compared, not copied beside the results
            options[name] = digest(content)
    return {"options": redact(options), "code": digest(canonical(code)) if code else None}


def _options(value: Any, code: dict[str, Any], depth: int) -> dict[str, Any]:
    """The options of a function or an object as JSON values; its code is added to `code`."""
    options: dict[str, Any] = {}
    if isinstance(value, functools.partial):
        options = {**{str(place): each for place, each in enumerate(value.args)}, **value.keywords}
        value = value.func
    function = getattr(value, "__func__", value)
    parts: list[Any] = []
    if inspect.isfunction(function):
        parts = [function]
        parameters = inspect.signature(function).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        defaults |= _values(vars(function), _State(None))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it has no value yet
                defaults[name] = cell.cell_contents
        options = {**defaults, **options}
    owner = getattr(value, "__self__", None) if inspect.ismethod(value) else value
    if not inspect.isfunction(owner):
        kind = owner if inspect.isclass(owner) else type(owner)
        own = [each for each in kind.__mro__ if _is_own(each)]
        parts += own
        attributes = {name: each for part in reversed(own) for name, each in vars(part).items()}
        try:
            names = list(inspect.signature(kind).parameters)
        except (TypeError, ValueError):  # a built-in without a signature
            names = []
        given = {
            name: getattr(owner, attribute)
            for name in names
            for attribute in (name, f"_{name}")
            if hasattr(owner, attribute)
        }
        instance = {} if kind is owner else getattr(owner, "__dict__", {})
        held = {name: each for name, each in instance.items() if _is_own(each)}
        constants = {
            name: each
            for name, each in attributes.items()
            if not name.startswith("_") and not callable(each) and not hasattr(type(each), "__get__")
        }
        if not _is_ours(owner):
            known = {attribute for name in names for attribute in (name, f"_{name}")}
            held |= _values(instance, _State(kind, known))
        options = {**constants, **held, **given, **options}
    for part in filter(_is_own, parts):
        _read(part, code)

    def describe_option(name: str, option: Any) -> Any:
        def leaf(part: Any) -> Any:
            text = redact(part)
            # Where a model is asked is no part of what it is asked.
            inner = part.func if isinstance(part, functools.partial) else part
            if not depth or not (_is_own(inner) or _is_ours(inner)) or _SERVICE.search(name):
                return text
            return {text: within} if (within := _options(part, code, depth - 1)) else text

        return redact(plain(option, leaf=leaf))

    return {name: describe_option(name, option) for name, option in options.items()}


def _values(attributes: Mapping[str, Any], state: _State) -> dict[str, Any]:
    """Those attributes that have content and stay what they are."""
    values = {}
    for name, value in attributes.items():
        is_container = isinstance(value, list | dict | set)
        if name in state.assigned or callable(value) or (is_container and name in state.changed):
            continue
        with suppress(TypeError, ValueError, RecursionError):  # what only has a name
            values[name] = value if is_container else plain(value)
    return values


class _State:
    """Attributes of a class's instances that are no options.

    Attributes:
        assigned: Those set after the constructor, or from something that is another in every process.
        changed: Those read where a method may change a container.
    """

    def __init__(self, kind: type | None, known: Iterable[str] = ()) -> None:
        mro = () if kind is None else kind.__mro__
        members = {name: each for part in reversed(mro) for name, each in vars(part).items()}
        self.assigned = {name for name, each in members.items() if isinstance(each, functools.cached_property)}
        self.assigned.update(known)
        self.changed: set[str] = set()
        functions: dict[str, list[CodeType]] = {}
        for name, member in members.items():
            inner = [member, *(getattr(member, part, None) for part in ("__func__", "func", "fget", "fset"))]
            functions[name] = [inspect.unwrap(each).__code__ for each in inner if inspect.isfunction(each)]
        # Methods that the constructor calls are part of it.
        constructing, pending = set[str](), ["__init__", "__post_init__", "__new__"]
        while pending:
            if (name := pending.pop()) not in constructing and name in functions:
                constructing.add(name)
                pending += [called for code in functions[name] for called in code.co_names]
        for name, codes in functions.items():
            for code in codes:
                self._read(code, is_constructing=name in constructing)

    def _read(self, code: CodeType, *, is_constructing: bool) -> None:
        sources, names, count = set[str](), set[str](), 0  # of a store; loaded since the last one, in so many steps
        loaded, is_changing = set[str](), False
        for each in dis.get_instructions(code):
            if each.opname == "STORE_ATTR":
                if count > 1:  # else it is the next target of one value: `self.a, self.b = ...`
                    sources = names
                if not is_constructing or sources & _VOLATILE:
                    self.assigned.add(str(each.argval))
                names, count = set(), 0
                continue
            count += 2 if isinstance(each.argval, tuple) else 1
            if isinstance(each.argval, str):
                names.add(each.argval)
            if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                loaded.add(str(each.argval))
            is_changing = is_changing or each.opname in ("STORE_SUBSCR", "DELETE_SUBSCR")
        if not is_constructing and (is_changing or loaded & _CHANGING):
            self.changed |= loaded
        for inner in filter(inspect.iscode, code.co_consts):
            self._read(inner, is_constructing=is_constructing)


def _module_of(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return getattr(named, "__module__", None) or ""


def _is_own(value: Any) -> bool:
    """A function, a class or an object of a class that the user wrote, as far as its place tells."""
    module = _module_of(value)
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] not in _OF_OTHERS and "site-packages" not in file


def _is_ours(value: Any) -> bool:
    return _module_of(value).startswith("strands_env.rewards")


def _read(part: Any, seen: dict[str, Any]) -> None:
    """Add the code of a function or class, and of what it names of its own module."""
    key = part.__qualname__
    if key in seen:
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt; a lambda in the middle of a call
        functions = [part] if inspect.isfunction(part) else vars(part).values()
        codes = [each.__code__ for each in functions if inspect.isfunction(each)]
        # A constant that is code has its address in its text, which is another in every process.
        constants = [[repr(each) for each in code.co_consts if not inspect.iscode(each)] for code in codes]
        seen[key] = [[code.co_code.hex(), values] for code, values in zip(codes, constants, strict=True)]
        return
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *rest]:  # a docstring
                node.body = rest  # type: ignore[attr-defined]
    seen[key] = ast.dump(tree)
    module = vars(sys.modules.get(part.__module__, object))
    for name in sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}):
        value = module.get(name)
        if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == part.__module__:
            _read(value, seen)
        elif value is not None and not callable(value) and not inspect.ismodule(value):
            try:  # a threshold, a list of words; of anything else its name would say nothing
                seen[f"{part.__module__}.{name}"] = plain(value)
            except TypeError:
                continue
