"""slime: rollouts of any environment, by import path. Written against slime 0.3.1 (624b824a8, 2026-08-21).

    --custom-generate-function-path strands_env.training.slime.generate
    --custom-config-path config.yaml            # strands_env_factory: my_module.make_env, ...

The other hooks are in `hooks`, the options are those of `SlimeSettings`. slime is imported only while these functions
run. Forks of slime take the same functions; each has a module of its name here.
"""

from __future__ import annotations

from strands_env.training.driver import FailureStreakError

from .generate import generate
from .hooks import (
    check_reward_nonzero_std,
    log_eval_rollout,
    log_rollout,
    reward_func,
    reward_post_process,
    teacher_log_probs,
)
from .settings import SlimeConfigError, SlimeSettings

__all__ = [
    "FailureStreakError",
    "SlimeConfigError",
    "SlimeSettings",
    "check_reward_nonzero_std",
    "generate",
    "log_eval_rollout",
    "log_rollout",
    "reward_func",
    "reward_post_process",
    "teacher_log_probs",
]
