"""Asynchronous HTTP client of vLLM's `/inference/v1/generate`: one prompt of ids in, one checked answer out.

Start the server with `vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs`. What each of its
answers and errors means is written down in `docs/servers-and-routers.md`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from ...exceptions import (
    BackendAnswerError,
    BackendConnectionError,
    BackendContextLengthError,
    BackendError,
    BackendHTTPError,
    BackendRequestError,
)
from ..contract import (
    BackendInfo,
    Capabilities,
    GenerateAnswer,
    GenerateRequest,
    LogprobKind,
)
from ..http.call import GenerateCall
from ..http.connections import KEEPALIVE_S, Attempt
from ..http.retry import RetryClass
from ..http.served import MODELS, ServerKind, listed_models, vocab_size_of_folder
from ..http.server_client import ServerClient
from ..http.transport import LoopTransport
from ..http.user_transport import HTTPResponse
from .answer import RID_PREFIX, http_error, read_answer
from .request import CAPABILITIES, RAW_HINT, VLLMSamplingParams, check_fields, is_plain, wire_fields

logger = logging.getLogger(__name__)

# Prompts that show which log-probabilities a server returns; ids that every vocabulary has.
_PROBES: Final = tuple(
    array("i", range(start, start + length)) for start, length in ((10, 24), (60, 7), (30, 3), (97, 1))
)
_ROUNDS: Final = 4  # under load, probes get new connections at first
# Least and greatest difference of two log-probabilities that tells it.
_TELLING: Final = (0.01, 50.0)


class VLLMClient(ServerClient):
    """Client of a vLLM server or router; its options are those of `ServerClient`.

    Two samples of one token show which log-probabilities the server returns: before the first call that wants them,
    after 4 s without one, and for answers on new connections, as after a restart. Raw ones, vLLM's default, are refused
    where they are not those of the sampling.

    ```python
    async with VLLMClient("http://localhost:8000") as client:
        model = TokenModel(client=client, tokenizer=get_tokenizer("Qwen/Qwen3-8B"))
    ```
    """

    sampling_model = VLLMSamplingParams
    server = ServerKind(
        name="vllm",
        generate_route="/inference/v1/generate",
        abort_route="/inference/v1/abort_requests",
        answer_key="choices",
        wire_names=("request_id", b"token_ids"),
        affinity_header="X-Session-ID",
        start_command="vllm serve MODEL --port PORT",
        key_variable="VLLM_API_KEY",
        tokenizer_route=MODELS,
        tokenizer_fields=("root", "id"),
        name_routes=(MODELS,),
        name_field="id",
    )

    _info: BackendInfo | None = None
    _logprobs: LogprobKind | None = None
    _asked_at = 0.0
    _used_at = 0.0

    @property
    @override
    def capabilities(self) -> Capabilities:
        return CAPABILITIES if self._logprobs is None else replace(CAPABILITIES, logprobs=self._logprobs)

    check_fields = staticmethod(check_fields)

    @override
    async def info(self) -> BackendInfo:
        """Model and context length from `/v1/models`, asked for until they are known."""
        if self._info is None:
            try:
                self._info = await asyncio.to_thread(self._read_models, await self._get(MODELS))
            except (BackendHTTPError, BackendAnswerError, BackendConnectionError) as error:
                # The server may be starting, or a router lists no models: the call itself is repeated by the table.
                if self._classify(error) is RetryClass.NEVER:
                    raise
                logger.debug("base_url=<%s>, error=<%s> | no model list", self.base_url, error)
                return BackendInfo(vocab_size=self._vocab_size)
        return self._info

    def _read_models(self, listing: Any) -> BackendInfo:
        model = next((model for model in listed_models(listing) if "id" in model), None)
        if model is None:
            raise BackendAnswerError(f"{MODELS} names no model: {listing!r:.200}")
        if model.get("owned_by") == "sglang":
            raise BackendRequestError(f"{self.base_url} is an SGLang server: use SGLangClient, or --backend sglang")
        length = model.get("max_model_len")
        return BackendInfo(
            model=model["id"],
            context_length=length if isinstance(length, int) else None,
            vocab_size=self._vocab_size or vocab_size_of_folder(model.get("root")),
        )

    @override
    async def ask(self, request: GenerateRequest, *, call: GenerateCall | None = None) -> GenerateAnswer:
        """The answer to a request of a conversation.

        Raises:
            BackendRequestError: The request is wrong, or the server's log-probabilities are not those of its sampling.
            BackendContextLengthError: Prompt and reply do not fit; vLLM would cut the reply without a word.
            BackendError: As of any backend.
        """
        info = await self.info()
        if request.vocab_size is None:
            request = replace(request, vocab_size=info.vocab_size)
        length = request.prompt_tokens + (request.max_new_tokens or 1)
        if info.context_length is not None and length > info.context_length:
            raise BackendContextLengthError(
                f"{request.prompt_tokens} tokens and {request.max_new_tokens or 1} new ones do not fit the context of "
                f"{info.context_length}",
                status=400,
                body="",
            )
        in_question = request.logprobs and not is_plain(request.sampling_params)
        if in_question:
            idle = time.monotonic() - self._used_at > KEEPALIVE_S
            await self._check_logprobs(request, since=time.monotonic() if idle else 0.0)
        call = call or self._write(request)
        answer = await super().ask(request, call=call)
        if in_question:  # a new connection may lead to a server that was restarted in another mode
            await self._check_logprobs(request, since=call.opened)
            self._used_at = time.monotonic()
        return answer

    @override
    def _note_failure(self, transport: LoopTransport, attempt: Attempt, error: BackendError) -> None:
        super()._note_failure(transport, attempt, error)
        if attempt.kind is RetryClass.UNREACHABLE:  # the next server to answer may run another model, in another mode
            self._info, self._asked_at = None, 0.0

    async def _check_logprobs(self, request: GenerateRequest, *, since: float) -> None:
        """Refuse raw log-probabilities, after asking for the mode unless it was asked for after `since`.

        Nothing that vLLM answers tells two of its processes apart. But a restart closes every connection: the process
        behind one that was open when the mode was asked for is the process that was asked.
        """
        async with self._transport().probing:
            if not self._asked_at or self._asked_at < since:
                self._logprobs, self._asked_at = await self._ask_logprobs(request)
                self._used_at = time.monotonic()
                logger.debug("base_url=<%s>, logprobs=<%s> | asked for the mode", self.base_url, self._logprobs)
        if self._logprobs is LogprobKind.RAW:
            self._asked_at = 0.0  # a refusal rests on a mode asked for just now, too
            raise BackendRequestError(RAW_HINT)

    async def _ask_logprobs(self, request: GenerateRequest) -> tuple[LogprobKind, float]:
        """The mode and when it held, from the difference of the two best tokens at temperature 1 and 2.

        It halves if the log-probabilities are those of the sampling.
        """
        for ids in _PROBES * _ROUNDS:
            once, _ = await self._best_two_differ(ids, 1.0, request)
            answered_at = time.monotonic()
            twice, opened = await self._best_two_differ(ids, 2.0, request)
            if opened > answered_at:
                continue  # a new connection: the two may be answers of two processes
            if once is not None and twice is not None and _TELLING[0] <= once <= _TELLING[1]:
                return (LogprobKind.SAMPLED if twice / once < 0.75 else LogprobKind.RAW), answered_at
        raise BackendAnswerError(
            f"{self.base_url} does not show which log-probabilities it returns: no two tokens differ in likelihood"
        )

    async def _best_two_differ(
        self, ids: array[int], temperature: float, request: GenerateRequest
    ) -> tuple[float | None, float]:
        """Difference of the log-probabilities of the two most likely tokens, or None, and `GenerateCall.opened`."""
        probe = GenerateRequest(
            prompt=ids,
            # The list begins with the sampled token and is cut to its length: the best two are in three.
            sampling_params={"max_new_tokens": 1, "temperature": temperature, "logprobs": 3},
            logprobs=False,
            before_attempt=request.before_attempt,
            fields={name: value for name, value in request.fields.items() if name == "model"},
        )
        call = self._write(probe)
        answer = await super().ask(probe, call=call)
        try:
            (entry,) = answer.payload["choices"][0]["logprobs"]["content"]
            by_rank = {each["rank"]: each["logprob"] for each in entry["top_logprobs"]}
            return float(by_rank[1] - by_rank[2]), call.opened
        except (LookupError, TypeError, ValueError):
            return None, call.opened

    # ------------------------------------------------------------ of the server

    _wire_fields = staticmethod(wire_fields)
    _http_error = staticmethod(http_error)

    @override
    def _read(self, call: GenerateCall, response: HTTPResponse, rid: str) -> GenerateAnswer:
        return read_answer(self._parse(response.body), call.request, rid=rid)

    @staticmethod
    @override
    def _abort_body(rid: str) -> dict[str, Any]:
        return {"request_ids": [f"{RID_PREFIX}{rid}"]}
