"""`strands-rollout/...`: a model provider of inspect_ai whose samples are exact trajectories.

Each sample has a conversation, so any solver or agent gives paths: `Seat` is the policy's place in one sample. The
provider finds it by the sample's transcript; an episode of `InspectEnvironment` brings its own.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from inspect_ai.event import SpanBeginEvent
from inspect_ai.log import Transcript, transcript
from inspect_ai.model import ChatMessage, GenerateConfig, ModelAPI, ModelOutput, modelapi
from inspect_ai.tool import ToolChoice, ToolInfo
from inspect_ai.util import LimitExceededError, current_span_id
from strands.types.exceptions import ContextWindowOverflowException

from strands_env.core import ModelFactory
from strands_env.core.backends import BACKENDS, model_factory_from_args
from strands_sglang.conversation import Conversation
from strands_sglang.conversation.model_options import MalformedCalls
from strands_sglang.exceptions import BackendAbortedError, TokenBudgetReachedError
from strands_sglang.gateway.answers import Answer
from strands_sglang.gateway.canonical import Readings
from strands_sglang.gateway.counters import Counters
from strands_sglang.gateway.dialects.wire import Origin, Refused
from strands_sglang.gateway.session_options import SessionOptions
from strands_sglang.gateway.translation import Translation
from strands_sglang.trajectory import FinishType, History, LengthLimit, Role, Turn

from ..outside_agents import conversation_of
from .inspect_messages import RECEIPT, output_of, read_request

PROVIDER = "strands-rollout"
"""Name of the provider: `inspect eval task.py --model strands-rollout/smollm2`."""

_OPTIONS = SessionOptions(client_sampling=True)  # the model's own sampling parameters come first
to_be_saved: WeakKeyDictionary[Transcript, tuple[Seat, str]] = WeakKeyDictionary()
"""The seats of samples that are to be saved, and where."""
when_saved: list[Callable[[], object]] = []
"""Called where a model is made whose samples are to be saved."""
_current: ContextVar[Callable[[], Seat]] = ContextVar("strands_env_inspect_seat")


@dataclass(slots=True, eq=False)
class AgentPath:
    """An agent of a sample: its last request with its reply, and `has_tools` once it was given tools."""

    name: str | None
    system: str = ""
    history: History = field(default_factory=History)
    turn: Turn | None = None
    has_tools: bool = False


class Seat:
    """The policy's place in one sample.

    Agents are known by the name of the span that inspect opens for them. One that another calls is its sub-agent. A
    call without tools, of an agent that has had some, is the agent's machinery (a summary), which is not trained.

    Attributes:
        main: The agent that began; None before the first reply.
        failure: Failure of the last call; None after a reply.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.main: AgentPath | None = None
        self.failure: Exception | None = None
        self._translation = Translation(conversation, _OPTIONS, secrets.token_bytes(16))
        self._readings = Readings(self._translation.read_receipt)
        self._agents: dict[str | None, AgentPath] = {}
        self._spans: dict[str, SpanBeginEvent] = {}
        self._events_seen = 0

    def sampled(self, message: ChatMessage) -> bool:
        """True for a reply of this seat, or a copy that has been given another text."""
        return self._readings.turn_of((message.metadata or {}).get(RECEIPT)) is not None

    async def generate(
        self, model: str, messages: list[ChatMessage], tools: list[ToolInfo], choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Sample one reply."""
        try:
            output = await self._sample(model, messages, tools, choice, config)
        except ContextWindowOverflowException as error:  # an output to inspect, which agents know how to handle
            return ModelOutput.from_content(model, str(error), stop_reason="model_length")
        except TokenBudgetReachedError as error:
            self.failure = error
            raise LimitExceededError("token", value=error.used, limit=error.limit, message=str(error)) from error
        except Exception as error:
            self.failure = error
            raise
        self.failure = None
        return output

    async def _sample(
        self, model: str, messages: list[ChatMessage], tools: list[ToolInfo], choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        wire = read_request(messages, tools, choice, config, self._readings)
        callers = self._callers()
        name, parent = callers[-1], callers[-2] if len(callers) > 1 else None
        path = self._agents.setdefault(name, AgentPath(name))
        role = Role.MAIN if parent is None else Role.SUBAGENT
        if path.has_tools and not wire.tools:
            role = Role.SUMMARY
        forced = [] if wire.tool_choice in ("auto", "none") else [tool["name"] for tool in wire.tools]
        request = replace(
            self._translation.read(wire, Origin(agent=name), Counters()),
            malformed_calls=MalformedCalls.KEEP,  # inspect answers a call that carries an error
            forced_tools=forced,
            fields=config.extra_body or {},
            role=role,
            parent_agent=parent,
        )
        await self.conversation.read_images(wire.history)
        prepared = await self.conversation.prepare_aside(request)
        if forced and not prepared.request.constraints:
            raise Refused(
                f"tool_choice={wire.tool_choice!r} cannot be enforced with this backend and chat template: use 'auto'"
            )
        sampled = await self.conversation.sample(prepared)
        finish = sampled.turn.completion.finish
        if finish.type not in (FinishType.STOP, FinishType.LENGTH):
            raise BackendAbortedError(
                f"the server ended the reply early ({finish.type}): {finish.message or 'no reason'}"
            )
        if role is not Role.SUMMARY:
            path.system, path.turn, path.has_tools = wire.system, sampled.turn, path.has_tools or bool(wire.tools)
            path.history = History(prepared.history, sampled.reply)
            if self.main is None and role is Role.MAIN:
                self.main = path
        reply = self._translation.write(wire, Answer(key=b"", counters=Counters()), sampled)
        output = output_of(model, reply, sampled)
        if finish.limited_by is LengthLimit.CONTEXT:
            output.choices[0].stop_reason = "model_length"
        return output

    def _callers(self) -> list[str | None]:
        """Names of the agents that the calling code runs in, the innermost last; [None] outside of any."""
        events = transcript().events
        for event in events[self._events_seen :]:
            if isinstance(event, SpanBeginEvent):
                self._spans[event.id] = event
        self._events_seen = len(events)
        names: list[str | None] = []
        span = self._spans.get(current_span_id() or "")
        while span is not None:
            if span.type == "agent":
                names.insert(0, span.name)
            span = self._spans.get(span.parent_id or "")
        return names or [None]


@contextlib.contextmanager
def sampled_in(seat: Callable[[], Seat]) -> Iterator[None]:
    """Have the calls of the block to the policy of an episode sampled in a seat, which is made when it is needed."""
    token = _current.set(seat)
    try:
        yield
    finally:
        _current.reset(token)


def current_seat() -> Seat:
    """The seat of the running episode."""
    try:
        return _current.get()()
    except LookupError:
        raise RuntimeError("the policy is asked outside of a solver and a scorer, where it has no episode") from None


class StrandsRolloutAPI(ModelAPI):
    """The provider.

    Args:
        model_name: Name of the model; for the backend `local` the one to load.
        base_url: The server, for backends that have one.
        model_args: `backend` (`local`, or `sglang` where there is a `base_url`), `tokenizer`, and options of the model,
            such as `tool_parser` and `chat_template_kwargs` (on the command line, `-M backend=vllm`).
        results: Folder or `.jsonl` to which finished samples are written, as a run that `strands-env export` reads.
        model_factory: Makes the models, instead of all these.
        seat: Gives the seat of a call, where others than the provider make the models.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        model_factory: ModelFactory | None = None,
        seat: Callable[[], Seat] | None = None,
        backend: str | None = None,
        tokenizer: str | None = None,
        results: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        self._seats: WeakKeyDictionary[Transcript, Seat] = WeakKeyDictionary()
        self._seat = seat or self._seat_of_sample
        if model_factory is None and seat is None:
            name = backend or ("local" if base_url is None else "sglang")
            if name not in BACKENDS or not BACKENDS[name].has_tokens:
                exact = [each.name for each in BACKENDS.values() if each.has_tokens]
                raise ValueError(f"backend={name!r}: the backends with exact tokens are {', '.join(exact)}")
            place: dict[str, Any] = {"sglang_base_url": base_url, "model_id": model_name, "tokenizer": tokenizer}
            model_factory = model_factory_from_args(name, **place, **{"sampling_params": {}, **options})
        self._factory, self._results = model_factory, results
        if results is not None:
            for prepare in when_saved:
                prepare()

    def _seat_of_sample(self) -> Seat:
        assert self._factory is not None
        if (seat := self._seats.get(transcript())) is None:
            seat = self._seats[transcript()] = Seat(conversation_of(self._factory()))
            if self._results is not None:
                to_be_saved[transcript()] = seat, self._results
        return seat

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Sample one reply."""
        return await self._seat().generate(self.model_name, input, tools, tool_choice, config)

    async def tokenize(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self._seat().conversation.tokenizer.encode(text, add_special_tokens=False))

    async def count_text_tokens(self, text: str) -> int:
        """Number of tokens of a text; inspect's own count needs a file of another model from the network."""
        return len(await self.tokenize(text))

    def tools_required(self) -> bool:
        """Tools are part of the prompt, also where none may be called: without them a path would end."""
        return True

    def tool_result_images(self) -> bool:
        """Results of tools may hold images."""
        return True


@modelapi(name=PROVIDER)
def strands_rollout() -> type[ModelAPI]:
    """The provider, under its name."""
    return StrandsRolloutAPI
