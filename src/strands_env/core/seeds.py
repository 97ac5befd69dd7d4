"""Seeds of sampling: from the seed of a rollout to one for each of its models, and for each of their calls."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest
from strands_sglang.trajectory import FinishType

FIELD = "rollout_seed"
"""Field of the task context that takes the seed to wherever the rollout runs, and into the results."""
_BITS = 53
"""Bits of a seed: SGLang takes 63, JavaScript shows 53 as they are."""


def derive_seed(*parts: int | str | bytes) -> int:
    """A seed that depends on all parts and reveals none of them: 53 bits of blake2b."""
    data = b""
    for part in parts:
        encoded = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        # With their lengths, so that "ab", "c" and "a", "bc" differ.
        data += len(encoded).to_bytes(8, "little") + encoded
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> (64 - _BITS)


class RolloutSeed:
    """The seed of a rollout; factories of models that are made meanwhile draw from it.

    Models get theirs in the order in which they are made, so a rollout is repeatable that makes them in one order.

    Attributes:
        is_used: A model samples by it; a factory that passes it on sets this, and only then is the seed recorded.
    """

    def __init__(self, seed: int) -> None:
        self.is_used = False
        self._seed = seed
        self._models = 0

    @staticmethod
    def current() -> RolloutSeed | None:
        """The seed of the rollout that runs the calling code, threads and tasks it started included."""
        return _current.get()

    @contextmanager
    def active(self) -> Iterator[RolloutSeed]:
        """Make this the current one."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def for_model(self) -> int:
        """The seed of the next model."""
        self._models += 1
        return derive_seed(self._seed, "model", self._models)


_current: ContextVar[RolloutSeed | None] = ContextVar("strands_env_rollout_seed", default=None)


class SeededBackend(BackendWrapper):
    """A backend with a `sampling_seed` for every call that brings none.

    The seed of a call depends on the model's seed, on the prompt and on how often this prompt came before. So turns and
    repeated questions differ, and calls that run side by side need no order. A call that continues an
    aborted one has its seed.
    """

    def __init__(self, inner: Any, seed: int) -> None:
        super().__init__(inner)
        self._seed = seed
        self._prompts: Counter[bytes] = Counter()
        self._partial: dict[bytes, int] = {}

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """The answer of the backend."""
        if request.sampling_params.get("sampling_seed") is not None:
            return await self.inner.ask(request)
        prompt = _digest(request.prompt)
        seed = self._partial.pop(prompt, None)
        if seed is None:
            self._prompts[prompt] += 1
            seed = derive_seed(self._seed, prompt, self._prompts[prompt])
        params = {**request.sampling_params, "sampling_seed": seed}
        answer = await self.inner.ask(replace(request, sampling_params=params))
        if answer.finish.type is FinishType.ABORT:
            self._partial[_digest(request.prompt + answer.output_ids)] = seed
        return answer


def _digest(prompt: array[int]) -> bytes:
    """Digest of the ids, not of their representation: the same seeds sample the same in every version."""
    return hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16).digest()
