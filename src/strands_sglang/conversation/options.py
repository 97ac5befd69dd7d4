"""The options of `SGLangModel`, checked where they are set."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, TypedDict

from ..backends import Backend, SamplingParams
from ..exceptions import check_positive, did_you_mean
from ..template import ControlTokens, DroppedContent
from ..trajectory.media import ImageEncoding


class ReasoningPolicy(StrEnum):
    """Fate of earlier reasoning at a new user turn, where the template drops it."""

    APPEND = "append"
    """Keep everything in one sequence; the template's own switch to keep reasoning is set where it has one."""
    BRANCH = "branch"
    """Start a new path whose prompt is the history as the template prints it: the context the model sees at
    inference."""


class AbortPolicy(StrEnum):
    """Response to an abort by the server (weight update, pause, operator)."""

    RESUME = "resume"
    """Continue from the partial tokens within the remaining budget."""
    SURFACE = "surface"
    """Record the partial turn, mark it, and end the agent loop with stop reason `aborted`."""


class RefusedResults(StrEnum):
    """Fate of a tool result that cannot be shown, such as a document, a broken image, or any for a model of text."""

    RAISE = "raise"
    """The next call raises `MessageConversionError` or `TemplateError`. The result stays in the agent's messages, so
    every later call raises too until it is replaced; the error's `index` says where it is."""
    REPORT = "report"
    """The model reads in its place that it cannot be shown, in an error result if nothing else is in it; the agent's
    messages hold those words."""


class InjectedContext(StrEnum):
    """Fate of blocks that the SDK folds into the last message for one call only (`ContextInjector`, memory)."""

    RERENDER = "rerender"
    """The next call, whose history lacks them, starts a new path: the model sees what it sees at inference."""
    KEEP = "keep"
    """They stay where the model read them, and the next call extends the path."""


class MalformedCalls(StrEnum):
    """Fate of a tool call that cannot be parsed. The turn keeps a record of it in any case."""

    RENAME = "rename"
    """A call whose name carries the error, so that a caller who checks names refuses it by itself."""
    KEEP = "keep"
    """A call under its own name; the caller answers it (`ToolCall.error` of the turn) without running the tool."""
    TEXT = "text"
    """No call: the text as it was sampled."""


class SGLangConfig(TypedDict, total=False):
    """The options of a conversation or model; all of them can be changed by `update_config`."""

    model_id: str | None
    """Name for telemetry."""
    context_window_limit: int | None
    """Context length in tokens; None asks the client."""
    sampling_params: Mapping[str, Any]
    """`strands_sglang.backends.SamplingParams`, e.g. `{"temperature": 1.0, "max_new_tokens": 1024}`."""
    return_logprob: bool
    """Ask for log-probabilities of sampled tokens (default True); the prefix cache stays usable."""
    return_prompt_logprobs: bool | Literal["appended"]
    """Score prompt tokens too. "appended" (default) scores what is appended to a path, such as tool results: `logprobs`
    after the first prompt are then numbers throughout, and the prefix cache stays usable. True also scores the first
    prompt of a path, which bypasses the cache. False scores none: `logprobs` is None wherever nothing was sampled."""
    prompt_logprobs_limit: int | None
    """A longer addition is not scored (default 32768 tokens; None is no limit): `logprobs` is None there."""
    return_routed_experts: bool
    """Ask for the experts each token was routed to. Where the server has none (a dense model, a missing server flag)
    `routed_experts` is None, with one warning."""
    require_routed_experts: bool
    """Make that an error."""
    return_sampling_mask: bool
    """Ask for the tokens that survived top-k and top-p at each step."""
    enable_thinking: bool | None
    """Shorthand for the template argument of that name."""
    chat_template_kwargs: Mapping[str, Any]
    """Arguments of the chat template, fixed for a trajectory."""
    reasoning_policy: ReasoningPolicy | Literal["append", "branch"]
    control_tokens: ControlTokens | Literal["split", "error", "allow"]
    """Fate of `<|im_end|>` and the like in the text of messages and tools, see `ControlTokens`: ordinary text (`split`,
    default), an error, or the control token."""
    dropped_content: DroppedContent | Literal["separate", "error", "allow"]
    """Response to a template that would drop text or calls of past turns from a history rendered anew, see
    `DroppedContent`: text as a message of its own (`separate`, default), an error, or nothing."""
    refused_results: RefusedResults | Literal["raise", "report"]
    injected_context: InjectedContext | Literal["rerender", "keep"]
    abort_policy: AbortPolicy | Literal["resume", "surface"]
    abort_timeout: float | None
    """Seconds without progress after which a resumed call fails (default 600)."""
    max_sampled_tokens: int | None
    """Budget of sampled tokens over the episode (until `reset`)."""
    max_trajectory_tokens: int | None
    """Budget of tokens of one path, prompt included."""
    max_response_tokens: int | None
    """Budget of tokens of one path behind its first prompt, tool results included."""
    routing_key: str | None
    """Session affinity key for routers; None makes one an episode."""
    max_image_pixels: int | None
    """A limit on the pixels of an image below that of the model's processor, or None (default)."""
    image_encoding: ImageEncoding | Literal["png", "jpeg"]
    """Encoding in which images travel: lossless (`png`, default), or smaller and less exact, see `ImageEncoding`."""
    prove_images: Literal["first", "always"]
    """When the server has to show how it expanded the images of a prompt: in the first call of a path with images
    (default), or in each."""
    request_fields: Mapping[str, Any]
    """Fields of the backend's own in every request, e.g. `{"priority": 1}`."""


