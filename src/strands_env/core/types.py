"""The values of an episode: its action, its result, and its reward function."""

from __future__ import annotations

import difflib
import inspect
import json
import logging
import math
import reprlib
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainSerializer,
    Strict,
    ValidationInfo,
    computed_field,
    model_validator,
)
from strands.models import Model

from strands_sglang.trajectory import Trajectory as Trajectory
from strands_sglang.trajectory import WeightSpan
from strands_sglang.trajectory.tokens import TokenSequence

from .chat_messages import ChatPrompt, spoken_text
from .identity import record_arguments
from .jsonable import JsonValues, PartedModel, StoredModel, decode_stored, exact
from .notebook import episode_html
from .termination import End, ErrorRecord, Outcome, TerminationReason, ToolErrorRecord

logger = logging.getLogger(__name__)

ModelFactory: TypeAlias = Callable[[], Model]
"""Makes a fresh model."""


def check_factory(factory: object, name: str) -> None:
    """Refuse a name, or another object that cannot be called, in place of a factory of models."""
    if not callable(factory):
        raise TypeError(
            f"{name}={factory!r:.200}: expected a function that makes a fresh model, such as "
            "sglang_model_factory(...) or lambda: SGLangModel(...)"
        )


def check_model(model: object, factory: str) -> Model:
    """The product of a factory, if it is a model. The SDK would take None, or a name, for a model of its own choice."""
    if not isinstance(model, Model):
        raise TypeError(f"{factory} must return a model, an instance of strands.models.Model, got {model!r:.200}")
    return model


