"""`TinkerClient`: a sampling client of Tinker's API as a backend. Written against tinker 0.38.0.

The package's own client is asked, which queues, polls and repeats; here its answers are checked and its errors named.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from array import array
from typing import Any, Final

from typing_extensions import override

from ..exceptions import BackendAnswerError, BackendConnectionError, BackendError, BackendRequestError
from ..trajectory import Finish, FinishType
from .answer import check_output, checked_ids, checked_logprobs, http_error, top_rows, weight_spans
from .contract import (
    Backend,
    BackendInfo,
    Capabilities,
    GenerateAnswer,
    GenerateRequest,
    LogprobKind,
    PromptScoring,
    ScoredPrompt,
    check_prompt,
)
from .sampling import SamplingParams

_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_token_ids": "stop",
    "sampling_seed": "seed",
}
"""Our names of sampling parameters, and Tinker's."""


class TinkerSamplingParams(SamplingParams):
    """The sampling parameters that Tinker's API has."""

    lacking = (
        set(SamplingParams.model_fields)
        - set(_NAMES)
        - {"skip_special_tokens", "no_stop_trim", "spaces_between_special_tokens"}  # of text, which is not asked for
    )
    why_lacking = "Tinker's API does not have it; stops are given as stop_token_ids"


class TinkerClient(Backend):
    """Samples from a `tinker.SamplingClient`.

    Tinker does not say which distribution its log-probabilities belong to after temperature, top-p and top-k, so they
    are given at temperature 1 without the others, where all are the same, and refused elsewhere.

    ```python
    sampler = await tinker.ServiceClient().create_sampling_client(base_model="Qwen/Qwen3-8B")
    model = SGLangModel(client=TinkerClient(sampler), tokenizer=sampler.get_tokenizer())
    ```

    Args:
        sampler: The client that samples.
        version: Version of its weights, which the trajectories then name; None where it is not known.
        model: Name of the model.
        context_length: Most tokens of prompt and reply; give it, or a prompt that is too long fails at the server.
        vocab_size: Rows of the model's embedding.
    """

    sampling_model = TinkerSamplingParams

    def __init__(
        self,
        sampler: Any,
        *,
        version: str | int | None = None,
        model: str | None = None,
        context_length: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        if not callable(getattr(sampler, "sample", None)):
            raise TypeError(f"got {sampler!r:.100}, expected a SamplingClient: create_sampling_client() makes it")
        self._info = BackendInfo(model=model, context_length=context_length, vocab_size=vocab_size)
        self.use(sampler, version=version)

    def use(self, sampler: Any, *, version: str | int | None = None) -> None:
        """Sample from other weights from the next call on, such as those that a training step has saved."""
        self._sampler, self._version = sampler, None if version is None else str(version)

    @property
    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            logprobs=LogprobKind.SAMPLED,
            prompt_scoring=PromptScoring.CACHED,
            weight_versions=self._version is not None,
            hints={"weight_versions": "give TinkerClient(version=)"},
        )

    @override
    async def info(self) -> BackendInfo:
        return self._info

    @override
    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """Sample a continuation, or score the prompt."""
        vocab_size = request.vocab_size or self._info.vocab_size
        check_prompt(request.prompt, vocab_size)
        if request.images:
            raise BackendRequestError("TinkerClient takes no images")
        given = {ours: value for ours, value in request.sampling_params.items() if value is not None}
        is_plain = given.get("temperature", 1.0) == 1.0 and given.get("top_p", 1.0) == 1.0
        if request.logprobs and not (is_plain and given.get("top_k", -1) in (-1, 0)):
            raise BackendRequestError(
                "Tinker does not say which log-probabilities it gives after temperature, top_p and top_k: sample at "
                "temperature 1 without the others, or, where nothing is trained, set return_logprob=False"
            )
        if request.before_attempt is not None:
            request.before_attempt()
        version, sampler = self._version, self._sampler
        if inspect.isawaitable(sampler):  # one that was not awaited would hold up the event loop while it is made
            sampler = await sampler
        tinker: Any = importlib.import_module("tinker")
        options: dict[str, Any] = {}
        if request.score_from is not None:
            options = {"include_prompt_logprobs": True, "topk_prompt_logprobs": request.score_top_k}
            if 1 <= (last := len(request.prompt) - request.score_from) < len(request.prompt):
                options["prompt_logprobs_last_n"] = last
        try:
            future = sampler.sample(
                tinker.types.ModelInput.from_ints(request.prompt.tolist()),
                1,
                tinker.types.SamplingParams(**{_NAMES[n]: value for n, value in given.items() if n in _NAMES}),
                **options,
            )
            try:
                answer = await future
            except asyncio.CancelledError:
                if callable(cancel := getattr(future, "cancel", None)):
                    cancel()
                raise
        except tinker.TinkerError as error:
            raise _named(tinker, error) from error
        return self._read(answer, request, version, vocab_size)

    def _read(self, answer: Any, request: GenerateRequest, version: str | None, vocab: int | None) -> GenerateAnswer:
        try:
            (sequence,) = answer.sequences
            ids = checked_ids("tokens", list(sequence.tokens))
            values = sequence.logprobs if request.logprobs else None
            reason = str(sequence.stop_reason)
        except (TypeError, ValueError, AttributeError) as error:
            raise BackendAnswerError(f"the answer cannot be read ({error!r}): {answer!r:.200}") from error
        if reason not in ("stop", "length"):
            raise BackendAnswerError(f"the answer ended with {reason!r}, expected stop or length")
        is_stop = reason == "stop" and bool(ids)
        finish = Finish(type=FinishType(reason), matched=ids[-1] if is_stop else None)
        check_output(ids, finish, vocab_size=vocab, max_new_tokens=request.max_new_tokens)
        if values is not None and len(values) != len(ids):
            raise BackendAnswerError(f"the answer has {len(values)} log-probabilities for {len(ids)} tokens")
        return GenerateAnswer(
            output_ids=ids,
            output_logprobs=None if values is None else checked_logprobs("logprobs", values),
            finish=finish,
            weight_spans=weight_spans(None, version, len(ids)),
            cached_tokens=answer.prompt_cache_hit_tokens,
            prompt_tokens=len(request.prompt),
            scored_prompt=_scored(answer, request),
        )


def _scored(answer: Any, request: GenerateRequest) -> ScoredPrompt | None:
    if (start := request.score_from) is None:
        return None
    values, ids = answer.prompt_logprobs, request.prompt[start:]
    if values is None or len(values) != len(request.prompt):
        raise BackendAnswerError(f"the answer does not score the {len(request.prompt)} tokens of the prompt")
    rows: dict[str, Any] = {}
    if request.score_top_k:
        rows = top_rows("topk_prompt_logprobs", [row or () for row in answer.topk_prompt_logprobs or ()][start:])
    return ScoredPrompt(ids=array("i", ids), logprobs=checked_logprobs("prompt_logprobs", values[start:]), **rows)


def _named(tinker: Any, error: Any) -> BackendError:
    """Tinker's error by the names that a conversation knows."""
    if isinstance(error, tinker.APIStatusError):
        text = error.response.text
        return http_error(error.status_code, text, error.message, overflows=False, hint=None)
    if isinstance(error, tinker.APIConnectionError):
        return BackendConnectionError(f"Tinker's API gives no answer: {error.message}")
    return BackendError(f"the request failed at Tinker: {error}")
