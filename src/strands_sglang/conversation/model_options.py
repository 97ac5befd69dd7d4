"""The options of `SGLangModel`, checked where they are set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, cast, get_type_hints

from ..backends import Backend, SamplingParams
from ..exceptions import check_choice, check_positive, did_you_mean
from ..limits import Limits
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
    """The next call, whose history lacks them, starts a new path: the model sees the same context as at inference."""
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


class Option(NamedTuple):
    """The default of an option, and its check, which takes its name and a value and returns the value to keep."""

    default: Any
    check: Callable[[str, Any], Any] = lambda name, value: value


def _whole(name: str, value: Any, *, zero: bool = False) -> Any:
    check_positive(whole=True, optional=True, zero=zero, **{name: value})
    return value


def _seconds(name: str, value: Any) -> Any:
    check_positive("seconds", optional=True, zero=True, **{name: value})
    return value


def _mapping(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping | None):
        raise ValueError(f"{name} must be a mapping, got {value!r}")
    return dict(value or {})


def _one_of(*choices: Any, note: str = "") -> Callable[[str, Any], Any]:
    *first, last = map(repr, choices)

    def check(name: str, value: Any) -> Any:
        if not any(value == choice and type(value) is type(choice) for choice in choices):  # 1 is not True
            raise ValueError(f"{name} must be {', '.join(first)} or {last}{note}, got {value!r}")
        return value

    return check


_flag = _one_of(True, False)


def _choice(default: StrEnum) -> Option:
    """An option that is a member of an enumeration, or its value."""
    kind = type(default)

    def check(name: str, value: Any) -> Any:
        check_choice(kind, **{name: value})
        return kind(value)

    return Option(default, check)


class SGLangConfig(TypedDict, total=False):
    """The options of a conversation or model, each with its default; all of them can be changed by `update_config`."""

    model_id: Annotated[str | None, Option(None)]
    """Name for telemetry."""
    context_window_limit: Annotated[int | None, Option(None, _whole)]
    """Context length in tokens; None asks the client."""
    sampling_params: Annotated[Mapping[str, Any], Option({})]
    """`strands_sglang.backends.SamplingParams`, e.g. `{"temperature": 1.0, "max_new_tokens": 1024}`."""
    return_logprob: Annotated[bool, Option(True, _flag)]
    """Ask for log-probabilities of sampled tokens; the prefix cache stays usable."""
    return_prompt_logprobs: Annotated[bool | Literal["appended"], Option("appended", _one_of(True, False, "appended"))]
    """Score prompt tokens too. "appended" scores additions to a path, such as tool results: `logprobs`
    after the first prompt are then numbers throughout, and the prefix cache stays usable. True also scores the first
    prompt of a path, which bypasses the cache. False scores none: `logprobs` is None wherever nothing was sampled."""
    prompt_logprobs_limit: Annotated[int | None, Option(32768, _whole)]
    """A longer addition is not scored, for SGLang answers 25 to 30 bytes a token: `logprobs` is None there. None is no
    limit."""
    return_routed_experts: Annotated[bool, Option(False, _flag)]
    """Ask for the experts each token was routed to. Where the server has none (a dense model, a missing server flag)
    `routed_experts` is None, with one warning."""
    require_routed_experts: Annotated[bool, Option(False, _flag)]
    """Make that an error."""
    return_sampling_mask: Annotated[bool, Option(False, _flag)]
    """Ask for the tokens that survived top-k and top-p at each step."""
    enable_thinking: Annotated[bool | None, Option(None, _one_of(True, False, None, note=" (the template's default)"))]
    """Shorthand for the template argument of that name."""
    chat_template_kwargs: Annotated[Mapping[str, Any], Option({}, _mapping)]
    """Arguments of the chat template, fixed for a trajectory."""
    reasoning_policy: Annotated[ReasoningPolicy | Literal["append", "branch"], _choice(ReasoningPolicy.APPEND)]
    control_tokens: Annotated[ControlTokens | Literal["split", "error", "allow"], _choice(ControlTokens.SPLIT)]
    """Fate of `<|im_end|>` and the like in the text of messages and tools, see `ControlTokens`: ordinary text (`split`,
    default), an error, or the control token."""
    dropped_content: Annotated[DroppedContent | Literal["separate", "error", "allow"], _choice(DroppedContent.SEPARATE)]
    """Response to a template that would drop text or calls of past turns from a history rendered anew, see
    `DroppedContent`: text as a separate message (`separate`, default), an error, or nothing."""
    refused_results: Annotated[RefusedResults | Literal["raise", "report"], _choice(RefusedResults.REPORT)]
    injected_context: Annotated[InjectedContext | Literal["rerender", "keep"], _choice(InjectedContext.RERENDER)]
    abort_policy: Annotated[AbortPolicy | Literal["resume", "surface"], _choice(AbortPolicy.RESUME)]
    abort_timeout: Annotated[float | None, Option(600.0, _seconds)]
    """Seconds without progress after which a resumed call fails."""
    max_sampled_tokens: Annotated[int | None, Option(None, _whole)]
    """Budget of sampled tokens over the episode (until `reset`)."""
    max_trajectory_tokens: Annotated[int | None, Option(None, _whole)]
    """Budget of tokens of one path, prompt included."""
    max_response_tokens: Annotated[int | None, Option(None, partial(_whole, zero=True))]
    """Budget of tokens of one path behind its first prompt, tool results included."""
    routing_key: Annotated[str | None, Option(None)]
    """Session affinity key for routers; None makes one an episode."""
    max_image_pixels: Annotated[int | None, Option(None, _whole)]
    """A limit on the pixels of an image below that of the model's processor, or None."""
    image_encoding: Annotated[ImageEncoding | Literal["png", "jpeg"], _choice(ImageEncoding.PNG)]
    """Encoding in which images travel: lossless (`png`, default), or smaller and less exact, see `ImageEncoding`."""
    request_fields: Annotated[Mapping[str, Any], Option({}, _mapping)]
    """Fields of the backend's own in every request, e.g. `{"priority": 1}`."""


class ModelOptions(SGLangConfig, total=False):
    """The options, and several budgets as one."""

    limits: Limits | None


_OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(SGLangConfig, include_extras=True).items()
}
DEFAULTS = cast(SGLangConfig, {name: option.default for name, option in _OPTIONS.items()})

SAMPLING_NAMES = frozenset(SamplingParams.model_fields)
"""Names that belong into `sampling_params`: as options they are refused with a sentence that says so."""


def merge_options(current: SGLangConfig, changes: Mapping[str, Any], backend: Backend | None = None) -> SGLangConfig:
    """A new configuration with some options changed; the backend, where there is one, checks its own.

    Raises:
        TypeError: An option does not exist; the message names the nearest one.
        ValueError: An option has a wrong value.
    """
    merged = dict(current)
    named = {name: value for name, value in changes.items() if name != "limits"}
    limits = changes.get("limits")
    budgets = {} if limits is None else Limits.of(limits).set_ones("tokens", owner="a model")
    for name, value in {**budgets, **named}.items():
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
            merged[name] = _OPTIONS[name].check(name, value)
    return merged  # type: ignore[return-value]
