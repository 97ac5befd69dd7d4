"""The servers of the integration suite: what the same test needs of each kind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import aiohttp
import pytest

from strands_sglang import SGLangClient
from strands_sglang.backends.http.server_client import ServerClient
from strands_sglang.backends.vllm import VLLMClient

VLLM_SCHEME = "vllm+"
ATTEMPTS = 8


class CallEndedError(Exception):
    """The call ended before the test reached it."""


def meets_a_call(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that does something to a call in flight, run again while the call ends too early for it.

    A tiny model samples a thousand tokens in two seconds, and a busy machine lets the test sleep for as long.
    """

    @functools.wraps(test)
    async def attempts(**fixtures: Any) -> None:
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(CallEndedError):
                return await test(**fixtures)
        return await test(**fixtures)

    return attempts


class Server(ABC):
    """A server under test and its controls. Every call fails the test unless the server does what it is asked.

    Attributes:
        base_url: Its address, without a slash at its end.
    """

    name: ClassVar[str]
    """Its backend's name on command lines."""
    client_class: ClassVar[type[ServerClient]]
    holding: ClassVar[tuple[str, ...]]
    """Pause modes that keep a call in flight and go on with it afterwards. The mode `abort` is known to all."""
    draining: ClassVar[tuple[str, ...]] = ()
    """Pause modes that wait for the calls in flight."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    @staticmethod
    def at(address: str) -> Server:
        """The server of an address, which says its kind."""
        return VLLMServer(address[len(VLLM_SCHEME) :]) if address.startswith(VLLM_SCHEME) else SGLangServer(address)

    def client(self, **options: Any) -> ServerClient:
        """A client of this server."""
        return self.client_class(self.base_url, **{"retry_delay": 0.05, **options})

    @functools.cached_property
    def served(self) -> dict[str, Any]:
        """Name, `max_model_len` and `root` of the model."""
        return dict(get_json(f"{self.base_url}/v1/models")["data"][0])

    @property
    def address(self) -> str:
        """Its address for a setting that holds nothing else."""
        return f"{self.name}+{self.base_url}"

    @property
    @abstractmethod
    def model_path(self) -> str:
        """Where the server has its model from."""

    @property
    def tokenizer_path(self) -> str:
        """Where the server has its tokenizer from: a folder on its machine or a hub id."""
        return self.model_path

    async def post(self, path: str, **body: Any) -> str:
        """A control call; the body of its answer."""
        async with aiohttp.ClientSession(self.base_url) as session, session.post(path, json=body) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return text

    async def sampling(self, call: asyncio.Task[Any]) -> None:
        """Returns once the server has begun to sample for a call.

        Raises:
            CallEndedError: It ended before that was seen.
        """
        while not await self.running():
            if call.done():
                raise CallEndedError
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # what comes before the first token leaves nothing to see

    async def idle(self) -> None:
        """Returns once the server works on nothing."""
        while await self.running():
            await asyncio.sleep(0.02)

    @abstractmethod
    async def running(self) -> int:
        """Requests that the server is working on, or has waiting."""

    @abstractmethod
    async def score(self, ids: list[int]) -> list[float | None]:
        """The log-probability of each token of a prompt, computed in one pass without the cache; None for the first."""

    @abstractmethod
    async def cached(self, tokens: int) -> int:
        """Number of tokens of an already computed prefix that come from the cache."""

    @abstractmethod
    async def pause(self, mode: str) -> None:
        """Pause sampling."""

    @abstractmethod
    async def resume(self) -> None:
        """End a pause; nothing to do where there is none."""

    @abstractmethod
    async def update_weights(self, version: str, *, flush: bool = True) -> None:
        """The same weights under another version; `flush` clears the prefix cache."""

    @abstractmethod
    async def abort(self, rid: str) -> None:
        """End a request with what it has sampled."""


class SGLangServer(Server):
    """SGLang, or the embedded engine's server, which speaks its protocol."""

    name = "sglang"
    client_class = SGLangClient
    holding = ("in_place", "retract")

    @functools.cached_property
    def info(self) -> dict[str, Any]:
        """The whole answer of `/model_info`."""
        return dict(get_json(f"{self.base_url}/model_info"))

    @property
    def model_path(self) -> str:
        return str(self.info["model_path"])

    @property
    def tokenizer_path(self) -> str:
        return str(self.info.get("tokenizer_path") or self.model_path)

    @property
    def context_length(self) -> int:
        """Prompt and completion together, in tokens."""
        return int(self.served["max_model_len"])

    async def running(self) -> int:
        async with aiohttp.ClientSession(self.base_url) as session, session.get("/v1/loads?include=core") as answer:
            loads = (await answer.json())["loads"][0]
        return int(loads["num_running_reqs"]) + int(loads["num_waiting_reqs"])

    async def score(self, ids: list[int]) -> list[float | None]:
        text = await self.post(
            "/generate",
            input_ids=list(ids),
            sampling_params={"max_new_tokens": 0},
            return_logprob=True,
            logprob_start_len=0,
        )
        return [entry[0] for entry in json.loads(text)["meta_info"]["input_token_logprobs"]]

    async def cached(self, tokens: int) -> int:
        return tokens

    async def pause(self, mode: str) -> None:
        await self.post("/pause_generation", mode=mode)

    async def resume(self) -> None:
        await self.post("/continue_generation")

    async def update_weights(self, version: str, *, flush: bool = True) -> None:
        """Loads them from disk.

        With requests held in place, or in the moment after an answer, the cache cannot be flushed: the server then
        answers 400 and says that the weights did change.
        """
        body = {"model_path": self.model_path, "weight_version": version, "flush_cache": flush}
        async with (
            aiohttp.ClientSession(self.base_url) as session,
            session.post("/update_weights_from_disk", json=body) as answer,
        ):
            text = await answer.text()
        assert answer.status == 200 or (flush and "not flushed" in text), text

    async def abort(self, rid: str) -> None:
        await self.post("/abort_request", rid=rid)


