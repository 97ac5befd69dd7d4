"""Plans a rendered call: the fields sent beside the prompt, and the bounds on its length."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..backends import CONSTRAINTS, Backend, Capabilities, GenerateRequest, PromptScoring
from ..exceptions import BackendRequestError, ContextOverflowError, MediaError, TokenBudgetReachedError
from ..tokenizer import TokenizerAdapter
from ..trajectory import TrajectoryForest, Turn
from ..trajectory.media import expanded_ids, move_media
from ..trajectory.packed import TOKEN_TYPECODE
from .budget import Bounds, Reservation
from .model_options import AbortPolicy, SGLangConfig
from .prompts import PreparedTurn

_SCALARS = (bool, int, float, str)


class CallPlan(NamedTuple):
    """A request, and the facts that its answers are read by.

    Attributes:
        request: The request, with an explicit `max_new_tokens`.
        call: The call it is for.
        config: The options in force.
        context_length: Tokens that the model takes, or None if unknown.
        proof: The whole prompt as the server has to expand it, or None where that was proved before.
        tokens: The model's tokenizer.
    """

    request: GenerateRequest
    call: PreparedTurn
    config: SGLangConfig
    bounds: Bounds
    context_length: int | None
    proof: array[int] | None
    tokens: TokenizerAdapter

    @property
    def resumes(self) -> bool:
        """An aborted request is resumed. Never under a grammar, which would start over in the resumed request."""
        is_constrained = self.request.sampling_params.keys() & CONSTRAINTS
        return not is_constrained and self.config["abort_policy"] != AbortPolicy.SURFACE


class CallPlanner:
    """Plans the calls of an episode (`forest`).

    Args:
        vocab_size: None asks the client.
        proves_once: The first request of a path with images has to show how the server expands them, not every one.
    """

    def __init__(
        self, tokens: TokenizerAdapter, forest: TrajectoryForest, vocab_size: int | None, proves_once: bool
    ) -> None:
        self._tokens = tokens
        self._forest = forest
        self._vocab_size = vocab_size
        self._proves_once = proves_once
        self._sampling: tuple[Backend | None, str, dict[str, Any]] = None, "", {}

    async def plan(
        self,
        backend: Backend,
        call: PreparedTurn,
        config: SGLangConfig,
        reservation: Reservation,
        routing_key: str,
        scratch: dict[str, Any],
    ) -> CallPlan:
        """The plan of a call; `reservation` is its share of the budget of sampled tokens, `scratch` the episode's.

        Raises:
            ContextOverflowError: The prompt leaves no room in the context.
            TokenBudgetReachedError: A token budget was used up before.
            BackendRequestError: An option asks for more than the backend can do.
            BackendError: The backend does not name the model it serves.
        """
        parent = call.location.parent
        parts = (*(() if parent is None else parent.path_parts()), call.prompt.ids)
        prompt = array(TOKEN_TYPECODE, b"".join(parts))
        held_media = () if parent is None else parent.path_media()
        held_tokens = 0 if parent is None else parent.expanded_end
        used = held_tokens + call.prompt.tokens
        context, vocab_size = config["context_window_limit"], self._vocab_size
        if context is None or vocab_size is None:
            info = await backend.info()
            context, vocab_size = context or info.context_length, vocab_size or info.vocab_size
        asked = call.request
        own = {name: value for name, value in asked.params.items() if value is not None}
        wanted = {**config["sampling_params"], **own, **asked.constraints}
        can = backend.capabilities
        refuse_incapable(can, config, wanted)
        # A model asks for the same in every call, and its parameters are checked once. By their spelling, which tells
        # True and 1 apart, and a list that was changed.
        checked_by, spelled, checked = self._sampling
        if checked_by != backend or spelled != (spelled := f"{wanted!r}, {vocab_size}"):
            checked = backend.check_sampling_params(wanted, vocab_size=vocab_size)
            self._sampling = backend, spelled, checked
        wanted = {name: value if type(value) in _SCALARS else copy.deepcopy(value) for name, value in checked.items()}
        bounds = await self._bounds(context, can, used, parent, config, reservation, wanted.get("max_new_tokens"))
        wanted["max_new_tokens"] = longest = bounds.most_tokens()
        # A budget may leave less than the least length asked for; servers refuse such a request.
        if wanted.get("min_new_tokens", 0) > longest:
            wanted["min_new_tokens"] = longest
        seen = held_media + move_media(call.prompt.media, len(prompt) - len(call.prompt.ids))
        if seen and not can.images:
            raise MediaError(f"the backend takes no images{can.hint('images')}")
        proves = bool(seen) and not (held_media and self._proves_once)
        wants_scores, limit = config["return_prompt_logprobs"], config["prompt_logprobs_limit"]
        if not config["return_logprob"] or can.prompt_scoring is PromptScoring.NONE:
            scores = False
        elif wants_scores == "appended":  # those behind a path, where they are cheap
            is_short = limit is None or call.prompt.tokens <= limit
            scores = can.prompt_scoring is PromptScoring.CACHED and held_tokens > 0 and is_short
        else:
            scores = wants_scores is True
        experts = config["return_routed_experts"] and can.routed_experts
        request = GenerateRequest(
            prompt=prompt,
            parts=parts,
            sampling_params=wanted,
            routing_key=routing_key,
            logprobs=config["return_logprob"] and can.logprobs is not None,
            score_from=held_tokens if scores else None,
            experts_from=max(held_tokens - 1, 0) if experts else None,
            sampling_mask=config["return_sampling_mask"],
            images=tuple(medium.data for medium in seen),
            show_prompt=proves,
            # A grammar is about the answer: where the prompt ends inside a reasoning block, it waits for its end.
            constrain_answer_only=bool(asked.constraints) and call.prompt.open is not None,
            fields={**config["request_fields"], **asked.fields},
            vocab_size=vocab_size,
            growth=used - len(prompt),
            scratch=scratch,
        )
        return CallPlan(
            request=request,
            call=call,
            config=config,
            bounds=bounds,
            context_length=context,
            proof=expanded_ids(prompt, seen) if proves else None,
            tokens=self._tokens,
        )

    async def _bounds(
        self,
        context: int | None,
        can: Capabilities,
        used: int,
        parent: Turn | None,
        config: SGLangConfig,
        reservation: Reservation,
        requested: int | None,
    ) -> Bounds:
        limits = [config[name] for name in ("max_trajectory_tokens", "max_response_tokens", "max_sampled_tokens")]
        path_limit, response_limit, episode_limit = limits

        def left_of_episode(held: int = 0) -> int:
            assert episode_limit is not None
            return _left("max_sampled_tokens", episode_limit, self._forest.sampled_tokens + held)

        if episode_limit is not None:
            left_of_episode()
        response = 0 if parent is None or response_limit is None else used - parent.root.prompt_length
        bounds = Bounds(
            reply=requested,
            trajectory=None if path_limit is None else _left("max_trajectory_tokens", path_limit, used),
            response=None if response_limit is None else _left("max_response_tokens", response_limit, response),
            context=None if context is None else context - used - can.context_reserve,
        )
        if context is not None and bounds.context is not None and bounds.context <= 0 and requested != 0:
            raise ContextOverflowError(
                used,
                context - can.context_reserve - 1,
                f"the prompt ({used} tokens) leaves no room to sample in a context of {context} tokens",
            )
        if episode_limit is None:
            return bounds
        # Last: the call waits here, and holds as little as the other bounds leave it.
        return bounds._replace(sampled=await reservation.reserve(bounds.least(), left_of_episode))


def _left(budget: str, limit: int, used: int) -> int:
    if used >= limit:
        raise TokenBudgetReachedError(budget, limit, used)
    return limit - used


def refuse_incapable(can: Capabilities, config: SGLangConfig, params: Mapping[str, Any]) -> None:
    """Refuse (`BackendRequestError`) options that ask for more than the backend can do."""
    lacking = [
        f"the backend cannot constrain output by {name!r}{can.hint('constraints')}"
        for name in sorted(CONSTRAINTS & params.keys() - can.constraints)
    ]
    if config["return_sampling_mask"] and not can.sampling_mask:
        lacking.append(f"return_sampling_mask=True, but the backend has none{can.hint('sampling_mask')}")
    if config["require_routed_experts"] and config["return_routed_experts"] and not can.routed_experts:
        lacking.append(f"require_routed_experts=True, but there are none{can.hint('routed_experts')}")
    if config["return_prompt_logprobs"] is True and can.prompt_scoring is PromptScoring.NONE:
        lacking.append("return_prompt_logprobs=True, but the backend scores no prompts")
    if lacking:
        raise BackendRequestError("; ".join(lacking))
