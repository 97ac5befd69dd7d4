"""Asynchronous HTTP client of SGLang's native API: one prompt of ids in, one checked answer out.

What happens for any status, body and exception is written down in `docs/errors-and-retries.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from ...exceptions import BackendAnswerError, BackendError, BackendHTTPError
from ..answer import is_count
from ..contract import BackendInfo, Capabilities, GenerateAnswer, GenerateRequest, token_array
from ..http.call import GenerateCall
from ..http.connections import closed_error
from ..http.served import MODELS, ServerKind, listed_models, vocab_size_of, vocab_size_of_folder
from ..http.server_client import ServerClient
from ..http.transport import LoopTransport
from ..http.user_transport import HTTPResponse
from .answer import ROUTING_KEY_HEADER, check_belongs, classify, dropped_fields, http_error, read_answer
from .request import CAPABILITIES, SGLangSamplingParams, check_request_fields, checked_fields, wire_fields

logger = logging.getLogger(__name__)

_MODEL_INFO = ("/model_info", "/get_model_info")
_SERVER_INFO = ("/server_info", "/get_server_info")
_INFO_RETRIES = 3
_PAUSE_S = 10.0
_VOCAB_PAUSE_S = 600.0  # most servers do not tell; asking is not free
_HINTS = {
    401: "give api_key, or set SGLANG_API_KEY, to the key that the server was started with",
    404: "an SGLang server has /generate; a vLLM server is reached with VLLMClient, or --backend vllm",
}


class SGLangClient(ServerClient):
    """Client of an SGLang server or router; its options are those of `ServerClient`.

    ```python
    async with SGLangClient("http://localhost:30000", api_key=KEY) as client:
        answer = await client.generate([1, 2, 3], sampling_params={"max_new_tokens": 8}, return_logprob=True)
    ```
    """

    sampling_model = SGLangSamplingParams
    server = ServerKind(
        name="sglang",
        generate_route="/generate",
        abort_route="/abort_request",
        answer_key="meta_info",
        wire_names=("rid", b"input_ids"),
        affinity_header=ROUTING_KEY_HEADER,
        start_command="python -m sglang.launch_server --model-path MODEL --port PORT",
        key_variable="SGLANG_API_KEY",
        tokenizer_route="/get_model_info",
        tokenizer_fields=("tokenizer_path", "model_path"),
        name_routes=_SERVER_INFO,  # elsewhere the name is the folder of the last update of the weights
        name_field="served_model_name",
    )

    _max_model_len: int | None = None
    _ask_again_at = 0.0
    _reported: frozenset[str] = frozenset()

    @property
    @override
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    # ---------------------------------------------------------------- generate

    async def generate(
        self, input_ids: Sequence[int] | array[int], *, routing_key: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Sample a continuation of `input_ids` (`POST /generate`).

        Args:
            input_ids: The prompt: a list of token ids, or an integer array.
            routing_key: Keeps the requests of one episode on one worker behind a router; sent as a header.
            **fields: Top-level fields of the native API (`sampling_params`, `return_logprob`, ...). Fields that are
                None are left out, and nothing is added: without `max_new_tokens` the server samples at most 128.
                `rid` names the first attempt; a retry gets a fresh id. Ids should be random and of one length: a
                server aborts every request whose id starts with the given one.

        Returns:
            The server's answer, with `output_ids` (completed from the logprobs where an old server left them out)
            and `meta_info`. A request aborted on the server is an answer too: `finish_reason.type` is `"abort"`.

        Raises:
            BackendRequestError: The request is wrong; nothing was sent.
            BackendContextLengthError: The prompt, or prompt plus `max_new_tokens`, exceeds the context.
            BackendHTTPError: The server answered with an error (`BackendThrottledError` for 429 and 503).
            BackendConnectionError: No answer: refused, reset, timed out, or the client was closed.
            BackendAnswerError: The answer is not what it should be (`BackendAnswerLimitError`: it is too large, or
                compressed).
        """
        vocab_size = self._vocab_size
        checked = checked_fields(fields, vocab_size=vocab_size, extra_sampling_keys=self.extra_sampling_keys)
        request = GenerateRequest(
            prompt=token_array(input_ids), rid=checked.pop("rid", None), routing_key=routing_key, vocab_size=vocab_size
        )
        call = GenerateCall(request, {**checked, "stream": False}, self.server.wire_names)
        return dict((await self.ask(request, call=call)).payload)

    @override
    @property
    def has_own_generate(self) -> bool:
        return getattr(self.generate, "__func__", None) is not SGLangClient.generate

    @override
    def _wire_fields(self, request: GenerateRequest) -> dict[str, Any]:
        return {**wire_fields(request), "stream": False}

    @override
    def _read(self, call: GenerateCall, response: HTTPResponse, rid: str) -> GenerateAnswer:
        limit = (call.fields.get("sampling_params") or {}).get("max_new_tokens")
        vocab_size = call.request.vocab_size or self._vocab_size
        prompt = None if call.request.images else call.request.prompt
        payload = self._parse(response.body)
        answer = read_answer(payload, vocab_size=vocab_size, max_new_tokens=limit, prompt=prompt)
        check_belongs(answer, call, rid=rid, sent_ids=self._sent_ids)
        for name, reason in dropped_fields(call.fields, rid, answer.payload, response.headers):
            if name not in self._reported:  # once: it is so for every request of a run
                self._reported |= {name}
                logger.warning("field=<%s>, base_url=<%s> | %s", name, self.base_url, reason)
        return answer

    @staticmethod
    @override
    def _abort_body(rid: str) -> dict[str, Any]:
        return {"rid": rid}

    _classify = staticmethod(classify)

    @override
    def _http_error(self, status: int, body: bytes) -> BackendHTTPError:
        return http_error(status, body, hint=_HINTS.get(status, ""))

    # ----------------------------------------------------------- control calls

    async def get_model_info(self) -> dict[str, Any]:
        """`GET /model_info` (at routers and servers before 0.5.6 `/get_model_info`)."""
        return await self._get_object(*_MODEL_INFO, retries=_INFO_RETRIES)

    async def model_info(self) -> dict[str, Any]:
        """Upstream's name for `get_model_info`."""
        return await self.get_model_info()

    check_fields = staticmethod(check_request_fields)

    async def max_model_len(self) -> int | None:
        """Context length of the served model in tokens, from `/v1/models`; of the shortest worker behind a router."""
        return (await self.info()).context_length

    async def vocab_size(self) -> int | None:
        """Rows of the model's embedding, from the server or from its model folder if that is here, else None.

        Once known, ids beyond it are refused. The tokenizer's length is not a substitute: embeddings are often
        padded beyond it.
        """
        return (await self.info()).vocab_size

    @override
    async def info(self) -> BackendInfo:
        """Context length and vocabulary, each None where no server says it.

        A success is remembered for good, a failure for a few seconds only.
        """
        if self._is_asked():
            transport = self._transport()
            async with transport.probing:  # a thousand rollouts that start together ask once
                if self._is_asked():
                    await self._ask_info(transport)
        return BackendInfo(context_length=self._max_model_len, vocab_size=self._vocab_size)

    def _is_asked(self) -> bool:
        """The server is to be asked about itself."""
        return None in (self._max_model_len, self._vocab_size) and time.monotonic() >= self._ask_again_at

    async def _ask_info(self, transport: LoopTransport) -> None:
        if self._max_model_len is None:
            lengths = [await self._model_len_at(transport, self.base_url)]
            if lengths == [None]:  # a router does not say it, its workers do
                workers = await transport.list_workers()
                lengths = await asyncio.gather(*(self._model_len_at(transport, url) for url in workers))
            self._max_model_len = min((length for length in lengths if length is not None), default=None)
        pause = _PAUSE_S
        for paths in (_MODEL_INFO, _SERVER_INFO) if self._vocab_size is None else ():
            with contextlib.suppress(BackendError):
                info = await self._get_object(*paths, transport=transport)
                pause = _PAUSE_S if self._max_model_len is None else _VOCAB_PAUSE_S
                folder = info.get("model_path")
                self._vocab_size = vocab_size_of(info) or await asyncio.to_thread(vocab_size_of_folder, folder)
            if transport.http.closed.is_set():
                raise closed_error("the question for the vocabulary")
            if self._vocab_size is not None:
                break
        else:
            if pause is _VOCAB_PAUSE_S:
                logger.warning(
                    "base_url=<%s> | the server does not tell its vocabulary size, and an id beyond it would kill it; "
                    "give vocab_size",
                    self.base_url,
                )
        self._ask_again_at = time.monotonic() + pause

    async def _model_len_at(self, transport: LoopTransport, base_url: str) -> int | None:
        try:
            listing = await self._get(MODELS, base_url=base_url, transport=transport)
        except BackendError as error:
            if transport.http.closed.is_set():
                raise
            logger.debug("base_url=<%s>, error=<%s> | no model list", base_url, error)
            return None
        lengths = [model.get("max_model_len") for model in listed_models(listing)]
        return next((length for length in lengths if is_count(length) and length > 0), None)

    async def _get_object(self, *paths: str, **options: Any) -> dict[str, Any]:
        parsed = await self._get(*paths, **options)
        if not isinstance(parsed, dict):
            raise BackendAnswerError(f"{paths[0]} must be answered with a JSON object, got {parsed!r:.200}")
        return parsed
