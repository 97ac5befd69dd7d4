"""verl: an agent loop over an environment, a backend over its `server_manager`, advantages that leave failures out.

Written against verl 0.9.1 (`verl.experimental.agent_loop`).

In a module that verl's workers import, or that `agent.agent_loop_config_path` names:

```python
from verl.experimental.agent_loop.agent_loop import register


@register("strands")
class StrandsLoop(make_agent_loop(make_env)):
    "verl looks the class up by its name in this module."
```
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from strands_env.core import Action, Environment, TaskContext
from strands_env.core.chat_messages import ChatPrompt
from strands_env.core.termination import UNKNOWN, End
from strands_env.training.advantages import group_advantages
from strands_env.training.build import samples_from_step
from strands_env.training.driver import Rollout, drive_rollout
from strands_env.training.export import image_inputs, one_row, status_of, written_for
from strands_env.training.sample import InvalidSampleError, TrainingSample
from strands_sglang import Limits, SGLangModel
from strands_sglang.backends import Backend, Capabilities, GenerateAnswer, GenerateRequest, LogprobKind
from strands_sglang.backends.answer import check_output, checked_ids, checked_logprobs, weight_spans
from strands_sglang.exceptions import BackendAnswerError
from strands_sglang.trajectory import Finish, FinishType
from strands_sglang.trajectory.images import ProcessorExpander

logger = logging.getLogger(__name__)

_WRONG_CODE = (TypeError, NameError, AttributeError, ImportError)
"""Errors of `make_environment` that will recur for every row, since it is given nothing of the row."""


def agent_loop_output(
    samples: Sequence[TrainingSample],
    *,
    prompt_length: int,
    response_length: int,
    experts_shape: tuple[int, int] | None = None,
    end: End = UNKNOWN,
    expander: ProcessorExpander | None = None,
) -> dict[str, Any]:
    """The fields of `AgentLoopOutput`, for you to add metrics and turns. verl takes one path of a rollout.

    A rollout that may not be trained, or has no sample, is a row with mask 0 and score 0.0. verl's own advantages count
    that score; those of `register_advantage` leave the row out.

    Args:
        samples: The samples of the rollout.
        prompt_length: `rollout.prompt_length`; a longer prompt is cut from the left, as verl does.
        response_length: `rollout.response_length`; a longer response is cut, ids, mask and log-probabilities together.
        experts_shape: `(layers, top_k)` where every row must have routed experts.
        end: The end of a rollout without samples.
        expander: `strands_sglang.trajectory.images.image_expander(model)` of a vision model: adds the images as
            `multi_modal_data`, which verl processes itself. Images are refused without, and where a prompt is cut.

    Raises:
        InvalidSampleError: A trained token has no log-probability, the routed experts asked for are missing, or the
            sample has images that cannot be given to verl.
    """
    sample = one_row(samples, end=end, experts_shape=experts_shape)
    sample = sample.truncated(sample.prompt_length + response_length)
    start = sample.prompt_length
    if start > prompt_length and sample.is_usable:
        logger.warning(
            "prompt=<%d>, limit=<%d> | the prompt is cut, and the response trained on less than it was sampled from: "
            "raise rollout.prompt_length",
            start,
            prompt_length,
        )
    first = max(0, start - prompt_length)  # verl cuts prompts from the left
    # verl's weight versions are its training steps.
    steps = [int(span.version) for span in sample.weight_versions if span.version and span.version.isdigit()]
    output: dict[str, Any] = {
        "prompt_ids": sample.token_ids[first:start].tolist(),
        "response_ids": sample.token_ids[start:].tolist(),
        "response_mask": sample.trained_mask(images_follow=expander is not None)[start:],
        "response_logprobs": sample.full_logprobs()[start:],
        # verl puts it on the last token of the response.
        "reward_score": float(sample.reward or 0.0) if sample.is_scored else 0.0,
        "num_turns": 0,
        "metrics": {},
        "extra_fields": {"status": status_of(sample.end), **_step_fields(steps)},
    }
    experts = sample.experts_array()
    if experts is not None:
        output["routed_experts"] = experts[first:]  # its first axis is the absolute position
    if sample.media and expander is not None:
        if start > prompt_length:
            raise InvalidSampleError(
                f"the prompt has {start} tokens and rollout.prompt_length is {prompt_length}: a prompt with images "
                "cannot be cut, raise rollout.prompt_length"
            )
        from PIL import Image

        image_inputs(sample, expander)  # proves that the images still expand to the tokens of the sample
        images = [Image.open(io.BytesIO(medium.image)).convert("RGB") for medium in sample.media]
        output["multi_modal_data"] = {"images": images}
    return output


def make_agent_loop(
    make_environment: Callable[..., Any],
    *,
    retries: int = 2,
    experts_shape: tuple[int, int] | None = None,
    **model_options: Any,
) -> type:
    """An `AgentLoopBase` class that runs an environment.

    Args:
        make_environment: Called with `model_factory` for every rollout.
        retries: Further attempts of a rollout that was lost to infrastructure.
        experts_shape: `(layers, top_k)` of routed experts, for rows without loss while
            `rollout.enable_rollout_routing_replay` is on. If None, that of the model's configuration.
        **model_options: Options of `SGLangModel`.
    """
    with written_for("verl"):
        base: Any = importlib.import_module("verl.experimental.agent_loop.agent_loop")
        parent: Any = base.AgentLoopBase
    run = functools.partial(run_rollout, retries=retries, experts_shape=experts_shape, model_options=model_options)

    class StrandsAgentLoop(parent):  # type: ignore[misc]
        """Runs a Strands environment."""

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            """A rollout of a row of the data set."""
            fields = await run(self, make_environment, sampling_params, kwargs)
            with written_for("verl"):
                return base.AgentLoopOutput(**{**fields, "metrics": base.AgentLoopMetrics(**fields["metrics"])})

    return StrandsAgentLoop


async def run_rollout(
    loop: Any,
    make_environment: Callable[..., Any],
    sampling_params: Mapping[str, Any],
    row: Mapping[str, Any],
    *,
    retries: int = 2,
    experts_shape: tuple[int, int] | None = None,
    model_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one rollout; the fields of its `AgentLoopOutput`.

    Args:
        loop: verl's agent loop, whose servers, tokenizer and configuration are used. `rollout.response_length` is the
            budget of the whole response.
        make_environment: Called with `model_factory`.
        sampling_params: Those that verl handed to `run`.
        row: The row: `raw_prompt` and `reward_model.ground_truth` are read, `extra_info` is kept for the reward.
        retries: Further attempts of a rollout that was lost to infrastructure, or whose environment could not be made.
            After the last one it is a row without loss.
        experts_shape: See `make_agent_loop`.
        model_options: Options of `SGLangModel`.

    Raises:
        ValueError: The prompt has images, cannot be understood, or does not end with a user message; or the environment
            has no reward function.
        TypeError: `model_options` are wrong. `make_environment` may raise it too, as other errors of wrong code.
        InvalidSampleError: A row without loss needs routed experts of unknown shape.
    """
    tokenizer, response_length = loop.tokenizer, int(loop.rollout_config.response_length)
    replays = bool(getattr(loop.rollout_config, "enable_rollout_routing_replay", False))
    if replays and experts_shape is None:
        experts_shape = _experts_shape(loop.config.actor_rollout_ref.model.path)
    prompt = ChatPrompt.of(row["raw_prompt"], images=())
    context: dict[str, Any] = {
        "ground_truth": (row.get("reward_model") or {}).get("ground_truth"),
        "extra_info": row.get("extra_info"),
        "conversation_history": prompt.turns[:-1],
        **({} if prompt.system is None else {"system_prompt": prompt.system}),
    }
    action = Action(message=prompt.turns[-1], task_context=TaskContext(**context))
    stops = stop_token_ids(tokenizer)  # the answer itself does not say whether it was cut
    options = {**({"return_routed_experts": True} if replays else {}), **(model_options or {})}
    backends = [ServerManagerBackend(loop.server_manager, sampling_params, stops)]  # and one for each attempt
    environment = None

    def make_model() -> SGLangModel:
        return SGLangModel(
            tokenizer=tokenizer,
            client=backends[-1],
            sampling_params={"max_new_tokens": response_length},
            # verl counts tool results as well.
            limits=Limits(max_sampled_tokens=response_length, max_response_tokens=response_length),
            **options,
        )

    async def attempt() -> Rollout:
        nonlocal environment
        backends.append(ServerManagerBackend(loop.server_manager, sampling_params, stops))
        environment = make_environment(model_factory=make_model)
        result = await environment.rollout(action)
        shape = backends[-1].experts_shape or experts_shape
        return Rollout(samples=samples_from_step(result, experts_shape=shape, placement=None), result=result)

    make_model()  # wrong options raise before any attempt
    rollout = await drive_rollout(attempt, Rollout, retries=retries)
    if isinstance(rollout.error, _WRONG_CODE):
        raise rollout.error
    result, backend = rollout.result, backends[-1]
    # An overridden `step` or `rollout` may give a reward, though not every time.
    own = [getattr(type(environment), name, None) is not getattr(Environment, name) for name in ("rollout", "step")]
    may_score = getattr(environment, "reward_fn", None) is not None or any(own)
    if result is not None and not rollout.end.outcome.is_lost and result.reward is None and not may_score:
        raise ValueError("the environment has no reward function, so nothing would be trained: give it a reward_fn")
    shape = backend.experts_shape or experts_shape
    if replays and shape is None:
        raise InvalidSampleError("the rollout failed before its routed experts had a shape: give experts_shape")
    fields = agent_loop_output(
        rollout.samples,
        prompt_length=int(loop.rollout_config.prompt_length),
        response_length=response_length,
        experts_shape=shape if replays else None,
        end=rollout.end,
    )
    metrics = result.observation.metrics if result is not None else {}
    fields["num_turns"] = int(metrics.get("message_count", 0))
    fields["metrics"] = {
        "generate_sequences": sum(each.seconds for each in backends),
        "tool_calls": float(metrics.get("tool_s", 0.0)),
        "compute_score": float(metrics.get("reward_latency_s", 0.0)),
    }
    fields["extra_fields"] |= _step_fields(backend.steps)  # of all calls, where the path has only some
    return fields