_JSON = ConfigDict(ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64")
TokenObservation: TypeAlias = TokenSequence
"""The tokens of one path: the first prompt, then everything sampled and every tool result, in order."""
WeightVersionSpan: TypeAlias = WeightSpan
"""Tokens `[start, end)` were sampled with weights of this version (None where the server reports none)."""
MessageDict: TypeAlias = dict[str, Any]
"""A Strands message: `{"role": "user" or "assistant", "content": [block, ...]}`, with the keys that the SDK adds."""

JsonMessages = Annotated[
    list[MessageDict],
    BeforeValidator(decode_stored),
    PlainSerializer(exact, when_used="json"),
]
"""Messages that survive JSON: images and documents are bytes, and are written as the SDK's sessions write them.

Plain dictionaries on purpose: a typed message would drop the keys its type does not know.
"""


_OLD_NAMES = frozenset(name for name in dir(BaseModel) if not name.startswith(("_", "model_")))
"""Methods of pydantic 1 (`schema`, `json`, `copy`, ...) that every model still has: data of these names comes first."""


_OF_ACTIONS = frozenset({"message", "prompt", "text", "task_context"})
"""Names that an `Action` has itself: one of a task's fields could not be read on it."""


@lru_cache(maxsize=1024)
def check_name(owner: type, name: str) -> None:
    """Refuse a further field that hides an attribute; say once that one of `TaskContext` was probably meant."""
    if hasattr(owner, name) and name not in _OLD_NAMES:
        raise ValueError(f"a field {name!r} would hide {owner.__name__}.{name}: rename it")
    if name in _OF_ACTIONS:
        raise ValueError(f"the task has a field {name!r}, which means the prompt on an Action: rename it")
    for meant in difflib.get_close_matches(name, TaskContext.model_fields, n=1, cutoff=0.85):  # not `idx` for `id`
        logger.warning("field=<%s> | kept as a further field, did you mean %s?", name, meant)


class TaskContext(StoredModel):
    """Context for the reward: identity, ground truth, history; any further field is kept.

    A field may have any name but those that a model needs itself (`model_...` and the like), which are refused. Read
    one that is no identifier by `context.model_extra["Due Date"]`.

    Attributes:
        id: Identity of the task. Give one where results are compared or resumed; the default is random.
        ground_truth: The expected answer, in the form that the reward function reads.
        conversation_history: Messages before this action, for episodes of several steps.
        system_prompt: The task's own system prompt, text, in place of the environment's; None for that one. It is kept
            like any further field.

    Example:
        TaskContext(id="sums/17", ground_truth="4", difficulty="easy")
    """

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    ground_truth: Any = None
    conversation_history: JsonMessages = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.__pydantic_extra__ or ():
            check_name(type(self), name)
        return self


class _DataFirst:
    """A method of a model's base, unless the task has data of its name. It costs other attributes nothing."""

    def __init__(self, owner: type[BaseModel], name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, cls: type[BaseModel]) -> Any:
        context = getattr(instance, "task_context", instance)
        if context is not None and self._name in (context.__pydantic_extra__ or ()):
            return context.__pydantic_extra__[self._name]
        return getattr(super(self._owner, cls if instance is None else instance), self._name)


for _name in _OLD_NAMES:
    setattr(TaskContext, _name, _DataFirst(TaskContext, _name))


def system_prompt_of(context: TaskContext) -> str | None:
    """The task's own system prompt; `TypeError` for one that is not text."""
    found = (context.model_extra or {}).get("system_prompt")
    if found is not None and not isinstance(found, str):
        raise TypeError(
            f"the system_prompt of a task is text, got {found!r:.100}: rename the field if it means another"
        )
    return found


def _read_chat(data: Any) -> Any:
    message = data.get("message") if isinstance(data, dict) else None
    if type(message) is str:  # nearly all of them
        return data
    if isinstance(message, Mapping) and "role" in message and isinstance(message.get("content"), str):
        message = [message]
    elif isinstance(message, tuple):
        message = list(message)
        data = {**data, "message": message}
    if not isinstance(message, list) or not all(isinstance(each, Mapping) for each in message):
        return data
    if not message:
        raise ValueError("message is empty: expected text, content blocks or chat messages, of which the last is asked")
    if not any("role" in each for each in message):
        return data
    prompt = ChatPrompt.of(message, images=())
    context = data.get("task_context")
    context = TaskContext() if context is None else TaskContext.model_validate(context)
    if context.conversation_history and len(prompt.turns) > 1:
        raise ValueError("message holds a whole conversation, and task_context.conversation_history another: give one")
    changes: dict[str, Any] = {"conversation_history": context.conversation_history or prompt.turns[:-1]}
    if prompt.system is not None:
        if system_prompt_of(context) not in (None, prompt.system):
            raise ValueError("message holds a system message, and task_context.system_prompt is another: give one")
        changes["system_prompt"] = prompt.system
    return {"message": prompt.turns[-1], "task_context": context.model_copy(update=changes)}


def _check_message(message: Any, info: ValidationInfo) -> Any:
    message = decode_stored(message, info)
    if isinstance(message, dict) and not isinstance(message.get("content"), list):
        raise ValueError(
            f"a message is {{'role': ..., 'content': [blocks]}}, got {message!r}: give the content as a list of blocks"
        )
    is_blocks = isinstance(message, list) and all(isinstance(block, dict) for block in message)
    if not (is_blocks or isinstance(message, str | dict)):
        raise ValueError(f"expected text, a list of content blocks or a message, got {message!r:.100}")
    return message


class Action(StoredModel):
    """A task for the agent.

    Attributes:
        message: The prompt: text, a list of Strands content blocks, a Strands message (its content is used), or a list
            of chat messages (`{"role": ..., "content": text}`): the last becomes the message, those before it the
            `conversation_history` of the context, and a system message its `system_prompt`.
        task_context: Context for the reward. Its fields are attributes of the action too.

    Example:
        Action(message="What is 2 + 2?", task_context=TaskContext(ground_truth="4"))
    """

    # A field that would be dropped is refused: the reward would miss it without a word.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    message: Annotated[
        str | MessageDict | list[dict[str, Any]],
        BeforeValidator(_check_message),
        PlainSerializer(exact, when_used="json"),
    ]
    task_context: TaskContext = Field(default_factory=TaskContext)

    _elsewhere: ClassVar = {
        **dict.fromkeys(("prompt", "text", "question", "content"), " (did you mean 'message'?)"),
        "*": "; what a reward reads goes into task_context=TaskContext(NAME=...)",
    }
    _chat = model_validator(mode="before")(_read_chat)

    if not TYPE_CHECKING:  # type checkers know the fields

        def __getattr__(self, name: str) -> Any:
            context = None if name.startswith("_") else self.__dict__.get("task_context")
            if context is not None and (name in type(context).model_fields or name in (context.model_extra or ())):
                return getattr(context, name)
            return super().__getattr__(name)

    @property
    def prompt(self) -> str | list[dict[str, Any]]:
        """The message as `Agent.invoke_async` takes it: text or content blocks."""
        return self.message["content"] if isinstance(self.message, dict) else self.message

    @property
    def text(self) -> str:
        """The text of the message; blocks without text are left out."""
        prompt = self.prompt
        return prompt if isinstance(prompt, str) else "\n".join(block["text"] for block in prompt if "text" in block)


