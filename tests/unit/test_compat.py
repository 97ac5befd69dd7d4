"""Names of the upstream packages: they run, or an error says what to use instead."""

from __future__ import annotations

import importlib

import pytest

from strands_env import compat as env_compat
from strands_env.core import Action, Environment, StepResult
from strands_env.eval.__main__ import translated
from strands_sglang import compat as sglang_compat
from strands_sglang import exceptions, tool_limiter

TABLES = [
    *((f"strands_sglang.{module}", names) for module, names in sglang_compat.MODULES.items()),
    *((f"strands_env.{module}", names) for module, names in env_compat.MODULES.items()),
    ("strands_env.core", env_compat.CORE),
    ("strands_env.core.types", env_compat.CORE),
    ("strands_env.eval.metrics", env_compat.METRICS),
]


@pytest.mark.parametrize(("module", "names"), TABLES, ids=[module for module, _ in TABLES])
def test_every_old_name_runs_or_says_what_to_use(module: str, names: dict[str, str]) -> None:
    found = importlib.import_module(module)
    for name, target in names.items():
        if " " in target:
            with pytest.raises(ImportError, match="is a name of upstream that is not here: "):
                getattr(found, name)
        elif "harbor" not in target:  # its package may be absent
            assert getattr(found, name) is not None
    with pytest.raises(AttributeError):
        found.never_was  # noqa: B018


def test_old_names_are_the_same_objects() -> None:
    from strands_sglang.limiter import LoopLimiter, MaxToolCallsReachedError

    from strands_env.core import RolloutResult
    from strands_env.utils import aws  # noqa: F401 - it imports

    assert LoopLimiter is tool_limiter.ToolLimiter
    assert MaxToolCallsReachedError is exceptions.MaxToolCallsReachedError
    assert RolloutResult is StepResult


def test_a_task_is_an_action_with_its_fields_in_the_context() -> None:
    from strands_env.core import Task

    made = Task(message="2+2?", ground_truth="4", level=3)
    assert isinstance(made, Action)
    assert (made.task_context.ground_truth, made.task_context.level) == ("4", 3)


def test_options_of_upstream_name_the_new_ones() -> None:
    for option in ("max_messages", "max_tool_iterations"):
        with pytest.raises(TypeError, match="max_tool_iters"):
            Environment(model_factory=lambda: None, **{option: 3})


def test_a_role_is_refused_with_the_way_that_works() -> None:
    from strands_env.utils.aws import get_session

    with pytest.raises(ValueError, match="profile_name="):
        get_session(role_arn="arn:aws:iam::1:role/x")


def test_the_command_line_of_upstream() -> None:
    given = ["--benchmark", "aime-2024", "--backend=sglang", "--max-tokens", "9", "--max-samples=3", "--keep-rollout"]
    assert translated(given) == ["eval", "--backend=sglang", "--max-new-tokens", "9", "--limit=3", "aime-2024"]
    assert translated(["--n-actors-per-node", "2", "--debug"]) == ["eval", "--executor", "ray", "--workers", "2", "-v"]
    assert translated(["--list"]) == ["list"]
    with pytest.raises(SystemExit, match="set AWS_PROFILE"):
        translated(["--profile-name", "x"])
