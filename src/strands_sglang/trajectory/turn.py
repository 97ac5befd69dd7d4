"""The immutable record of one model call."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .media import Medium, expanded_ids, expanded_values, media_growth, move_media
from .message import Message
from .packed import TOKEN_TYPECODE, SamplingMask, TokenRun, WeightSpan


class FinishType(StrEnum):
    """The reason the engine stopped sampling."""

    STOP = "stop"
    """A stop token, stop string or stop pattern."""
    LENGTH = "length"
    """`max_new_tokens` was used up."""
    ABORT = "abort"
    """The server aborted the request; the output is what had been sampled so far."""
    UNKNOWN = "unknown"
    """The server named no reason, or one this package does not know: the turn may not be complete."""


class LengthLimit(StrEnum):
    """The tightest bound on the length of a turn."""

    REPLY = "reply"
    """`max_new_tokens` of one reply."""
    SAMPLED_BUDGET = "sampled_budget"
    """The budget of sampled tokens of the episode."""
    TRAJECTORY_BUDGET = "trajectory_budget"
    """The budget of tokens of one path."""
    CONTEXT = "context"
    """The context length of the model."""


class Role(StrEnum):
    """The part in an episode of the caller of a model."""

    MAIN = "main"
    """An agent, or a program, that works for no other."""
    SUBAGENT = "subagent"
    """An agent that another one called as a tool, or that an environment gave a model."""
    SUMMARY = "summary"
    """The machinery of an agent beside its loop: context managers, plug-ins, memory, and the agents they ask."""
    TOOL = "tool"
    """A tool that asks a model to do its work, as `web_fetch` does; an agent without tools inside a tool is one."""

    @property
    def is_agent(self) -> bool:
        """True for agents, which are trained by default."""
        return self in (Role.MAIN, Role.SUBAGENT)

    @classmethod
    def _missing_(cls, value: object) -> Role:
        raise ValueError(f"unknown role {value!r}: expected one of {', '.join(cls)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrigin:
    """The caller of a model, and the step in which it calls.

    Attributes:
        agent: Name of the calling agent, or None where it is not known.
        agent_id: Identity of the caller; agents may share a name. None where there is nothing to know it by.
        role: The part of the caller in the episode.
        parent_agent: Identity of the agent that the caller works for, or None.
        attempt: Mark of one step of the caller (a cycle of the SDK's event loop), which keeps one sample: the same
            caller with the same mark again has thrown the earlier sample away. None: the call stands for itself.
    """

    agent: str | None = None
    agent_id: str | None = None
    role: Role = Role.MAIN
    parent_agent: str | None = None
    attempt: str | None = None

    @property
    def origin(self) -> dict[str, Any]:
        """These fields alone, for the request, location and turn of the call."""
        return {
            "agent": self.agent,
            "agent_id": self.agent_id,
            "role": self.role,
            "parent_agent": self.parent_agent,
            "attempt": self.attempt,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a completion.

    Attributes:
        matched: The token id, stop string or pattern that matched, or None.
        message: The server's words: of an abort, or the kind of end it named where that is unknown here.
        limited_by: The bound that cut the turn, for an end by length; None where it is not known.
    """

    type: FinishType
    matched: int | str | None = None
    message: str | None = None
    limited_by: LengthLimit | None = None

    @property
    def stop_token_id(self) -> int | None:
        """Id of the stop token the output ends with, or None when it ends with none."""
        return self.matched if self.type is FinishType.STOP and isinstance(self.matched, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of a turn.

    Attributes:
        id: The id the caller was given, unique in the episode.
        name: Tool name as the model wrote it.
        model_id: The id the model itself wrote, where its format has one (Kimi K2).
        error: The parse error of a malformed call, or None.
        is_text: The caller was given the text of the call (a malformed one), not a call: no result will follow.
    """

    id: str
    name: str
    model_id: str | None = None
    error: str | None = None
    is_text: bool = False

    @property
    def shown_id(self) -> str:
        """The id that the chat template is shown."""
        return self.model_id or self.id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """Sampled tokens, and the facts about each.

    Attributes:
        output_ids: Sampled ids, the matched stop token included.
        output_logprobs: One value an output token (NaN = none), or None where there is none at all.
        weight_spans: Weight versions over the output; the spans tile it.
        cached_tokens: Prompt tokens that came from a prefix cache, or None.
        latency: Seconds the backend took, or None.
        routed_experts: Raw little-endian int32 rows `[rows, layers, top_k]`, or None. Of an answer: for the positions
            from `experts_from`, or from 0, on.
        sampling_mask: The tokens that survived top-k and top-p per output token, or None.
    """

    output_ids: array[int]
    output_logprobs: array[float] | None = None
    finish: Finish
    weight_spans: tuple[WeightSpan, ...] = ()
    cached_tokens: int | None = None
    latency: float | None = None
    routed_experts: bytes | None = None
    sampling_mask: SamplingMask | None = None

    @property
    def last_stop(self) -> int | None:
        """The stop token at the end of the output; None where it ends with none."""
        stop = self.finish.stop_token_id
        return stop if stop is not None and self.output_ids[-1:].tolist() == [stop] else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion(SampledTokens):
    """The tokens one model call sampled, over all its requests, ready to be committed.

    `routed_experts` are for positions `max(start - 1, 0)` to `end - 2` of the path.

    Attributes:
        prompt_logprobs: One value a token of the turn's prompt delta (NaN = none), or None where the backend gave none.
        request_ids: Request ids of all pieces; more than one when an aborted call was resumed.
    """

    prompt_logprobs: array[float] | None = None
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn(CallOrigin):
    """A committed model call: the appended prompt delta and the tokens sampled after it.

    Attributes:
        index: Order of commit within the forest.
        parent: The turn this one extends, or None for a root.
        key: Digest of the whole input of the call; equal keys mean a repeated call.
        reply: The reply as the caller was given it, by which later histories are recognised.
        prompt_ids: Ids appended to the parent's path (the whole prompt for a root).
        calls: The tool calls in the order they were written.
        media: Images of the prompt delta, in order.
        is_constrained: A grammar decided which tokens could be sampled.
        is_recalled: It was sampled in another forest, which trains it: it carries no loss here.
        start: Position of the first prompt id on the path.
        growth: Tokens by which the images of the path make it longer for the server and for trainers.
    """

    index: int
    parent: Turn | None
    key: bytes
    reply: Message
    prompt_ids: array[int]
    completion: Completion
    calls: tuple[ToolCall, ...] = ()
    media: tuple[Medium, ...] = ()
    is_constrained: bool = False
    is_recalled: bool = False
    start: int = 0
    growth: int = 0

    @property
    def root(self) -> Turn:
        """The first turn of its path."""
        turn = self
        while turn.parent is not None:
            turn = turn.parent
        return turn

    @property
    def end(self) -> int:
        """Length of the path up to and including this turn."""
        return self.start + len(self.prompt_ids) + len(self.completion.output_ids)

    @property
    def expanded_end(self) -> int:
        """Length of the path up to and including this turn, with its images expanded."""
        return self.end + self.growth

    @property
    def prompt_length(self) -> int:
        """Number of tokens of the prompt delta, with its images expanded."""
        return len(self.prompt_ids) + (media_growth(self.media) if self.media else 0)

    def path_ids(self) -> array[int]:
        """Ids of the path up to and including this turn, one placeholder for each image."""
        return array(TOKEN_TYPECODE, b"".join(self.path_parts()))

    def path_parts(self) -> list[array[int]]:
        """The arrays of `path_ids`: prompt and output of each turn from the root on, not to be changed."""
        pieces: list[array[int]] = []
        turn: Turn | None = self
        while turn is not None:  # hundreds of turns at every call: kept bare
            pieces += turn.completion.output_ids, turn.prompt_ids
            turn = turn.parent
        return pieces[::-1]

    def path_media(self) -> tuple[Medium, ...]:
        """Images of the path up to and including this turn; positions are those in `path_ids`."""
        media: tuple[Medium, ...] = ()
        turn: Turn | None = self
        while turn is not None:  # most turns have none, so a path of text costs nothing here
            if turn.media:
                media = (*move_media(turn.media, turn.start), *media)
            turn = turn.parent
        return media

    def path(self) -> list[Turn]:
        """The turns from the root to this one."""
        turns = [self]
        while (parent := turns[-1].parent) is not None:
            turns.append(parent)
        turns.reverse()
        return turns

    def runs(self, position: int, *, trained: bool = True) -> Iterator[TokenRun]:
        """The prompt and the output at index `position` of the path, images expanded; empty ones are left out.

        `trained` is False where another exported trajectory trains the sampled tokens.
        """
        completion = self.completion
        if self.prompt_ids:
            scored = completion.prompt_logprobs
            yield TokenRun(
                ids=expanded_ids(self.prompt_ids, self.media),
                # Of the tokens of an image SGLang answers id 0 with a useless score.
                logprobs=None if scored is None else expanded_values(scored, self.media, math.nan),
                is_output=False,
                is_trained=False,
                turn=position,
            )
        if completion.output_ids:
            yield TokenRun(
                ids=completion.output_ids,
                logprobs=completion.output_logprobs,
                is_output=True,
                is_trained=trained and not self.is_recalled,
                turn=position,
                weight_spans=completion.weight_spans,
            )