for _name in _OLD_NAMES:
    setattr(Action, _name, _DataFirst(Action, _name))


@lru_cache(maxsize=1024)
def shared_text(text: str | None) -> str | None:
    """The text itself, one object for equal ones: every sample of a run holds the text of its tools."""
    return text


def tools_as_text(specs: Iterable[Mapping[str, Any]]) -> str | None:
    """Tool specs as JSON text of the `tools` of a chat template; None without tools."""
    from strands_sglang.conversation.messages import format_tool_specs

    tools = format_tool_specs(specs)
    return shared_text(json.dumps(tools, default=str)) if tools else None


class Observation(StoredModel):
    """The outcome of one step, before it is scored.

    Attributes:
        messages: The messages of this step, the action's own message first; the history before it is not repeated.
        tokens: The token trajectory of the last model call, or None where the model provider has no token data.
        metrics: Counts and times, see `strands_env.core.Metrics`.
        history: The messages before this step's where they are not the task's own `conversation_history`, because the
            environment changed them; None where they are.
        tools: The tools at the end of the step, as JSON text of a list of function schemas, the form in which chat
            templates take them (`{"type": "function", "function": {"name", "description", "parameters"}}`). None
            without tools, and where a saved sample was read without its tokens.

    Example:
        `observation.final_response` is "It is 4."; `observation.tokens.loss_mask` is 1 for each sampled token.
    """

    model_config = _JSON

    messages: JsonMessages = Field(default_factory=list)
    tokens: TokenObservation | None = None
    metrics: JsonValues = Field(default_factory=dict)
    system_prompt: str | None = None
    history: JsonMessages | None = None
    tools: Annotated[str | None, AfterValidator(shared_text)] = None

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        # Counts: a notebook shows the value of a cell, and one episode would fill it.
        yield "messages", len(self.messages)
        yield "tokens", None if self.tokens is None else len(self.tokens)

    @property
    def final_response(self) -> str | None:
        """The text of the answer, or None when the episode did not end with one."""
        return self.get_final_response(self.messages)

    @staticmethod
    def get_final_response(messages: list[MessageDict]) -> str | None:
        """The last text block of the last message, without thinking before it, if the assistant wrote it."""
        if not messages or messages[-1].get("role") != "assistant":
            return None
        return spoken_text(messages[-1], last=True) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanReward:
    """A reward, a finite number, for the tokens `[start, end)` of `observation.tokens`.

    Example:
        SpanReward(start=120, end=164, reward=-0.5)
    """

    start: int
    end: int
    reward: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise ValueError(f"the reward of a span must be a finite number, got {self.reward!r}")


def _check_score(value: Any, info: ValidationInfo) -> Any:
    if type(value) is float or (type(value) is not bool and isinstance(value, Real)):
        return value
    kind = ValueError if info.mode == "json" else TypeError  # as for any other wrong argument, one sentence
    raise kind(f"a reward is a finite number, or None to abstain, got {value!r:.100}")


Score: TypeAlias = Annotated[
    # A plain number needs no call of ours.
    Annotated[FiniteFloat, Strict()] | Annotated[FiniteFloat, BeforeValidator(_check_score)],
    Field(union_mode="left_to_right"),
]