class VLLMServer(Server):
    """vLLM with `--enable-scale-out` and its routes for development."""

    name = "vllm"
    client_class = VLLMClient
    holding = ("keep",)
    draining = ("wait",)

    @property
    def model_path(self) -> str:
        return str(self.served["root"])

    async def running(self) -> int:
        metrics = await self._metrics()
        counts = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
        return int(sum(map(float, counts)))

    async def _metrics(self) -> str:
        async with aiohttp.ClientSession(self.base_url) as session, session.get("/metrics") as answer:
            return await answer.text()

    async def score(self, ids: list[int]) -> list[float | None]:
        params = {"max_tokens": 1, "prompt_logprobs": 0}
        text = await self.post("/inference/v1/generate", token_ids=list(ids), sampling_params=params)
        scored = json.loads(text)["prompt_logprobs"]
        return [
            None if entry is None else entry[str(token)]["logprob"] for token, entry in zip(ids, scored, strict=True)
        ]

    async def cached(self, tokens: int) -> int:
        """Only whole blocks are shared."""
        found = re.search(r'vllm:cache_config_info\{[^}]*block_size="(\d+)"', await self._metrics())
        return tokens - tokens % int(found[1])

    async def pause(self, mode: str) -> None:
        await self.post(f"/pause?mode={mode}")

    async def resume(self) -> None:
        await self.post("/resume")

    async def update_weights(self, version: str, *, flush: bool = True) -> None:
        """Another label alone: new weights come over the trainer's own channel."""
        await self.post("/update_weight_version", new_version=version)
        if flush:
            await self.post("/reset_prefix_cache")

    async def abort(self, rid: str) -> None:
        await self.post("/inference/v1/abort_requests", request_ids=[f"generate-tokens-{rid}"])


def get_json(url: str) -> Any:
    """The answer to a GET; an unreachable server is a failure, not a skip."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.fail(f"GET {url}: {error}; is the server of --sglang-base-url running?", pytrace=False)
