"""From a rendered call to its completion: what is sent besides the prompt, and how long the turn may become."""

from __future__ import annotations

import logging
import marshal
from array import array
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from ..backends.sglang.request import GenerateRequest, PromptIds
from ..backends.sglang.sampling import CONTEXT_RESERVE, GRAMMAR_KEYS, bound_max_new_tokens, check_vocabulary
from ..exceptions import ContextOverflowError, SGLangContextLengthError, TokenBudgetReachedError
from ..media import expanded_ids, moved
from ..trajectory import Completion, FinishType, Location, TrajectoryForest, Turn
from ..trajectory.segments import TOKEN_TYPECODE
from .budget import Bounds, Share
from .generation import CallPlan, GenerateClient, generate
from .options import AbortPolicy, SGLangConfig
from .path import HeldPath, HeldPaths
from .prompts import Dialect, Prompt
from .tokenizer import TokenizerAdapter

logger = logging.getLogger(__name__)


class RenderedCall(NamedTuple):
    """A located and rendered model call.

    Attributes:
        location: Where it belongs.
        dialect: How its prompt is printed and its reply is read.
        prompt: What it appends to its path.
    """

    location: Location
    dialect: Dialect
    prompt: Prompt

    @property
    def prompt_length(self) -> int:
        """Length of the whole prompt in tokens, as the server counts it."""
        parent = self.location.parent
        return self.prompt.tokens + (parent.expanded_end if parent is not None else 0)