def register_advantage(name: str = "strands_grpo") -> str:
    """Register GRPO advantages that leave rows without loss out of their group, as `algorithm.adv_estimator=<name>`.

    verl's `grpo` counts every row, a failed rollout as one with reward 0. To be called in the process that computes
    advantages: in a module of `VERL_USE_EXTERNAL_MODULES`. The configured `norm_adv_by_std_in_grpo` is honoured.

    Returns:
        The name.
    """
    with written_for("verl"):
        algorithms: Any = importlib.import_module("verl.trainer.ppo.core_algos")
        if name not in algorithms.ADV_ESTIMATOR_REGISTRY:
            algorithms.register_adv_est(name)(_grpo_of_usable_rows)
    return name


def _grpo_of_usable_rows(
    token_level_rewards: Any, response_mask: Any, index: Any, config: Any = None, **_: Any
) -> tuple[Any, Any]:
    usable = (response_mask.sum(-1) > 0).tolist()
    scores = token_level_rewards.sum(-1).tolist()
    values = group_advantages(
        [score if keep else None for score, keep in zip(scores, usable, strict=True)],
        group_ids=list(index),
        rollout_ids=range(len(scores)),
        scale_by_std=bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True,
    )
    advantages = token_level_rewards.new_tensor(values).unsqueeze(-1) * response_mask
    return advantages, advantages


