"""`Conversation`: the core of an exact rollout, independent of its caller.

A conversation owns the trajectory forest, prompts, sampling, token budgets, call ids and the record of malformed calls.
It knows neither the events of the Strands SDK nor HTTP. `SGLangModel` is a shell around it; so is the gateway, and so
can be any asynchronous loop:

    conversation = Conversation(client=client, tokenizer=tokenizer)
    sampled = await conversation.turn(TurnRequest(messages=[{"role": "user", "content": [{"text": "Hi"}]}]))

One turn is `locate` (which path does this history extend?), `render` (only what is new), sample, `read` (decode and
parse), `commit`. Nothing is recorded unless the answer arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Unpack

from strands.types.tools import ToolSpec

from ..backends import CONSTRAINTS, Backend, GenerateClient, as_backend
from ..exceptions import ControlTokenError, MediaError, MessageConversionError, explain_arguments
from ..fast_paths import FastPath
from ..template import ControlTokens
from ..tokenizer import LONG_TEXT, Tokenizer, TokenizerAdapter
from ..tool_parsers import ToolParser, as_tool_parser
from ..trajectory import (
    Completion,
    FinishType,
    History,
    Image,
    Location,
    Message,
    RootReason,
    TokenManager,
    Trajectory,
    TrajectoryForest,
    Turn,
    digest,
    encode_value,
)
from ..trajectory.images import Processor, image_expander
from ..trajectory.media import ImageExpander
from .budget import Reservation, SharedBudget
from .cancellation import CancelScope
from .formats import Formats, PromptFormat
from .generation import generate
from .history_reader import StrandsReader
from .messages import SystemPrompt, read_message, system_text
from .model_options import DEFAULTS, InjectedContext, ModelOptions, ReasoningPolicy, SGLangConfig, merge_options
from .plan import CallPlanner
from .prompt_images import PromptImages
from .prompts import PreparedTurn, Prompts, TurnRequest
from .reply import SampledTurn, read_reply, without_stop

logger = logging.getLogger(__name__)

# Reasons for which a forced choice was ignored, each said once a process.
_ignored_choices: set[str] = set()

# New roots in a row of one agent, each for a changed history, that call for a warning.
_ROOTS_BEFORE_WARNING = 3


class Conversation:
    """An episode with one model: any number of agents, one forest.

    Arguments and errors are those of `SGLangModel`. `client` is a `strands_sglang.backends.Backend`, or anything with
    `generate` (the embedded engine, a scripted fake).
    """

    @explain_arguments
    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        client: Backend | GenerateClient | None = None,
        base_url: str | None = None,
        tool_parser: ToolParser | str | None = None,
        chat_template: str | None = None,
        stop_tokens: Sequence[str] = (),
        vocab_size: int | None = None,
        processor: Processor | None = None,
        tool_call_parser: ToolParser | str | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        if (client is None) == (base_url is None):
            raise TypeError("exactly one of client= and base_url= is needed")
        parser = as_tool_parser(tool_call_parser if tool_parser is None else tool_parser)
        if isinstance(client, str):
            raise TypeError(f"got client={client!r}, expected a Backend; an address is a base_url=")
        if tokenizer is None or isinstance(tokenizer, str):
            name = tokenizer or "Qwen/Qwen3-8B"
            raise TypeError(f"got tokenizer={tokenizer!r}, expected a tokenizer, such as get_tokenizer({name!r})")
        if base_url is not None:
            from ..backends import client_class  # loads the HTTP stack, which other clients do without

            make_client, address = client_class(base_url)
            client = make_client(address)
        assert client is not None  # exactly one of the two
        self.client: Backend | GenerateClient = client
        self.config: SGLangConfig = merge_options(DEFAULTS, options, self.backend)
        self.forest = TrajectoryForest(has_memory=FastPath.HISTORY_MEMORY.is_on)
        self.rollout = TokenManager(self.forest, on_reset=self.reset)
        self._tokens = TokenizerAdapter(tokenizer, stop_tokens)
        self.expander: ImageExpander | None = (
            self.backend.image_expander if processor is None else image_expander(processor)
        )
        self._formats = Formats(self._tokens, chat_template, parser)
        self._images = PromptImages(self._tokens, self.expander)
        self._prompts = Prompts(self._tokens, self._images)
        self._histories = StrandsReader()
        self._planner = CallPlanner(
            self._tokens, self.forest, vocab_size, proves_once=getattr(self.expander, "is_verified", False)
        )
        self._budget = SharedBudget()
        self._parse_errors: dict[str, int] = {}
        self._routing_key, self._scratch = uuid.uuid4().hex, dict[str, Any]()
        self._lock = threading.RLock()
        self._roots_in_a_row: dict[str | None, int] = {}
        self._last_context: tuple[tuple[str, bytes] | None, bytes] = None, b""
        self._warned_of_roots = self._warned_of_experts = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a conversation, and a model that holds one, cannot be copied or pickled: make another one for another "
            "rollout (they may share client= and tokenizer=); to branch a rollout, use agent.take_snapshot() and "
            "load_snapshot()"
        )

    # ---- the episode ------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was given."""
        return self._tokens.tokenizer

    @property
    def backend(self) -> Backend:
        """The client as a backend. Another client may take its place between calls."""
        return as_backend(self.client)

    @property
    def trajectories(self) -> list[Trajectory]:
        """Every path of the episode; each sampled token carries loss in exactly one of them."""
        exported = self.forest.trajectories()
        for path in exported:
            path.tokenizer = self.tokenizer
        return exported

    @property
    def tool_parse_errors(self) -> dict[str, int]:
        """Number of malformed calls per tool name in this episode."""
        return dict(self._parse_errors)

    def reset(self) -> None:
        """Start a new episode: trajectories, call ids and budgets start over; calls in flight are dropped."""
        with self._lock:  # a thread may be preparing a call
            self.forest.reset()
            self._images.reset()
            self._prompts.reset()
        self._budget = SharedBudget()
        self._parse_errors.clear()
        self._roots_in_a_row.clear()
        self._histories = StrandsReader()
        self._routing_key, self._scratch = uuid.uuid4().hex, dict[str, Any]()

    def free_scratch(self) -> None:
        """Free the memory that backends keep for the next call of the episode; a later call makes it anew."""
        self._scratch.clear()

    # ---- configuration ------------------------------------------------

    def update_config(self, **changes: Unpack[ModelOptions]) -> None:
        """Change options, with the errors of the constructor. A changed template argument starts a new path."""
        self.config = merge_options(self.config, changes, self.backend)

    # ---- a turn ------------------------------------------------

    async def turn(self, request: TurnRequest, *, cancel_signal: threading.Event | None = None) -> SampledTurn:
        """Sample one turn and record it.

        Cancelling the calling task aborts the call; nothing is recorded then.

        Args:
            cancel_signal: Aborts the call when set, from any thread.

        Raises:
            CallCancelled: The signal was set before the answer was recorded.
            ContextWindowOverflowException: The prompt does not fit the context.
            TokenBudgetReachedError: A token budget was used up before this call.
            MessageConversionError: A block has no place in a chat template.
            TemplateError: The chat template cannot express the new messages, or cannot be used with tools.
            BackendError: The call failed.
        """
        return await self.sample(await self.prepare_aside(request), cancel_signal=cancel_signal)

    async def read_images(self, messages: Iterable[Message]) -> None:
        """Decode and size the new images of a history in a thread, so that `prepare` does not hold up the event loop.

        Errors of an image are raised by `prepare`.
        """
        options = self.config
        new = self._images.select_new((image for message in messages for image in message.images), options)

        def read_new() -> None:
            for image in new:
                with contextlib.suppress(MediaError):
                    self._images.prepare(image, options)

        if new:
            await asyncio.to_thread(read_new)

    def find_problem(self, part: str | Image, *, role: str, tools: Sequence[ToolSpec] = ()) -> str | None:
        """Why a part cannot be shown in a message of a role (`user` or `tool`), or None if it can."""
        prompt_format = self._formats.get(tools, self.config)
        try:
            if isinstance(part, Image):
                self._images.prepare(part, self.config)
                self._images.check_role(prompt_format, role)
            elif self.config["control_tokens"] == ControlTokens.ERROR:
                prompt_format.renderer.initial([{"role": "user", "content": part}])
        except MediaError as error:
            return str(error)
        except ControlTokenError:  # whose words spell the token, too
            return "it spells a control token"
        return None

    def prepare(self, request: TurnRequest) -> PreparedTurn:
        """Locate and render a request; nothing is sent or recorded. Raises the errors of `turn` up to that point."""
        history, options = self._read_history(request), self.config
        tools_key = self._formats.key_of(request.tools, options)
        return self._render(request, history, options, tools_key, self._locate(request, history, tools_key))

    async def prepare_aside(self, request: TurnRequest) -> PreparedTurn:
        """`prepare`, in a thread where it would hold up the event loop: for a long text, or behind another one."""
        history, options = self._read_history(request), self.config
        tools_key = self._formats.key_of(request.tools, options)
        await self.read_images(history)
        location = self._locate(request, history, tools_key)
        size = len(system_text(request.system)) if location.parent is None and request.system else 0
        for message in history.messages[location.first_new :]:
            size += message.size
        is_long = size >= LONG_TEXT and self._tokens.codec.is_parallel
        if is_long or not self._lock.acquire(blocking=False):
            return await asyncio.to_thread(self._render, request, history, options, tools_key, location)
        try:
            return self._render(request, history, options, tools_key, location)
        finally:
            self._lock.release()

    def _read_history(self, request: TurnRequest) -> History:
        messages = request.messages
        if not isinstance(messages, list | tuple):
            if isinstance(messages, History):
                return messages
            raise MessageConversionError(f"messages is {messages!r:.100}, expected a list")
        if messages and isinstance(messages[0], Message):
            return History().and_then(messages)
        current = self.forest.current
        reply = None if current is None else current.reply
        count = request.ephemeral_blocks if self.config["injected_context"] is InjectedContext.KEEP else 0
        if not count or not messages:
            return self._histories.read(messages, reply)
        *before, last = messages
        # Later histories hold the message without these blocks, and find their place by that form.
        blocks = list(last["content"])
        history = self._histories.read([*before, {**last, "content": blocks[: max(len(blocks) - count, 0)]}], reply)
        earlier = history.before or History()
        shown = replace(read_message(last, len(before), earlier), durable=history.last)
        history.facts = {} if history.facts is None else history.facts  # what is found out is about both
        return History(earlier, shown, facts=history.facts)

    def _locate(self, request: TurnRequest, history: History, tools_key: bytes) -> Location:
        return self.forest.locate(self._context(system_text(request.system), tools_key), history, request)

    def _render(
        self, request: TurnRequest, history: History, options: SGLangConfig, tools_key: bytes, location: Location
    ) -> PreparedTurn:
        messages = history.messages
        with self._lock:
            prompt_format = self._formats.get(request.tools, options, tools_key)
            system = system_text(request.system)
            branches = options["reasoning_policy"] is ReasoningPolicy.BRANCH
            if location.parent is not None and (
                request.as_root or (branches and prompt_format.drops_reasoning(messages[location.first_new :]))
            ):
                location = location.as_root()
            self._note_root(location)
            if location.parent is None:
                self.forest.reserve_call_ids(messages)
            write = self._prompts.root if location.parent is None else self._prompts.delta
            prompt = write(prompt_format, location, messages, system, options)
            if request.forced_tools and not request.constraints:
                request = self._force_call(request, prompt_format)
            return PreparedTurn(
                request=request, history=history, location=location, format=prompt_format, prompt=prompt
            )

    async def sample(self, prepared: PreparedTurn, *, cancel_signal: threading.Event | None = None) -> SampledTurn:
        """Sample a prepared turn, read it and record it. Raises the errors of `turn` from there on."""
        backend, config = self.backend, self.config
        routing_key = config["routing_key"] or self._routing_key
        with Reservation(self._budget) as reservation:
            with CancelScope(cancel_signal):
                plan = await self._planner.plan(backend, prepared, config, reservation, routing_key, self._scratch)
                completion = await generate(backend, plan)
            lacks_experts = config["return_routed_experts"] and completion.routed_experts is None
            if lacks_experts and completion.finish.type is not FinishType.ABORT and not self._warned_of_experts:
                self._warned_of_experts = True
                logger.warning(
                    "return_routed_experts=<True> | the backend returned no routed experts, so routed_experts is "
                    "None: the model is dense, or the server was started without them%s",
                    backend.capabilities.hint("routed_experts"),
                )
            # Without a pause from here on: a cancellation finds the turn either recorded whole or not at all.
            return self._record(prepared, completion)

    def recall(self, request: TurnRequest, completion: Completion) -> Turn:
        """Record a turn that was sampled in another conversation, to go on from it; it is not trained here.

        Raises:
            MessageConversionError, TemplateError: As `turn`.
        """
        return self._record(self.prepare(request), completion, is_recalled=True).turn

    def estimate_tokens(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = (), system: SystemPrompt = None
    ) -> int:
        """Number of tokens of a history: exact for its held part, guessed by length for the rest, without encoding."""
        text, held, count = system_text(system), 0, 0
        if any(message["role"] == "assistant" for message in messages):  # otherwise none of it is held
            history, context = (
                self._histories.read(messages),
                self._context(text, self._formats.key_of(tools, self.config)),
            )
            turn, held = self.forest.held_part(context, history)
            count = 0 if turn is None else turn.expanded_end
        size = sum(len(encode_value(message["content"])) for message in messages[held:])
        if not count:
            size += len(text) + sum(len(encode_value(tool)) for tool in tools)
        return count + self._prompts.estimate_tokens(size)

    def decode(self, completion: Completion) -> str:
        """The text of a completion as it was sampled, without the stop token that only ends the turn."""
        return self._tokens.decode(without_stop(completion, self._tokens))

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of any ids, special tokens included."""
        return self._tokens.decode(ids)

    def render(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = ()) -> str:
        """Chat messages as the template prints them, generation prompt included; nothing is recorded.

        A message that the template refuses or loses is a `TemplateError`.
        """
        return self._formats.get(tools, self.config).renderer.initial(chat)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of every token by itself."""
        return [self._tokens.token_text(token_id) for token_id in ids]

    def reasoning_tokens(self, sampled: SampledTurn) -> int:
        """Number of sampled tokens up to the end of the reasoning; all of them where it does not end."""
        if not sampled.reply.reasoning or (closing := sampled.think_end) is None:
            return 0
        ids, decode = sampled.turn.completion.output_ids, self._tokens.decode
        # By text, as the reply was split: a tag may be spelled, and its last token may have more in it.
        end = bisect_left(range(len(ids) + 1), True, key=lambda end: closing in decode(ids[:end]))
        if end <= len(ids):
            return end
        return 0 if sampled.reply.text or sampled.reply.calls else len(ids)

    def _note_root(self, location: Location) -> None:
        """Warn once when every call of an agent starts a new root, as it does where each one sees another history."""
        changed = location.reason in (RootReason.EDITED, RootReason.HISTORY)
        count = self._roots_in_a_row.get(location.agent_id, 0) + 1 if changed else 0
        self._roots_in_a_row[location.agent_id] = count
        if count == _ROOTS_BEFORE_WARNING and not self._warned_of_roots:
            self._warned_of_roots = True
            logger.warning(
                "agent=<%s>, calls=<%d> | every call changes earlier messages and starts a new path: "
                "exact, but each prompt is rendered and sampled from afresh. Something edits the history between calls "
                "(context_manager=, a conversation manager with per_turn, a middleware). injected_context='keep' holds "
                "blocks that a plug-in declares as dynamic_trailing_blocks, as ContextInjector does; otherwise pass "
                "context_manager=False, and put changing text into the newest message or a tool result",
                location.agent,
                count,
            )

    def _force_call(self, request: TurnRequest, prompt_format: PromptFormat) -> TurnRequest:
        """The request with the grammar of its forced call, where there can be one."""
        can, names = self.backend.capabilities, list(request.forced_tools)
        taken = CONSTRAINTS & {**self.config["sampling_params"], **request.params}.keys()
        if "ebnf" not in can.constraints:
            reason = f"the backend has no grammars{can.hint('constraints')}"
        elif taken:
            reason = f"sampling_params has {min(taken)}, and a call takes one grammar"
        elif (grammar := prompt_format.call_grammar(names, self._tokens)) is not None:
            return replace(request, constraints={"ebnf": grammar})
        else:
            reason = "a grammar cannot spell the model's format of calls"
        if reason not in _ignored_choices:
            _ignored_choices.add(reason)
            logger.warning("tools=<%s> | a forced tool choice is ignored: %s", ", ".join(names), reason)
        return request

    def _context(self, system: str, tools_key: bytes) -> bytes:
        """Digest of the text printed before the messages."""
        last_parts, context = self._last_context
        parts = system, tools_key
        if last_parts != parts:
            context = digest(b"context", system.encode("utf-8", "surrogatepass"), tools_key)
            self._last_context = parts, context
        return context

    def _record(self, prepared: PreparedTurn, completion: Completion, *, is_recalled: bool = False) -> SampledTurn:
        reader = prepared.format.reader(prepared.prompt.open)
        read = read_reply(prepared, completion, reader, self._tokens, self.forest.next_call_id)
        turn = self.commit(
            prepared.location,
            prompt_ids=prepared.prompt.ids,
            completion=completion,
            reply=read.message,
            calls=read.calls,
            media=prepared.prompt.media,
            is_constrained=bool(prepared.request.constraints),
            is_recalled=is_recalled,
        )
        return SampledTurn(
            turn=turn,
            stop_reason=read.stop_reason,
            stop_string=read.stop_string,
            think_end=reader.think_end_token,
        )

    def commit(self, location: Location, **turn: Any) -> Turn:
        """Record a turn that was sampled for this conversation, also in an earlier process; see `forest.commit`."""
        committed = self.forest.commit(location, **turn)
        for call in committed.calls:  # without the lock, which a thread may hold that renders a long prompt
            self._prompts.calls.sampled[call.id] = call
            if call.error is not None:
                self._parse_errors[call.name] = self._parse_errors.get(call.name, 0) + 1
        return committed
