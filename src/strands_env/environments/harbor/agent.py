r"""Our agent under Harbor's own command, with exact tokens in its results.

    harbor run -p TASKS --agent-import-path strands_env.environments.harbor.agent:StrandsRolloutAgent \
        -m my-model --ak base_url=http://localhost:30000 --ak tokenizer=Qwen/Qwen3-8B

Each turn's whole prompt, its sampled ids and their log-probabilities are in `rollout_details` of the trial's result:
the main agent's first, then those of sub-agents and of other paths. Every sampled token is in exactly one entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from strands_env.core import Action, Environment, ModelFactory, Outcome, Trajectory
from strands_env.core.models import sglang_model_factory
from strands_env.tools.code import ContainerTools

from .container import HarborSandbox
from .harbor_env import HarborEnv
from .trial import OwnAgent


class ContainerEnv(Environment):
    """An agent with a shell and an editor in a container that somebody else starts and ends."""

    default_system_prompt_path = HarborEnv.default_system_prompt_path

    def __init__(self, *, environment: BaseEnvironment, **options: Any) -> None:
        super().__init__(**{"tool_timeout": None, **options})
        self._tools = ContainerTools(HarborSandbox(environment))

    def get_tools(self) -> list[Any]:
        """A shell and an editor."""
        return [self._tools.execute_command, self._tools.edit_file]


class StrandsRolloutAgent(OwnAgent):
    """A Strands agent with exact tokens, as an agent of Harbor's.

    Args:
        base_url: SGLang server.
        tokenizer: Tokenizer of its model: a hub id or a folder.
        sampling_params: SGLang sampling parameters.
        model_factory: Makes the models instead; for use from Python.
        max_tool_iters: Replies with tool calls after which the agent ends.
    """

    def __init__(
        self,
        *args: Any,
        base_url: str = "http://localhost:30000",
        tokenizer: str | None = None,
        sampling_params: dict[str, Any] | None = None,
        model_factory: ModelFactory | None = None,
        max_tool_iters: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._base_url, self._tokenizer, self._sampling_params = base_url, tokenizer, sampling_params
        self._models = model_factory
        self._max_tool_iters = max_tool_iters

    async def setup(self, environment: BaseEnvironment) -> None:
        """Load the tokenizer."""
        if self._models is None:
            self._models = await asyncio.to_thread(self._make_models)

    def _make_models(self) -> ModelFactory:
        from transformers import AutoTokenizer

        from strands_sglang import SGLangClient

        name = self._tokenizer or self.model_name
        if name is None:
            raise ValueError("the agent needs the tokenizer of the server's model: --ak tokenizer=ID")
        return sglang_model_factory(
            client=SGLangClient(self._base_url),
            tokenizer=AutoTokenizer.from_pretrained(name),
            sampling_params=self._sampling_params,
        )

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Do the task.

        Raises:
            RuntimeError: The model's service or the container failed: the trial says nothing about the agent.
        """
        assert self._models is not None
        env = ContainerEnv(environment=environment, model_factory=self._models, max_tool_iters=self._max_tool_iters)
        result = await env.step(Action(message=instruction))
        context.rollout_details = rollout_details(result.trajectories)
        for name, key in (("n_input_tokens", "prompt_token_ids"), ("n_output_tokens", "completion_token_ids")):
            setattr(context, name, sum(len(ids) for detail in context.rollout_details for ids in detail[key]))
        context.metadata = {"termination_reason": result.termination_reason.value}
        if result.outcome is not Outcome.POLICY:  # Harbor would grade an agent that merely returns
            raise RuntimeError(f"the episode ended as {result.end}")


def rollout_details(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Trajectories as Harbor keeps them: the main one first, each sampled token once.

    Log-probabilities are left out of an entry that lacks one.
    """
    details = []
    for trajectory in sorted(trajectories, key=lambda one: not one.is_main):
        tokens = trajectory.tokens
        ids, mask, logprobs = tokens.token_ids, tokens.loss_mask, tokens.logprobs
        spans = [part for part in tokens.segments if part.is_output and any(mask[part.start : part.end])]
        if not spans:
            continue
        detail: dict[str, Any] = {
            "prompt_token_ids": [ids[: part.start] for part in spans],
            "completion_token_ids": [ids[part.start : part.end] for part in spans],
        }
        # Harbor's list has no place for a missing value, and a made-up one would be trained on.
        sampled = [logprobs[part.start : part.end] for part in spans]
        if all(value is not None for turn in sampled for value in turn):
            detail["logprobs"] = sampled
        details.append(detail)
    return details