@functools.cache  # asked for in every rollout
def _experts_shape(path: str) -> tuple[int, int] | None:
    """`(layers, top_k)` of the trained model, read as verl's servers read it; None where it has no experts."""
    model: Any = importlib.import_module("transformers").AutoConfig.from_pretrained(path)
    layers, top_k = getattr(model, "num_hidden_layers", None), getattr(model, "num_experts_per_tok", None)
    return None if layers is None or top_k is None else (layers, top_k)


def _step_fields(steps: Sequence[int]) -> dict[str, int]:
    return {"min_global_steps": min(steps), "max_global_steps": max(steps)} if steps else {}


# ---- its server manager ------------------------------------------------------------------------------------------

_LIMIT_NAMES = ("max_tokens", "max_new_tokens")


class ServerManagerBackend(Backend):
    """verl's `server_manager`, for one rollout.

    verl's own sampling parameters are used for every call, with the limit of the reply.

    Args:
        server_manager: verl's.
        sampling_params: Those that verl handed to `run`.
        stop_token_ids: Ids that end a turn. vLLM's servers call a reply that ends with one and a reply that was cut
            `completed` alike.

    Attributes:
        seconds: Spent in calls.
        experts_shape: `(layers, top_k)` of the routed experts of the last answer that had some.
        steps: Training steps whose weights sampled.
    """

    capabilities = Capabilities(
        logprobs=LogprobKind.TEMPERED,
        routed_experts=True,
        weight_versions=True,
        ordered_versions=True,
        session_affinity=True,
        hints={
            "routed_experts": "verl's server returned none; set rollout.enable_rollout_routing_replay",
            "images": "verl's servers are given expanded image tokens, which SGLang expands again: sample rollouts "
            "with images over a client of your own, and hand them to agent_loop_output(..., expander=...)",
        },
    )

    def __init__(
        self, server_manager: Any, sampling_params: Mapping[str, Any], stop_token_ids: Collection[int]
    ) -> None:
        self._manager = server_manager
        self._params = dict(sampling_params)
        self._stops = frozenset(stop_token_ids)
        self._request_id = uuid.uuid4().hex  # one for all turns: the sticky session
        self.seconds = 0.0
        self.experts_shape: tuple[int, int] | None = None
        self.steps: list[int] = []

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """A model call."""
        params = dict(self._params)
        limits = [params.pop(name, None) for name in _LIMIT_NAMES]
        limits.append(request.max_new_tokens)
        # verl's bound is for the whole response, the request's for the rest of it.
        limit = min((value for value in limits if value is not None), default=None)
        if limit is not None:
            params["max_tokens"] = limit
        prompt = request.prompt.tolist()
        started = time.perf_counter()
        try:
            answer = await self._manager.generate(
                request_id=self._request_id, prompt_ids=prompt, sampling_params={**params, "logprobs": True}
            )
        finally:
            self.seconds += time.perf_counter() - started
        ids = checked_ids("token_ids", list(answer.token_ids)[:limit])
        finish = self._finish(answer, ids, limit)
        check_output(ids, finish, vocab_size=request.vocab_size, max_new_tokens=limit)
        logprobs = list(answer.log_probs or [])[: len(ids)]
        if logprobs and len(logprobs) != len(ids):
            raise BackendAnswerError(f"verl's answer has {len(logprobs)} log-probabilities for {len(ids)} tokens")
        experts = None
        if request.experts_from is not None:
            rows = self._experts(getattr(answer, "routed_experts", None), len(prompt) + len(ids) - 1)
            experts = None if rows is None else rows[request.experts_from :].tobytes()
        version = self._version(getattr(answer, "extra_fields", None) or {})
        return GenerateAnswer(
            output_ids=ids,
            finish=finish,
            output_logprobs=checked_logprobs("log_probs", logprobs) if logprobs or not ids else None,
            weight_spans=weight_spans(None, version, len(ids)),
            routed_experts=experts,
            rid=self._request_id,
            prompt_tokens=len(prompt),
        )

    def _finish(self, answer: Any, ids: Sequence[int], limit: int | None) -> Finish:
        """The end of the reply. verl says `stop`, `length`, `aborted` or `abort`, `completed`, or nothing."""
        reason = getattr(answer, "stop_reason", None)
        if reason in ("aborted", "abort"):
            return Finish(type=FinishType.ABORT, message="aborted by verl")
        cut = reason == "length" or (limit is not None and len(answer.token_ids) > limit)
        if ids and not cut and (reason == "stop" or ids[-1] in self._stops):
            return Finish(type=FinishType.STOP, matched=ids[-1])
        return Finish(type=FinishType.LENGTH)

    def _version(self, extra: Mapping[str, Any]) -> str | None:
        step = extra.get("global_steps")
        first, last = extra.get("min_global_steps", step), extra.get("max_global_steps", step)
        versions = [int(value) for value in (first, last, step) if value is not None]
        self.steps += versions
        # Of a reply that several versions sampled verl does not say which token is whose.
        return str(versions[0]) if len(set(versions)) == 1 else None

    def _experts(self, experts: Any, rows: int) -> Any:
        """Rows of positions `[0, rows)` as little-endian int32, or None where they are missing."""
        if experts is None:
            return None
        table = np.asarray(experts)
        if table.ndim != 3 or len(table) < rows:
            raise BackendAnswerError(f"verl's routed experts are {table.shape}, expected {rows} rows [layers, top_k]")
        self.experts_shape = (table.shape[1], table.shape[2])
        return np.ascontiguousarray(table[:rows], dtype="<i4")


def stop_token_ids(tokenizer: Any) -> frozenset[int]:
    """Ids a reply may end with: the special tokens of a tokenizer, its end of sequence among them."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {token_id for token_id, token in added.items() if getattr(token, "special", False)}
    eos = getattr(tokenizer, "eos_token_id", None)
    ends = eos if isinstance(eos, list | tuple) else [] if eos is None else [eos]
    return frozenset([*special, *(getattr(tokenizer, "all_special_ids", None) or ()), *ends])
