"""The contract between a conversation and the backend that samples for it.

A conversation hands a `GenerateRequest` to `Backend.ask` and records the checked `GenerateAnswer`. It reads what the
backend can do from `Backend.capabilities`, and what it serves from `Backend.info()`. Names of a server's fields,
checks of its parameters, its errors and its retries are the backend's alone. `docs/backends.md` has an example.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..exceptions import BackendAnswerError, BackendRequestError
from ..trajectory import FinishType, SampledTokens
from ..trajectory.packed import pack_ids
from .sampling import CONSTRAINTS as CONSTRAINTS
from .sampling import SamplingParams as SamplingParams
from .sampling import check_sampling_params

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..trajectory.media import ImageExpander, PlacedMedium


class LogprobKind(StrEnum):
    """The distribution that the log-probabilities of sampled tokens belong to."""

    RAW = "raw"
    """The model's own, before temperature: off-policy for training unless everything is sampled at temperature 1."""
    TEMPERED = "tempered"
    """After temperature, penalties and grammar; not renormalised over the tokens that top-p and top-k leave."""
    SAMPLED = "sampled"
    """Exactly the distribution that was sampled from, renormalised over the tokens that top-p and top-k leave."""


class PromptScoring(StrEnum):
    """Cost of log-probabilities of prompt tokens."""

    NONE = "none"
    CACHED = "cached"
    """Scoring from a position on leaves the prefix cache usable up to that position."""
    UNCACHED = "uncached"
    """Scoring any part computes the whole prompt again: never done unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities of a backend. A conversation asks for nothing beyond them, and refuses an option that needs more.

    Attributes:
        logprobs: Distribution of the log-probabilities of sampled tokens; None if there are none.
        routed_experts: It returns the experts that each token was routed to.
        sampling_mask: It returns the ids that survived top-k and top-p.
        constraints: Sampling parameters that constrain decoding, a subset of `CONSTRAINTS`.
        weight_versions: Answers name the version of the weights.
        ordered_versions: These versions are integers that only grow.
        session_affinity: `routing_key` keeps an episode on one worker.
        seeds: The same request with the same `sampling_seed` samples the same tokens, without any option of a server.
        context_reserve: Tokens of the context that are never sampled.
        hints: By the name of a capability: how to switch it on, for errors.
    """

    logprobs: LogprobKind | None = None
    prompt_scoring: PromptScoring = PromptScoring.NONE
    routed_experts: bool = False
    sampling_mask: bool = False
    images: bool = False
    constraints: frozenset[str] = frozenset()
    weight_versions: bool = False
    ordered_versions: bool = False
    session_affinity: bool = False
    seeds: bool = False
    context_reserve: int = 0
    hints: Mapping[str, str] = field(default_factory=dict)

    def hint(self, name: str) -> str:
        """The hint of a capability as the end of a sentence, or nothing."""
        return f": {self.hints[name]}" if name in self.hints else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """The served model. Weight versions are not here: they change, and every answer names its own.

    Attributes:
        context_length: Most tokens of prompt and reply, or None if unknown.
        vocab_size: Rows of the model's embedding, or None if unknown: larger ids are never sent.
    """

    model: str | None = None
    context_length: int | None = None
    vocab_size: int | None = None


def token_array(ids: Sequence[int] | array[int] | NDArray[Any]) -> array[int]:
    """Token ids of a user as a compact array; `BackendRequestError` unless they are integers in one dimension."""
    return pack_ids(ids, "input_ids", BackendRequestError)


