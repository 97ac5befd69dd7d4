"""A generation of the engine: its sampling parameters, how far it has come, and its answer."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self

from ...trajectory import Finish, WeightSpan
from ...trajectory.packed import LOGPROB_TYPECODE, TOKEN_TYPECODE
from ..answer import top_rows
from ..contract import GenerateAnswer, GenerateRequest, ScoredPrompt

ALMOST_ZERO = 1e-6
"""Temperatures below it are greedy, as on the server: a division by them would overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Checked sampling parameters, with the engine's defaults."""

    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    greedy: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """The parameters of a request."""
        values = {name: value for name, value in params.items() if name in cls.__slots__}
        stop = values.get("stop", ())
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        values["stop_token_ids"] = frozenset(values.get("stop_token_ids", ()))
        values["logit_bias"] = {int(token): bias for token, bias in values.get("logit_bias", {}).items()}
        if values.get("temperature", 1.0) < ALMOST_ZERO:
            values |= {"temperature": 1.0, "top_k": 1}
        return cls(**values, greedy=values.get("top_k") == 1)


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """A request, and how far its answer has come. Changed by the engine's thread only.

    Attributes:
        prompt: The prompt as the model sees it, images expanded.
        seen: The prompt's images (`vision.SeenPrompt`), if any.
        prompt_keys: Replaces the prompt's ids where prefixes are compared.
        stops: Tokens that end it: the model's, and those of the request.
        matcher: State of the grammar, if there is one.
        kv: Keys and values computed so far (`runner.SequenceKV`), None while it waits.
        prompt_logprobs: Log-probabilities of the prompt positions behind `first_scored`.
        versions: Weight version, and the first output index sampled under it.
    """

    request: GenerateRequest
    rid: str
    prompt: list[int]
    decoding: Decoding
    max_new_tokens: int
    seed: int
    stops: frozenset[int]
    seen: Any = None
    prompt_keys: list[int] | None = None
    matcher: Any = None
    created: float = field(default_factory=time.perf_counter)
    future: Future[GenerateAnswer] = field(default_factory=Future)

    kv: Any = None
    cached_tokens: int | None = None
    output: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_top: list[list[tuple[int, float]]] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return self.prompt + self.output

    @property
    def keys(self) -> list[int]:
        """Prompt and output, by which prefixes are compared."""
        return (self.prompt_keys or self.prompt) + self.output

    @property
    def first_scored(self) -> int:
        """Prompt position whose logits are wanted first: they score the token after it."""
        start = self.request.score_from
        return len(self.prompt) if start is None else max(start - 1, 0)

    @property
    def cache_limit(self) -> int:
        """Tokens that may come out of the prefix cache: one must be computed, and so must every scored position."""
        return min(len(self.prompt) + len(self.output) - 1, self.first_scored)

    def answer(self, finish: Finish) -> GenerateAnswer:
        """The answer with the tokens sampled so far. A request aborted before it began knows no prompt."""
        has_begun = self.cached_tokens is not None
        ends = [start for _, start in self.versions[1:]] + [len(self.output)]
        return GenerateAnswer(
            output_ids=array(TOKEN_TYPECODE, self.output),
            output_logprobs=array(LOGPROB_TYPECODE, self.output_logprobs) if self.request.logprobs else None,
            scored_prompt=self._scored_prompt(),
            finish=finish,
            weight_spans=tuple(
                WeightSpan(version=version, start=start, end=end)
                for (version, start), end in zip(self.versions, ends, strict=True)
                if end > start
            ),
            rid=self.rid,
            prompt_tokens=len(self.prompt) if has_begun else None,
            prompt_ids=list(self.prompt) if has_begun and self.request.show_prompt else None,
            cached_tokens=self.cached_tokens,
            latency=time.perf_counter() - self.created,
        )

    def _scored_prompt(self) -> ScoredPrompt | None:
        start = self.request.score_from
        if start is None or len(self.prompt_logprobs) < len(self.prompt) - 1 - self.first_scored:
            return None  # aborted before all of it was computed
        unknown = start == 0  # nothing comes before the first token
        values = [math.nan] * unknown + self.prompt_logprobs
        rows: Sequence[list[tuple[int, float]]] = [[]] * unknown + self.prompt_top
        return ScoredPrompt(
            ids=array(TOKEN_TYPECODE, self.prompt[start:]),
            logprobs=array(LOGPROB_TYPECODE, values),
            **(top_rows("the prompt", rows) if self.request.score_top_k else {}),
        )
