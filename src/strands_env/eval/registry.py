"""Benchmarks by name: the built-in ones, registered ones, and those other packages offer as entry points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from strands_env.eval.errors import DatasetError, EvalError, UnknownBenchmarkError
from strands_sglang.hints import install_command

if TYPE_CHECKING:
    from strands_env.eval.run.evaluator import Evaluator

ENTRY_POINTS = "strands_env.benchmarks"
"""Group of entry points: name of the benchmark, and `module:Class` of its evaluator."""

BUILT_IN = {
    "arithmetic": "arithmetic:ArithmeticEvaluator",
    "aime-2024": "mathematics:AIME2024Evaluator",
    "aime-2025": "mathematics:AIME2025Evaluator",
    "aime-2026": "mathematics:AIME2026Evaluator",
    "math-500": "mathematics:Math500Evaluator",
    "hmmt-feb-2025": "mathematics:HMMTFeb2025Evaluator",
    "hmmt-nov-2025": "mathematics:HMMTNov2025Evaluator",
    "hmmt-feb-2026": "mathematics:HMMTFeb2026Evaluator",
    "livecodebench": "livecodebench:LiveCodeBenchEvaluator",
    "harbor": "harbor:HarborEvaluator",
    "terminal-bench-2": "harbor:TerminalBench2Evaluator",
    "terminal-bench-2.1": "harbor:TerminalBench21Evaluator",
    "swebench-verified": "harbor:SWEBenchVerifiedEvaluator",
}

PREFIXES = {
    "harbor": "harbor:HarborRegistryEvaluator",
    "inspect": "inspect:InspectEvaluator",
    "openenv": "openenv:OpenEnvEvaluator",
    "verifiers": "verifiers:VerifiersEvaluator",
}
"""Prefixes of names that a package or a server resolves (`inspect:sums.py`), and the `SourceBenchmark` of each."""

_FACTS = "--data FILE --columns question=...,answer=... --reward module:your_judge"
REPLACED = {
    **dict.fromkeys(("bfcl", "bfcl-multi-turn"), "inspect:inspect_evals/bfcl"),
    "browsecomp": "inspect:inspect_evals/browse_comp",
    **dict.fromkeys(("frames", "sealqa-0", "sealqa-hard"), _FACTS),
    **dict.fromkeys(("gpqa-diamond", "gpqa-extended", "gpqa-main"), "inspect:inspect_evals/gpqa_diamond"),
    "gsm8k": "inspect:inspect_evals/gsm8k",
    **dict.fromkeys(("hle", "hle-verified-gold", "hle-verified-gold-text"), "inspect:inspect_evals/hle"),
    "ifeval": "inspect:inspect_evals/ifeval",
    "mcp-atlas": "--data FILE --env module:your_mcp_env --reward module:your_judge",
    "mmlu-pro": "inspect:inspect_evals/mmlu_pro",
    "simpleqa-verified": "inspect:inspect_evals/simpleqa_verified",
    **{f"tau2-{domain}": f"inspect:inspect_evals/tau2_{domain}" for domain in ("airline", "retail", "telecom")},
    "tau2-mock": "inspect:inspect_evals/tau2_airline",
}
"""Benchmarks of earlier versions, and the arguments of `strands-env eval` in their place."""
_NO_DATA = {"arithmetic": "it is generated from its seed"}
"""Built-in benchmarks that read no file, and where their tasks come from."""

EvaluatorType = TypeVar("EvaluatorType", bound="type[Evaluator]")

_BENCHMARKS: dict[str, type[Evaluator]] = {}  # the registered ones; tests written for upstream remove theirs here


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkInfo:
    """A known benchmark.

    Attributes:
        origin: `built-in`, `registered`, or the distribution that offers it.
        description: First line of its class's docstring; the error if it cannot be loaded.
    """

    name: str
    origin: str
    description: str
    is_available: bool = True


def register_eval(name: str) -> Callable[[EvaluatorType], EvaluatorType]:
    """Class decorator that registers an evaluator under a name.

    Raises:
        ValueError: Another one is registered under it.
    """

    def register(evaluator: EvaluatorType) -> EvaluatorType:
        registered = _BENCHMARKS.get(name)
        if registered is not None and registered is not evaluator and registered.__qualname__ != evaluator.__qualname__:
            raise ValueError(
                f"benchmark {name!r} is already registered, by {registered.__module__}.{registered.__qualname__}"
            )
        _BENCHMARKS[name] = evaluator
        return evaluator

    return register


def get_benchmark(name: str) -> type[Evaluator]:
    """The evaluator of a name: registered ones come before built-in ones, those before entry points.

    Raises:
        UnknownBenchmarkError: There is none.
        EvalError: It cannot be loaded, or is not an evaluator.
    """
    if name in _BENCHMARKS:
        return _BENCHMARKS[name]
    if has_prefix(name):
        return _of_source(name)
    if name in BUILT_IN:
        loaded = resolve_name(f"strands_env.eval.benchmarks.{BUILT_IN[name]}")
    elif point := _points().get(name):
        try:
            loaded = point.load()
        except Exception as error:
            raise EvalError(f"benchmark {name!r} of {_distribution(point)} cannot be loaded: {error}") from error
    else:
        raise unknown_benchmark(name)
    from strands_env.eval.run.evaluator import Evaluator  # loads the SDK, which a look at the names does without

    if not (isinstance(loaded, type) and issubclass(loaded, Evaluator)):
        raise EvalError(f"benchmark {name!r} must be a subclass of strands_env.eval.Evaluator, got {loaded!r}")
    return loaded


def unknown_benchmark(name: str) -> EvalError:
    """The error for a name that no benchmark has, any more or at all."""
    if name in REPLACED:
        return EvalError(f"the benchmark {name!r} is gone: type strands-env eval {REPLACED[name]}")
    return UnknownBenchmarkError(name, tuple(list_benchmarks()))


def has_prefix(name: str) -> bool:
    """True for a name that a package or a server resolves."""
    return name.partition(":")[0] in PREFIXES and ":" in name


@lru_cache(maxsize=256)
def _of_source(name: str) -> type[Evaluator]:
    prefix, _, source = name.partition(":")
    if not source:
        raise EvalError(f"{name!r} names nothing: write {prefix}:NAME")
    try:
        kind: Any = resolve_name(f"strands_env.eval.benchmarks.{PREFIXES[prefix]}")
    except ImportError as error:
        raise EvalError(f"{name!r} needs a package: {install_command(prefix)}") from error
    made: type[Evaluator] = type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "benchmark_name": name})
    return made


def list_benchmarks() -> list[str]:
    """Names of all known benchmarks."""
    return sorted({*_BENCHMARKS, *BUILT_IN, *_points()})


def check_data(benchmark: str, data_path: str | Path | None) -> None:
    """Refuse data for a benchmark that reads none.

    Raises:
        DatasetError: It would have no effect.
    """
    if data_path is not None and benchmark not in _BENCHMARKS and (source := _NO_DATA.get(benchmark)) is not None:
        raise DatasetError(f"{benchmark} reads no file, for {source}: leave out data_path (--data)")


def describe_benchmarks() -> list[BenchmarkInfo]:
    """All known benchmarks with a line of description each; one that cannot be loaded says why."""
    points = _points()
    infos = []
    for name in list_benchmarks():
        origin = (
            "built-in" if name in BUILT_IN else "registered" if name in _BENCHMARKS else _distribution(points[name])
        )
        try:
            text, is_available = (get_benchmark(name).__doc__ or "").strip().partition("\n")[0], True
        except Exception as error:  # of a foreign module: the others are listed
            text, is_available = str(error), False
        infos.append(BenchmarkInfo(name=name, origin=origin, description=text, is_available=is_available))
    return infos


def list_unavailable_benchmarks() -> dict[str, str]:
    """The benchmarks that cannot be loaded, and why."""
    return {info.name: info.description for info in describe_benchmarks() if not info.is_available}


@cache  # 15 ms where a hundred packages are installed, and asked for by every check of a name
def _points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def _distribution(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an entry point"