def check_prompt(ids: array[int], vocab_size: int | None, *, highest: int = -1) -> int:
    """Refuse (`BackendRequestError`) an empty prompt, and ids that would kill a server; `vocab_size` None: unknown.

    Where only the end of a prompt is new, `ids` are those, and `highest` is the highest id before them.

    Returns:
        The highest id of all.
    """
    import numpy as np

    if ids:
        view = np.frombuffer(ids, ids.typecode)
        if (lowest := int(view.min())) < 0:
            raise BackendRequestError(f"input_ids has {lowest}: a negative id would kill the server")
        highest = max(highest, int(view.max()))
    elif highest < 0:
        raise BackendRequestError("input_ids is empty: expected at least one token id")
    if vocab_size is not None and highest >= vocab_size:
        raise BackendRequestError(
            f"input_ids has {highest}, outside the vocabulary of {vocab_size}: it would kill the server; "
            "is this the tokenizer of the served model?"
        )
    return highest


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A call: a prompt, how to continue it, and the values to return beside the ids. Backends check the prompt's ids.

    Positions count tokens of the prompt as the model sees it, images expanded.

    Attributes:
        prompt: Ids of the prompt, one placeholder for each image.
        parts: The arrays that `prompt` joins, the same objects in each call of an episode, which never change; empty if
            unknown. What is sent is `prompt`.
        sampling_params: `SamplingParams`, and others that the backend lets through.
        rid: Id of the first attempt, or None for a random one.
        routing_key: Session affinity key, or None: requests with the same key belong on one worker.
        score_from: Return log-probabilities of the prompt from this position on; None for none.
        score_top_k: With `score_from`: number of the most likely tokens to return at each of these positions.
        experts_from: Return routed experts from this position on; None for none.
        sampling_mask: Return the ids that survived top-k and top-p.
        images: The images of the prompt in order, as data URLs.
        show_prompt: Return the ids of the prompt as the model sees it.
        constrain_answer_only: The prompt ends inside a reasoning block, and the constraint begins behind it.
        fields: Fields of the backend's own, which `Backend.check_fields` has let through.
        vocab_size: Number of ids the model has, or None if unknown; prompt and answer are checked against it.
        growth: Tokens by which the expanded prompt is longer than `prompt`.
        before_attempt: Called before each attempt, retries included; an error that it raises ends the call.
        scratch: The backend's own memory from one call of an episode to the next. The episode holds it: a backend that
            kept it itself would not know when to free it.
    """

    prompt: array[int]
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    rid: str | None = None
    routing_key: str | None = None
    logprobs: bool = True
    score_from: int | None = None
    score_top_k: int = 0
    experts_from: int | None = None
    sampling_mask: bool = False
    images: tuple[str, ...] = ()
    show_prompt: bool = False
    constrain_answer_only: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int | None = None
    growth: int = 0
    parts: tuple[array[int], ...] = field(default=(), repr=False, compare=False)
    before_attempt: Callable[[], None] | None = None
    scratch: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt as the model sees it."""
        return len(self.prompt) + self.growth

    @property
    def max_new_tokens(self) -> int | None:
        """Most tokens that may be sampled; None where the request leaves it to the backend."""
        limit = self.sampling_params.get("max_new_tokens")
        return limit if isinstance(limit, int) else None

    def limited_to(self, tokens: int) -> GenerateRequest:
        """The same request for at most this many tokens."""
        params = dict(self.sampling_params)
        params["max_new_tokens"] = min(tokens, params.get("max_new_tokens") or tokens)
        if "min_new_tokens" in params:  # a server refuses a minimum above the maximum
            params["min_new_tokens"] = min(params["min_new_tokens"], params["max_new_tokens"])
        return replace(self, sampling_params=params)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredPrompt:
    """The last tokens of a prompt, as the backend names them, each with its log-probability, NaN where it has none.

    Attributes:
        top_ids: `[tokens * score_top_k]`, the most likely tokens at each position, best first, -1 where it has none;
            None where they were not asked for.
        top_logprobs: Their log-probabilities, NaN where there is none.
    """

    ids: array[int]
    logprobs: array[float]
    top_ids: array[int] | None = None
    top_logprobs: array[float] | None = None

    def __post_init__(self) -> None:
        # Checked here because numpy would repeat a single value over a whole sequence.
        if len(self.logprobs) != (count := len(self.ids)):
            raise BackendAnswerError(
                f"scores must have one log-probability for each of {count} tokens, got {len(self.logprobs)}"
            )
        if (self.top_ids is None) != (self.top_logprobs is None) or len(self.top_ids or ()) != len(
            self.top_logprobs or ()
        ):
            raise BackendAnswerError("scores must have one log-probability for each of the most likely tokens")

    def values_of(self, expected: array[int], images: Iterable[tuple[int, int]]) -> array[float]:
        """Log-probabilities of the last tokens, which are `expected`; NaN for those before the first that was scored.

        `images` are positions and lengths of images in `expected`, whose tokens have no value: a server names 0 there.

        Raises:
            BackendAnswerError: It names other tokens.
        """
        ids, values = self.ids[-len(expected) :], self.logprobs[-len(expected) :]
        first = len(expected) - len(ids)
        for position, length in images:
            for place in range(max(position, first), position + length):
                ids[place - first], values[place - first] = expected[place], math.nan
        if ids != expected[first:]:
            raise BackendAnswerError(
                f"the answer does not score the {len(expected)} tokens that were sent: it names {ids.tolist()!r:.100} "
                f"instead of {expected[first:].tolist()!r:.100}"
            )
        return array("d", [math.nan]) * first + values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateAnswer(SampledTokens):
    """A checked answer: sampled tokens that agree with each other and with the request, and the facts beside them.

    Attributes:
        scored_prompt: Log-probabilities of the prompt, or None where the answer has none.
        rid: Id of the request that was answered, or None.
        prompt_tokens: Length of the prompt as the model saw it, or None.
        prompt_ids: That prompt, where it was asked for and is known.
        payload: The answer as it came, for who knows the server.
    """

    scored_prompt: ScoredPrompt | None = None
    rid: str | None = None
    prompt_tokens: int | None = None
    prompt_ids: Sequence[int] | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)

    def check_expansion(self, expected: int, proof: array[int] | None, can: Capabilities) -> None:
        """Refuse an answer to another prompt than ours: a server expands images differently, or tokenises again.

        Args:
            expected: Length of the expanded prompt, tokens sampled in earlier attempts included.
            proof: The prompt of the first attempt, where the server was asked to show it.
        """
        if self.prompt_tokens is None and self.finish.type is FinishType.ABORT:
            return  # aborted before it was looked at
        if self.prompt_tokens != expected:
            what = f"the server's prompt has {self.prompt_tokens} tokens, expected {expected} with the images expanded"
            raise BackendAnswerError(what + can.hint("images"))
        if proof is None:
            return
        if self.prompt_ids is None:
            what = "the server does not show prompt_token_ids, so nothing proves how it expands images"
            raise BackendAnswerError(what + can.hint("show_prompt"))
        if list(self.prompt_ids[: len(proof)]) != proof.tolist():
            raise BackendAnswerError("the server expanded the images to other ids, or changed ids beside them")