DEFAULTS: SGLangConfig = {
    "model_id": None,
    "context_window_limit": None,
    "sampling_params": {},
    "return_logprob": True,
    "return_prompt_logprobs": "appended",
    "prompt_logprobs_limit": 32768,  # SGLang answers 25 to 30 bytes of JSON for each
    "return_routed_experts": False,
    "require_routed_experts": False,
    "return_sampling_mask": False,
    "enable_thinking": None,
    "chat_template_kwargs": {},
    "reasoning_policy": ReasoningPolicy.APPEND,
    "control_tokens": ControlTokens.SPLIT,
    "dropped_content": DroppedContent.SEPARATE,
    "refused_results": RefusedResults.RAISE,
    "injected_context": InjectedContext.RERENDER,
    "abort_policy": AbortPolicy.RESUME,
    "abort_timeout": 600.0,
    "max_sampled_tokens": None,
    "max_trajectory_tokens": None,
    "max_response_tokens": None,
    "routing_key": None,
    "max_image_pixels": None,
    "image_encoding": ImageEncoding.PNG,
    "prove_images": "first",
    "request_fields": {},
}

SAMPLING_NAMES = frozenset(SamplingParams.model_fields)
"""Names that belong into `sampling_params`: as options they are refused with a sentence that says so."""


def merge_options(current: SGLangConfig, changes: Mapping[str, Any], backend: Backend | None = None) -> SGLangConfig:
    """A new configuration with some options changed; the backend, where there is one, checks its own.

    Raises:
        TypeError: An option does not exist; the message names the nearest one.
        ValueError: An option has a wrong value.
    """
    merged = dict(current)
    for name, value in changes.items():
        if name not in DEFAULTS:
            if name in SAMPLING_NAMES:
                raise TypeError(f"{name!r} is a sampling parameter: write sampling_params={{{name!r}: {value!r}}}")
            hint = did_you_mean(name, DEFAULTS) or f"; known are {', '.join(sorted(DEFAULTS))}"
            raise TypeError(f"unknown option {name!r}{hint}")
        if backend is not None and name == "sampling_params":
            merged[name] = backend.check_sampling_params(value or {})
        elif backend is not None and name == "request_fields" and isinstance(value, Mapping):
            merged[name] = backend.check_fields(value)
        else:
            merged[name] = _check(name, value)
    return merged  # type: ignore[return-value]


def _check(name: str, value: Any) -> Any:
    if name in ("chat_template_kwargs", "request_fields"):
        if not isinstance(value, Mapping | None):
            raise ValueError(f"{name} must be a mapping, got {value!r}")
        return dict(value or {})
    default: Any = DEFAULTS[name]  # type: ignore[literal-required]
    if isinstance(default, StrEnum):
        try:
            return type(default)(value)
        except ValueError:
            raise ValueError(f"{name} must be one of {[*map(str, type(default))]}, got {value!r}") from None
    if name == "prove_images" and value not in ("first", "always"):
        raise ValueError(f"prove_images must be 'first' or 'always', got {value!r}")
    if name == "return_prompt_logprobs" and value == "appended":
        return value
    if name.startswith(("return_", "require_")):
        if not isinstance(value, bool):
            choices = "True, False or 'appended'" if name == "return_prompt_logprobs" else "True or False"
            raise ValueError(f"{name} must be {choices}, got {value!r}")
    elif name.startswith("max_") or name.endswith("_limit"):
        check_positive(whole=True, optional=True, zero=name == "max_response_tokens", **{name: value})
    elif name == "abort_timeout":
        check_positive("seconds", optional=True, zero=True, **{name: value})
    elif name == "enable_thinking" and not isinstance(value, bool | None):
        raise ValueError(f"enable_thinking must be True, False or None (the template's default), got {value!r}")
    return value