class RewardResult(StoredModel):
    """A score, or an abstention.

    Attributes:
        reward: The score, or None when the reward function abstains (a judge that cannot tell). Never 0 for "unknown".
        info: Anything worth keeping about the score; JSON values.
        turn_rewards: A score by index of the reply in the step, where turns are scored.
        span_rewards: A score by token span, where spans are scored.
        error: Why there is no score, where scoring itself broke: such a result is a failure (`REWARD_ERROR`), not an
            abstention.

    Example:
        RewardResult(reward=1.0, info={"matched": "exactly"}), or RewardResult() to abstain
    """

    model_config = _JSON
    _elsewhere: ClassVar = {"score": " (did you mean 'reward'?)", "*": "; further facts go into info={'NAME': ...}"}

    reward: Score | None = None
    info: JsonValues = Field(default_factory=dict)
    turn_rewards: dict[int, Score] = Field(default_factory=dict)
    span_rewards: list[SpanReward] = Field(default_factory=list)
    error: ErrorRecord | None = None


MAX_STATE_BYTES = 1_000_000
"""Size of a state, as JSON in ASCII."""
MAX_STATE_DEPTH = 100
"""Levels of a state."""


class StateError(ValueError):
    """A state that cannot be kept: it is not JSON, or too large."""


def check_state(state: Any) -> Any:
    """A copy of a state as JSON values; tuples become lists.

    Raises:
        StateError: A part of it is not JSON, or it is larger than `MAX_STATE_BYTES`.
    """

    def copy_of(value: Any, where: str, levels: int) -> Any:
        if levels == 0:
            raise StateError(f"the state has more than {MAX_STATE_DEPTH} levels at state{where}: return it flatter")
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return value
        match value:
            case dict() if all(type(name) is str for name in value):
                return {
                    name: copy_of(item, f"{where}[{reprlib.repr(name)}]", levels - 1) for name, item in value.items()
                }
            case list() | tuple():
                return [copy_of(item, f"{where}[{number}]", levels - 1) for number, item in enumerate(value)]
        wanted = "dictionaries with texts as keys, lists, texts, finite numbers, True, False and None"
        raise StateError(f"state{where} is {reprlib.repr(value)}, which is not JSON: return {wanted}")

    copied = copy_of(state, "", MAX_STATE_DEPTH)
    if copied is not None and (size := len(json.dumps(copied))) > MAX_STATE_BYTES:
        raise StateError(
            f"the state is {size:,} bytes of JSON, and at most {MAX_STATE_BYTES:,} are kept: return counts or digests "
            "of what is large"
        )
    return copied


def _read_state(value: Any, info: ValidationInfo) -> Any:
    return check_state(decode_stored(value, info))


_PARTS_OF_END = (("termination_reason", "reason"), ("outcome", "outcome"), ("error", "error"))