class GenerateClient(Protocol):
    """A client of SGLang's `/generate` in Python: its fields are keywords, its answer is returned."""

    async def generate(self, input_ids: list[int], /, **fields: Any) -> Mapping[str, Any]:
        """Sample a continuation."""
        ...


class Backend(ABC):
    """The generation backend. A subclass defines `ask`; all other methods have a default.

    ```python
    class Constant(Backend):
        async def ask(self, request: GenerateRequest) -> GenerateAnswer:
            return GenerateAnswer(output_ids=array("i", [7]), finish=Finish(type=FinishType.STOP, matched=7))
    ```
    """

    sampling_model: ClassVar[type[SamplingParams]] = SamplingParams
    """The sampling parameters that the backend has, with its ranges."""

    @property
    def extra_sampling_keys(self) -> Collection[str]:
        """Further sampling parameters, let through unchecked."""
        return ()

    @abstractmethod
    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """Sample a continuation. Cancelling the call ends it at the backend, too.

        An interruption by the server is an answer whose finish is an abort.

        Raises:
            BackendRequestError: The request is wrong; nothing was sent.
            BackendError: The call failed, and nothing of it may be recorded. `BackendContextLengthError` where prompt
                and reply do not fit, `BackendThrottledError`, `BackendConnectionError` and `BackendAnswerError` where
                repeating did not help.
        """

    async def score(
        self,
        ids: Sequence[int] | array[int] | NDArray[Any],
        *,
        start: int = 0,
        top_k: int = 0,
        images: Sequence[PlacedMedium] = (),
    ) -> ScoredPrompt:
        """Log-probabilities of tokens that are there already, at temperature 1: a forward pass over them.

        Args:
            ids: The whole sequence: a list of token ids or an integer array.
            start: First position to score, in `[0, len(ids))`. Position i scores token i given those before it; the
                first token of the sequence has no value.
            top_k: Number of the most likely tokens to return at each position.
            images: The images of the sequence in order, which `ids` holds expanded. Their tokens have no value.

        Returns:
            Exactly the tokens from `start` on, log-probabilities in nats.

        Raises:
            BackendRequestError: The backend scores no prompts, or takes no images.
            BackendError: As `ask`; `BackendAnswerError` where the answer does not score these very tokens.
        """
        if self.capabilities.prompt_scoring is PromptScoring.NONE:
            raise BackendRequestError(f"{type(self).__name__} scores no prompts{self.capabilities.hint('score')}")
        if images and not self.capabilities.images:
            raise BackendRequestError(f"{type(self).__name__} takes no images{self.capabilities.hint('images')}")
        whole = token_array(ids)
        prompt = whole[:]
        for image in reversed(images):  # one placeholder for each is sent; from the end, so that offsets stay right
            del prompt[image.offset + 1 : image.offset + image.length]
        request = GenerateRequest(
            prompt=prompt,
            sampling_params={"max_new_tokens": 1, "temperature": 1.0},
            score_from=start,
            score_top_k=top_k,
            images=tuple(image.data for image in images),
            show_prompt=bool(images),
            growth=len(whole) - len(prompt),
        )
        answer = await self.ask(request)
        if images:
            answer.check_expansion(len(whole), whole, self.capabilities)
        scored, count = answer.scored_prompt, len(whole) - start
        if scored is None or len(scored.ids) < count:
            raise BackendAnswerError(f"the answer does not score the {count} tokens from position {start} on")
        values = scored.values_of(whole[start:], [(image.offset - start, image.length) for image in images])
        if top_k and (scored.top_ids is None or len(scored.top_ids) != top_k * len(scored.ids)):
            raise BackendAnswerError(f"the answer lacks the {top_k} most likely tokens of some position")
        return ScoredPrompt(
            ids=whole[start:],
            logprobs=values,
            top_ids=scored.top_ids[-count * top_k :] if top_k and scored.top_ids is not None else None,
            top_logprobs=scored.top_logprobs[-count * top_k :] if top_k and scored.top_logprobs is not None else None,
        )

    async def abort(self, rid: str) -> bool:
        """End the request of this id with the tokens sampled so far; True if anything took the call."""
        return False

    async def info(self) -> BackendInfo:
        """The served model. Asked for before every call, so it is remembered."""
        return BackendInfo()

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Release connections; calls in flight fail."""

    @property
    def capabilities(self) -> Capabilities:
        """The abilities that a conversation may use."""
        return Capabilities()

    @property
    def closings(self) -> int:
        """Number of times it was closed: work of several calls ends when it changes."""
        return 0

    @property
    def has_own_generate(self) -> bool:
        """Somebody replaced the `generate` of SGLang's client; then that is asked, in place of `ask`."""
        return False

    @property
    def image_expander(self) -> ImageExpander | None:
        """Expands images as the served model does; None where the backend does not know."""
        return None

    def check_sampling_params(self, params: Mapping[str, Any], *, vocab_size: int | None = None) -> dict[str, Any]:
        """A checked copy of sampling parameters, without those that are None.

        Raises:
            BackendRequestError: One is unknown or out of range.
        """
        extra = self.extra_sampling_keys
        return check_sampling_params(params, self.sampling_model, extra_keys=extra, vocab_size=vocab_size)

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Checked copy of the fields in the option `request_fields`; `BackendRequestError` for one it does not have."""
        if fields:
            raise BackendRequestError(f"request_fields {sorted(fields)}: the backend has no such fields")
        return {}