class Sampler:
    """Samples completions of calls.

    Args:
        tokens: The tokenizer.
        forest: The episode, for what was sampled before.
        vocab_size: Number of ids the model takes, or None to ask the client.
    """

    def __init__(self, tokens: TokenizerAdapter, forest: TrajectoryForest, vocab_size: int | None) -> None:
        self._tokens = tokens
        self._forest = forest
        self._vocab_size = vocab_size
        self._paths = HeldPaths()
        self._epoch = forest.epoch
        self._lacks_experts = False
        self._checked: tuple[tuple[bytes, int | None, Collection[str]] | None, Mapping[str, Any]] = None, {}
        """What the last sampling parameters were checked by, and what came of it."""

    def _path(self, parent: Turn | None) -> HeldPath:
        if self._epoch != self._forest.epoch:
            self._paths.clear()
            self._epoch = self._forest.epoch
        return self._paths.up_to(parent)

    async def sample(
        self,
        client: GenerateClient,
        call: RenderedCall,
        config: SGLangConfig,
        share: Share,
        *,
        routing_key: str,
        constraints: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Completion:
        """The completion of a call.

        Args:
            client: What speaks the generate contract.
            call: The call.
            config: Options in force.
            share: Its share of the budget of sampled tokens.
            routing_key: Session affinity key.
            constraints: Sampling parameters of this call alone.
            fields: Top-level fields of this call alone.

        Raises:
            ContextOverflowError: The prompt leaves no room in the context.
            TokenBudgetReachedError: A token budget was used up before.
            SGLangClientError: The call failed.
        """
        path = self._path(call.location.parent)
        vocab_size = self._vocab_size or await _ask(client, "vocab_size")
        params = {"skip_special_tokens": False, **config["sampling_params"], **(constraints or {})}
        bounds = await self._bounds(client, call, config, share, params.get("max_new_tokens"))
        params["max_new_tokens"] = bound_max_new_tokens(bounds.reply, 0, None, _least(bounds, sampled=True))
        if params.get("min_new_tokens", 0) > params["max_new_tokens"]:
            params["min_new_tokens"] = params["max_new_tokens"]
        extra_fields = {**config["request_fields"], **(fields or {})}
        media, proof = call.prompt.media, None
        if seen := path.media + moved(media, len(path.ids)):
            extra_fields["image_data"] = [medium.data for medium in seen]
            # The first request with images shows how the server expands them, as does each that asks to see it.
            if not path.media or extra_fields.get("return_prompt_token_ids"):
                extra_fields["return_prompt_token_ids"] = True
                proof = expanded_ids(array(TOKEN_TYPECODE, path.ids.tolist()) + call.prompt.ids, seen)
        score_prompt = _scores_prompt(config, path.tokens, call.prompt.tokens)
        request = self._request(
            self._paths.extended(path, call.prompt.ids),
            params,
            _returned(config, path.tokens, score_prompt),
            extra_fields,
            extra_sampling_keys=getattr(client, "extra_sampling_keys", ()),
            routing_key=routing_key,
            vocab_size=vocab_size,
            growth=path.growth + call.prompt.tokens - len(call.prompt.ids),
        )
        plan = CallPlan(
            held=path.tokens,
            prompt_ids=call.prompt.ids,
            media=media,
            proof=proof,
            score_prompt=score_prompt,
            experts_required=config["require_routed_experts"],
            expert_row_bytes=path.expert_row_bytes,
            # A grammar starts over in a resumed request, so constrained output is never resumed.
            abort_policy=AbortPolicy.SURFACE if params.keys() & GRAMMAR_KEYS else config["abort_policy"],
            abort_timeout=config["abort_timeout"],
            tokens=self._tokens,
            stop_ids=path.stop_ids,
        )
        try:
            completion = await generate(client, request, plan)
        except SGLangContextLengthError as error:
            used = call.prompt_length
            context = config["context_window_limit"] or await _ask(client, "max_model_len")
            limit = used - 1 if context is None else min(context, used - 1)
            raise ContextOverflowError(used, limit, str(error)) from error
        if config["return_routed_experts"]:
            self._check_experts(completion)
        if completion.finish.type is not FinishType.LENGTH:
            return completion
        bound = bounds.tightest(params["max_new_tokens"])
        return replace(completion, finish=replace(completion.finish, limited_by=bound))

    def _request(
        self,
        prompt: PromptIds,
        params: dict[str, Any],
        returned: dict[str, Any],
        extra_fields: dict[str, Any],
        *,
        extra_sampling_keys: Collection[str],
        routing_key: str,
        vocab_size: int | None,
        growth: int,
    ) -> GenerateRequest:
        """A checked request. Sampling parameters that are those of the last call, types included, were checked then.

        Args:
            prompt: The prompt.
            params: Sampling parameters.
            returned: Fields that say what is recorded, of this module's own making.
            extra_fields: Any others.
            extra_sampling_keys: Sampling parameters to let through unchecked.
            routing_key: Session affinity key.
            vocab_size: Number of ids the model takes, or None.
            growth: Tokens by which images make the server's prompt longer.
        """
        try:
            rules = marshal.dumps(params, 2), vocab_size, extra_sampling_keys
        except ValueError:  # no plain data: the checks say what is wrong, or make such data of it
            rules = None
        known, checked = self._checked
        if rules is None or rules != known or extra_fields:
            fields = {**extra_fields, **returned, "sampling_params": params, "routing_key": routing_key}
            request = GenerateRequest.checked(
                prompt, fields, vocab_size=vocab_size, extra_sampling_keys=extra_sampling_keys, growth=growth
            )
            self._checked = rules, request.fields["sampling_params"]
            return request
        check_vocabulary(prompt.highest, vocab_size)
        return GenerateRequest(
            prompt=prompt,
            fields={"sampling_params": dict(checked), **returned},
            routing_key=routing_key,
            vocab_size=vocab_size,
            growth=growth,
        )

    def _check_experts(self, completion: Completion) -> None:
        missing = completion.routed_experts is None and completion.finish.type is not FinishType.ABORT
        if missing and not self._lacks_experts:
            self._lacks_experts = True
            logger.warning(
                "return_routed_experts=<True> | the server returned no routed experts, so routed_experts is None: the "
                "model is dense, the server runs without --enable-return-routed-experts, or a router drops the field"
            )

    async def _bounds(
        self, client: GenerateClient, call: RenderedCall, config: SGLangConfig, share: Share, requested: int | None
    ) -> Bounds:
        used = call.prompt_length
        path_limit, episode_limit = config["max_trajectory_tokens"], config["max_sampled_tokens"]

        def left_of_episode() -> int:
            assert episode_limit is not None
            return _left("max_sampled_tokens", episode_limit, self._forest.sampled_tokens)

        if episode_limit is not None:
            left_of_episode()
        context = config["context_window_limit"] or await _ask(client, "max_model_len")
        bounds = Bounds(
            reply=requested,
            trajectory=None if path_limit is None else _left("max_trajectory_tokens", path_limit, used),
            sampled=None,
            context=None if context is None else context - used - CONTEXT_RESERVE,
        )
        if bounds.context is not None and bounds.context <= 0 and requested != 0:
            raise ContextOverflowError(
                used,
                cast(int, context) - CONTEXT_RESERVE - 1,
                f"the prompt ({used} tokens) leaves no room to sample in a context of {context} tokens",
            )
        if episode_limit is None:
            return bounds
        wanted = [bound for bound in (requested, _least(bounds)) if bound is not None]
        grant = await share.hold(min(wanted, default=None), left_of_episode)
        return bounds._replace(sampled=grant.tokens if grant.is_rest else None)


async def _ask(client: GenerateClient, name: str) -> int | None:
    """A fact about the served model that the client may know, as a number or as a coroutine function."""
    fact = getattr(client, name, None)
    if callable(fact):
        fact = await fact()
    return fact if isinstance(fact, int) else None


def _left(budget: str, limit: int, used: int) -> int:
    if used >= limit:
        raise TokenBudgetReachedError(budget, limit, used)
    return limit - used


def _least(bounds: Bounds, *, sampled: bool = False) -> int | None:
    values = (bounds.trajectory, bounds.context, bounds.sampled if sampled else None)
    return min((value for value in values if value is not None), default=None)


def _scores_prompt(config: SGLangConfig, held: int, new: int) -> bool:
    """Whether the new prompt tokens are scored: by default those appended to a path, up to the limit."""
    wanted, limit = config["return_prompt_logprobs"], config["prompt_logprobs_limit"]
    return wanted is True or (wanted == "appended" and held > 0 and (limit is None or new <= limit))


def _returned(config: SGLangConfig, held: int, score_prompt: bool) -> dict[str, Any]:
    """The fields that ask for what is recorded."""
    fields: dict[str, Any] = {"return_logprob": config["return_logprob"]}
    if config["return_logprob"]:
        # -1 leaves the whole prefix cache usable; a start inside the prompt caps the cache there. The first scored
        # position has no value, so scoring starts one early: at the last sampled token, whose key and value were never
        # computed, so that this costs no cache either.
        fields["logprob_start_len"] = max(held - 1, 0) if score_prompt else -1
    fields["return_routed_experts"] = config["return_routed_experts"]
    if config["return_routed_experts"]:
        fields["routed_experts_start_len"] = max(held - 1, 0)
    if config["return_sampling_mask"]:
        fields["return_sampling_mask"] = True
    return fields
