"""miles, a fork of slime: its names, and its call of `generate`."""

from __future__ import annotations

import importlib
from typing import Any

from strands_env.training.slime.generate import generate_with
from strands_env.training.slime.settings import Trainer

TRAINER = Trainer(
    name="miles",
    states=None,
    policy="sglang_router_policy",
    by_key=frozenset({"consistent_hashing", "manual"}),
    key="routing_key",
    replays_top_p=False,
)


async def generate(input: Any) -> Any:
    """Slime's `generate` for miles: from its `GenerateFnInput`, which holds its state, to its `GenerateFnOutput`."""
    samples = await generate_with(input.state, input.args, input.sample, input.sampling_params, input.evaluation)
    return importlib.import_module("miles.rollout.base_types").GenerateFnOutput(samples=samples)
