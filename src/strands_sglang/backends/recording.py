# ruff: noqa: D102 - the methods are documented in `Backend`
"""A backend that writes down its requests and answers, and one that answers from such a file without a server.

The file is JSON Lines: the backend's description first, then one request a line, with its answer or its error. It holds
token ids, sampling parameters and answers; of images and of fields of the server's own, digests.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import exceptions
from ..exceptions import BackendError, BackendRequestError, StrandsSGLangError
from .contract import Backend, BackendInfo, Capabilities, GenerateAnswer, GenerateClient, GenerateRequest
from .records import from_json, to_json
from .wrapper import BackendWrapper

_ASKED = ("prompt", "logprobs", "score_from", "score_top_k", "experts_from", "sampling_mask", "constrain_answer_only")
"""Fields by which two requests are the same, beside sampling parameters, images and fields."""


class RecordingBackend(BackendWrapper):
    """Adds requests and answers of `inner` to a file, each at once: a run that crashes has its recording too."""

    def __init__(self, inner: Backend | GenerateClient, path: str | Path) -> None:
        super().__init__(inner)
        self._path = Path(path)

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        if not self._path.exists():
            self._write(info=to_json(await self.inner.info()), capabilities=to_json(self.inner.capabilities))
        try:
            answer = await self.inner.ask(request)
        except StrandsSGLangError as error:
            # Errors of HTTP say more than their message.
            named = {name: getattr(error, name) for name in ("status", "body") if hasattr(error, name)}
            failure = type(error).__name__, [str(arg) for arg in error.args], named
            self._write(asked=_asked(request), error=failure)
            raise
        self._write(asked=_asked(request), answer=to_json(replace(answer, payload={})))
        return answer

    def _write(self, **line: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class ReplayBackend(Backend):
    """The answers of a recording: equal requests get theirs in the order in which they were recorded.

    Raises:
        ValueError: The file is not one of a `RecordingBackend`.
    """

    def __init__(self, path: str | Path) -> None:
        self._answers: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        try:
            about, *exchanges = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
            self._info, self._capabilities = from_json(about["info"]), from_json(about["capabilities"])
            for exchange in exchanges:
                self._answers[json.dumps(exchange["asked"])].append(exchange)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(path)!r} is not a recording of a backend: {error}") from error

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities  # type: ignore[no-any-return]

    async def info(self) -> BackendInfo:
        return self._info  # type: ignore[no-any-return]

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(fields)  # checked when they were recorded

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        left = self._answers[json.dumps(_asked(request))]
        if not left:
            raise BackendRequestError(f"a request of {len(request.prompt)} tokens was not recorded, or not so often")
        exchange = left.pop(0)
        if "error" in exchange:
            kind, args, named = exchange["error"]
            made = getattr(exceptions, kind, BackendError)  # the name is from a file
            is_error = isinstance(made, type) and issubclass(made, StrandsSGLangError)
            raise made(*args, **named) if is_error else BackendError(*args)
        return from_json(exchange["answer"])  # type: ignore[no-any-return]


def _asked(request: GenerateRequest) -> dict[str, Any]:
    hidden = {"images": list(request.images), "fields": dict(request.fields)}
    digests = {name: hashlib.sha256(json.dumps(value).encode()).hexdigest() for name, value in hidden.items() if value}
    asked = {name: to_json(getattr(request, name)) for name in _ASKED}
    return json.loads(json.dumps({**asked, "sampling_params": dict(request.sampling_params), **digests}))  # type: ignore[no-any-return]
