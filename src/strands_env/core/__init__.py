"""Environments and the life of an episode.

| noun | is |
|---|---|
| `Environment` | a task world around an agent: tools, limits, reward |
| `ModelFactory` | makes a fresh model for each step |
| `Action` | one task: the message for the agent, and the context for its reward (`TaskContext`) |
| step | one whole agent loop: prompt, tool calls and results, answer |
| episode | `reset`, a step, always `cleanup`: `Environment.rollout` |
| `StepResult` | the outcome of a step: an `Observation`, a `RewardResult`, an `End` |
| `End` | how it ended (`TerminationReason`), who is responsible (`Outcome`), and the error |
| `Observation` | messages, metrics, and tokens as the model sampled them (`TokenObservation`) |
| `Trajectory` | one path of tokens of one agent; a step has several where agents or branches are several |
| `RewardFunction` | scores a step, or abstains |
| `ErrorRecord` | an exception as data, with the `Phase` of the episode it came from |

```python
class Adding(Environment):
    def get_tools(self):
        return [add]


env = Adding(model_factory=factory, reward_fn=lambda action, result: result.observation.final_response == "4")
result = await env.rollout(Action(message="What is 2 + 2?", task_context=TaskContext(ground_truth="4")))
```

`environment` is what a user overrides, and `episode` runs it; `loop_records` says who sampled what, `limits` bounds its
tools, `deadline` its parts, and `termination` says how it ended. `rollout` makes environments and runs their episodes,
for evaluators and trainers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strands_sglang.compat import names_on_use

if TYPE_CHECKING:
    from strands_sglang.backends.engine.smollm2 import worked_example
    from strands_sglang.trajectory import Role

    from .environment import Environment
    from .metrics import Metrics, ToolMetrics
    from .models import ModelFactory
    from .scoring import FunctionReward, RewardCallable
    from .termination import End, EpisodeTimeoutError, ErrorRecord, Outcome, Phase, TerminationReason
    from .types import (
        Action,
        Observation,
        RewardFunction,
        RewardResult,
        SpanReward,
        StateError,
        StepResult,
        TaskContext,
        TokenObservation,
        Trajectory,
        WeightVersionSpan,
    )

__all__ = [
    "Action",
    "End",
    "Environment",
    "EpisodeTimeoutError",
    "ErrorRecord",
    "FunctionReward",
    "Metrics",
    "ModelFactory",
    "Observation",
    "Outcome",
    "Phase",
    "RewardCallable",
    "RewardFunction",
    "RewardResult",
    "Role",
    "SpanReward",
    "StateError",
    "StepResult",
    "TaskContext",
    "TerminationReason",
    "TokenObservation",
    "ToolMetrics",
    "Trajectory",
    "WeightVersionSpan",
    "worked_example",
]

# The options of a command are in this package, and its help needs nothing of the SDK.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        ".types": __all__,  # but for these:
        ".environment": ("Environment",),
        ".metrics": ("Metrics", "ToolMetrics"),
        ".models": ("ModelFactory",),
        "strands_sglang.trajectory": ("Role",),
        "strands_sglang.backends.engine.smollm2": ("worked_example",),
        ".scoring": ("FunctionReward", "RewardCallable"),
        ".termination": ("End", "EpisodeTimeoutError", "ErrorRecord", "Outcome", "Phase", "TerminationReason"),
    },
)