class StepResult(PartedModel, StoredModel):
    """The result of `Environment.step`.

    Attributes:
        reward: The reward; None without a reward function and for failed rollouts. Where scoring broke, it may be
            present without a number, for its `info`.
        end: The end of the episode. `termination_reason`, `outcome` and `error` are its parts: the constructor takes
            them, the first and the last can be set, and JSON has them.
        state: What `Environment.get_state` returned, JSON values; None where it returned nothing, or was not asked.
        cleanup_error: The error of `cleanup()` after a `rollout`, which takes nothing away from the result.
        tool_errors: Exceptions that tools raised, the first of them; `metrics["tool_exceptions"]` counts them all.
        trajectories: Token trajectories of all agents and branches; empty where the provider has no token data.
        is_seeded: Its models sampled by the seed of the rollout. Not written: a record has the seed, or has none.

    Example:
        `result.reward.reward`, `result.termination_reason`, `result.observation.messages`
    """

    model_config = _JSON

    observation: Observation
    reward: RewardResult | None = None
    end: End = Field(default=End(), exclude=True)
    state: Annotated[Any, BeforeValidator(_read_state), PlainSerializer(exact, when_used="json")] | None = None
    cleanup_error: ErrorRecord | None = None
    tool_errors: list[ToolErrorRecord] = Field(default_factory=list)
    trajectories: list[Trajectory] = Field(default_factory=list)
    is_seeded: bool = Field(default=False, exclude=True)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            observation: Observation,
            reward: RewardResult | None = None,
            end: End = ...,
            termination_reason: TerminationReason = ...,
            outcome: Outcome = ...,
            error: ErrorRecord | None = None,
            state: Any = None,
            cleanup_error: ErrorRecord | None = None,
            tool_errors: list[ToolErrorRecord] = ...,
            trajectories: list[Trajectory] = ...,
            is_seeded: bool = False,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _make_end(cls, data: Any) -> Any:
        end = {}
        for name, part in _PARTS_OF_END if isinstance(data, dict) else ():
            if name in data:
                end[part] = data[name]
        return {**data, "end": end} if end else data

    @computed_field  # type: ignore[prop-decorator]
    @property
    def termination_reason(self) -> TerminationReason:
        """The reason of the end."""
        return self.end.reason

    @termination_reason.setter
    def termination_reason(self, reason: TerminationReason) -> None:
        self.end = End(reason, error=self.error)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def outcome(self) -> Outcome:
        """Who is responsible for the end: the policy (scored), the grader, or infrastructure."""
        return self.end.outcome

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> ErrorRecord | None:
        """The error of the end; None for normal ends and limits."""
        return self.end.error

    @error.setter
    def error(self, error: ErrorRecord | None) -> None:
        self.end = End(self.end.reason, error=error)

    def _repr_html_(self) -> str:
        reward = None if self.reward is None else self.reward.reward
        seconds = self.observation.metrics.get("wall_s")
        title = f"reward {'–' if reward is None else f'{reward:g}'} · {self.termination_reason.value.replace('_', ' ')}"
        title += f" · {seconds:.1f} s" if isinstance(seconds, float) else ""
        paths = [trajectory._repr_html_() for trajectory in self.recorded_trajectories]
        return episode_html(title, self.error, self.observation.messages, paths)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        yield "reward", None if self.reward is None else self.reward.reward
        yield "termination_reason", self.termination_reason.value
        if self.error is not None:
            yield "error", str(self.error)[:80]
        yield from self.observation.__repr_args__()
        yield "trajectories", len(self.trajectories)

    @property
    def main_trajectory(self) -> Trajectory | None:
        """The path of the last answer of the environment's own agent, or None where there is none."""
        return next((trajectory for trajectory in self.recorded_trajectories if trajectory.is_main), None)

    @property
    def recorded_trajectories(self) -> list[Trajectory]:
        """All trajectories; the observed path where there is no other."""
        tokens = self.observation.tokens
        if self.trajectories or tokens is None:
            return self.trajectories
        return [Trajectory(agent_name="agent", tokens=tokens, is_main=True)]

    def to_json(self) -> str:
        """The whole result as JSON; `from_json` gives an equal result back. Same as `model_dump_json`."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, data: str | bytes) -> Self:
        """The result that `to_json` wrote; `pydantic.ValidationError` for other JSON."""
        return cls.model_validate_json(data)

    def to_bytes(self) -> bytes:
        """The whole result, compressed, about 13 bytes a token; `from_bytes` gives an equal result back."""
        return zlib.compress(self.to_json().encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The result that `to_bytes` wrote; `ValueError` for other data."""
        try:
            return cls.from_json(zlib.decompress(data))
        except zlib.error as error:
            raise ValueError(f"the data is not a result, or is damaged or cut off: {error}") from error


class RewardFunction(ABC):
    """Scores a step. Subclass it, or give the environment a plain function of the same arguments.

    Example:
        class Exact(RewardFunction):
            async def compute(self, action, step_result):
                answer = step_result.observation.final_response
                return RewardResult(reward=float(answer == action.task_context.ground_truth))

    A saved run is resumed only with the same reward: its class, the source of its module, and the arguments of its
    constructor. Where these do not tell two rewards apart, add a method `identity(self)` that returns JSON values.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if inspect.isfunction(init := vars(cls).get("__init__")):
            cls.__init__ = record_arguments(init)  # type: ignore[method-assign]

    @abstractmethod
    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Score one step.

        Args:
            action: The task, with the ground truth in its context.
            step_result: The outcome; its own `reward` is not set yet.

        Returns:
            The reward. `RewardResult(reward=None)` abstains. An exception makes the step's reward None and its
            termination reason `REWARD_ERROR`, and loses nothing else.
        """
