"""verl: an agent loop. Written against verl 0.9.1 (`verl.experimental.agent_loop`).

```python
from verl.experimental.agent_loop.agent_loop import register

StrandsLoop = register("strands")(make_agent_loop(make_env))  # in a module that verl's workers import
```
"""

from __future__ import annotations

import importlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strands_env.core import Action, TaskContext
from strands_env.training._export import full_logprobs, one_path, trained_mask
from strands_env.training.build import samples_from_step
from strands_env.training.sample import TrainingSample

VERSION = "0.9.1"


def agent_loop_output(
    samples: Sequence[TrainingSample],
    *,
    prompt_length: int,
    response_length: int,
    metrics: Mapping[str, float] | None = None,
    num_turns: int = 0,
) -> dict[str, Any]:
    """The fields of `AgentLoopOutput`. verl takes one output a rollout, so one path stands for it.

    Args:
        samples: The samples of the rollout.
        prompt_length: `rollout.prompt_length`; a longer prompt is cut from the left, as verl does.
        response_length: `rollout.response_length`; a longer response is cut, ids, mask and log-probabilities together.
        metrics: Seconds `generate_sequences`, `tool_calls` and `compute_score`.
        num_turns: Number of turns.
    """
    sample = one_path(samples)
    sample = sample.truncated(sample.prompt_length + response_length)
    start = sample.prompt_length
    output: dict[str, Any] = {
        "prompt_ids": sample.token_ids[max(0, start - prompt_length) : start].tolist(),
        "response_ids": sample.token_ids[start:].tolist(),
        "response_mask": trained_mask(sample)[start:],
        "response_logprobs": full_logprobs(sample)[start:],
        "reward_score": float(sample.reward or 0.0) if sample.is_usable else 0.0,
        "num_turns": num_turns,
        "metrics": dict(metrics or {}),
        "extra_fields": {"status": sample.status.value, **_steps(sample)},
    }
    experts = sample.experts_array()
    if experts is not None:
        output["routed_experts"] = experts[max(0, start - prompt_length) :]
    return output


class ServerManagerClient:
    """The generate contract over verl's `server_manager`, for one rollout.

    verl's own sampling parameters are used for every call; aborts resume below this interface.

    Args:
        server_manager: verl's.
        sampling_params: What verl handed to `run`.
        eos_token_ids: Ids that end a reply.
    """

    def __init__(self, server_manager: Any, sampling_params: Mapping[str, Any], eos_token_ids: Sequence[int]) -> None:
        self._manager = server_manager
        self._params = dict(sampling_params)
        self._eos = frozenset(eos_token_ids)
        self._request_id = uuid.uuid4().hex  # one for all turns: the sticky session
        self.seconds = 0.0

    async def generate(self, input_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """One model call."""
        started = time.perf_counter()
        answer = await self._manager.generate(
            request_id=self._request_id,
            prompt_ids=list(input_ids),
            sampling_params={**self._params, "logprobs": True},
        )
        self.seconds += time.perf_counter() - started
        # A reply may be longer than what is left: verl does not know of the limits of an agent.
        limit = (fields.get("sampling_params") or {}).get("max_new_tokens")
        ids = list(answer.token_ids)[:limit]
        logprobs = list(answer.log_probs or [])[: len(ids)]
        meta: dict[str, Any] = {"id": self._request_id, "prompt_tokens": len(input_ids), "completion_tokens": len(ids)}
        if ids and ids[-1] in self._eos:
            meta["finish_reason"] = {"type": "stop", "matched": ids[-1]}
        else:
            meta["finish_reason"] = {"type": "length", "length": len(ids)}
        if logprobs:
            meta["output_token_logprobs"] = [
                [logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)
            ]
        step = (getattr(answer, "extra_fields", None) or {}).get("global_steps")
        if step is not None:
            meta["weight_version"] = str(step)
        return {"text": "", "output_ids": ids, "meta_info": meta}


def make_agent_loop(make_environment: Callable[..., Any], **model_options: Any) -> type:
    """An `AgentLoopBase` class that runs an environment.

    Args:
        make_environment: Called with `model_factory` for every rollout.
        **model_options: Options of `SGLangModel`.
    """
    base: Any = importlib.import_module("verl.experimental.agent_loop.agent_loop")

    class StrandsAgentLoop(base.AgentLoopBase):  # type: ignore[misc]
        """Runs a Strands environment."""

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            """One rollout of a row of the data set."""
            rollout = self.rollout_config
            fields = await run_rollout(
                make_environment,
                server_manager=self.server_manager,
                tokenizer=self.tokenizer,
                sampling_params=sampling_params,
                row=kwargs,
                prompt_length=int(rollout.prompt_length),
                response_length=int(rollout.response_length),
                model_options=model_options,
            )
            return base.AgentLoopOutput(**{**fields, "metrics": base.AgentLoopMetrics(**fields["metrics"])})

    return StrandsAgentLoop


async def run_rollout(
    make_environment: Callable[..., Any],
    *,
    server_manager: Any,
    tokenizer: Any,
    sampling_params: Mapping[str, Any],
    row: Mapping[str, Any],
    prompt_length: int,
    response_length: int,
    model_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one rollout; the fields of its `AgentLoopOutput`.

    Args:
        make_environment: Called with `model_factory`.
        server_manager: verl's.
        tokenizer: Tokenizer of the model.
        sampling_params: What verl handed to `run`.
        row: The row: `raw_prompt` and `reward_model.ground_truth` are read, `extra_info` is kept for the reward.
        prompt_length: `rollout.prompt_length`.
        response_length: `rollout.response_length`, the budget of the whole response.
        model_options: Options of `SGLangModel`.
    """
    from strands_sglang import SGLangModel

    client = ServerManagerClient(server_manager, sampling_params, [tokenizer.eos_token_id])

    def factory() -> Any:
        return SGLangModel(
            tokenizer=tokenizer,
            client=client,
            sampling_params={"max_new_tokens": response_length},
            max_sampled_tokens=response_length,
            **(model_options or {}),
        )

    messages = [{"role": m["role"], "content": [{"text": m["content"]}]} for m in row["raw_prompt"]]
    environment = make_environment(model_factory=factory)
    system = [m["content"][0]["text"] for m in messages if m["role"] == "system"]
    if system:
        environment.system_prompt = "\n".join(system)
    turns = [message for message in messages if message["role"] != "system"]
    known: dict[str, Any] = {
        "ground_truth": (row.get("reward_model") or {}).get("ground_truth"),
        "conversation_history": turns[:-1],
        "extra_info": row.get("extra_info"),
    }
    context = TaskContext(**known)
    result = await environment.rollout(Action(message=turns[-1], task_context=context))
    metrics = result.observation.metrics
    return agent_loop_output(
        samples_from_step(result),
        prompt_length=prompt_length,
        response_length=response_length,
        metrics={
            "generate_sequences": client.seconds,
            "tool_calls": float(metrics.get("tool_s", 0.0)),
            "compute_score": float(metrics.get("reward_latency_s", 0.0)),
        },
        num_turns=int(metrics.get("message_count", 0)),
    )


def _steps(sample: TrainingSample) -> dict[str, int]:
    steps = [int(span.version) for span in sample.weight_versions if span.version and span.version.isdigit()]
    return {"min_global_steps": min(steps), "max_global_steps": max(steps)} if steps else {}
