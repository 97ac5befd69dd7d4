"""The servers of the integration suite: which ones, and what they say about themselves.

Every test here gets the marker `integration`. The addresses are those of `--sglang-base-url`, or of the environment
variable SGLANG_BASE_URL, several separated by commas; that of a vLLM server is written `vllm+http://...`. A test that
takes `server` runs once for each of them, one that takes `sglang_base_url` or `sglang_server` once for each server that
speaks SGLang's protocol; without one it is skipped. Nothing about the model is assumed: name, context length,
vocabulary and tokenizer come from the server.
"""

from __future__ import annotations

import asyncio
import platform
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from strands_sglang import SGLangClient, get_tokenizer
from strands_sglang.backends.engine.own_models import ModelLoadError
from strands_sglang.backends.http.server_client import ServerClient
from tests.conftest import ROOT
from tests.integration.servers import VLLM_SCHEME, Server, SGLangServer

HERE = Path(__file__).resolve().parent
NO_SERVER = "no server given: use --sglang-base-url=URL or the environment variable SGLANG_BASE_URL"
NO_SGLANG = "this test needs a server that speaks SGLang's protocol, and --sglang-base-url names none"
SGLANG_CPU = ROOT / "scripts" / "sglang-cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; those with servers of their own come first, so that no process ends alone."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: "start_sglang_cpu" not in getattr(item, "fixturenames", ()))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a server once for each server."""
    given = metafunc.config.getoption("--sglang-base-url") or ""
    urls = [url.strip().rstrip("/") for url in given.split(",") if url.strip()]
    sglang = [url for url in urls if not url.startswith(VLLM_SCHEME)]
    for name, usable in (("server", urls), ("sglang_base_url", sglang)):
        if name in metafunc.fixturenames:
            ids = usable or ["no-sglang-server" if urls else "no-server"]
            metafunc.parametrize(name, usable or [None], indirect=True, scope="session", ids=ids)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """The server under test, of any kind."""
    if request.param is None:
        pytest.skip(NO_SERVER)
    return Server.at(request.param)


@pytest.fixture(scope="session")
def sglang_base_url(request: pytest.FixtureRequest) -> str:
    """Base URL of the server under test, without a slash at its end; it speaks SGLang's protocol."""
    if request.param is None:
        pytest.skip(NO_SGLANG if request.config.getoption("--sglang-base-url") else NO_SERVER)
    return str(request.param)


@pytest.fixture(autouse=True)
async def _server_to_itself(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """One test at a time on a server, over all test processes: some pause it, flush its cache or count its requests.

    A request of the test before may still run, or be counted for a moment after its answer: each begins on an idle one.
    """
    if not {"server", "sglang_base_url"} & set(request.fixturenames):
        yield
        return
    fcntl = pytest.importorskip("fcntl")
    name = "server" if "server" in request.fixturenames else "sglang_server"
    used: Server = request.getfixturevalue(name)
    file = re.sub(r"\W+", "-", used.base_url)
    with open(Path(tempfile.gettempdir()) / f"strands-rollout-{file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await _wait_until_idle(used)
        yield


@pytest.fixture(scope="session")
def sglang_server(sglang_base_url: str) -> SGLangServer:
    """The server under test; an unreachable one is a failure, not a skip."""
    return SGLangServer(sglang_base_url)


@pytest.fixture
async def client(sglang_base_url: str) -> AsyncIterator[SGLangClient]:
    """A client of the server that speaks SGLang's protocol."""
    async with SGLangClient(sglang_base_url, retry_delay=0.05) as made:
        yield made


@pytest.fixture
async def backend(server: Server) -> AsyncIterator[ServerClient]:
    """A client of the server under test."""
    async with server.client() as made:
        yield made


@pytest.fixture(scope="session")
def tokenizer(request: pytest.FixtureRequest, server: Server) -> Any:
    """The server's Hugging Face tokenizer; `--sglang-tokenizer` names another where its path cannot be read here."""
    return _tokenizer(request, server)


@pytest.fixture(scope="session")
def sglang_tokenizer(request: pytest.FixtureRequest, sglang_server: SGLangServer) -> Any:
    """As `tokenizer`, for tests of SGLang alone."""
    return _tokenizer(request, sglang_server)


def _tokenizer(request: pytest.FixtureRequest, server: Server) -> Any:
    pytest.importorskip("transformers", reason="the extra 'hf' or 'local' is not installed")
    path = request.config.getoption("--sglang-tokenizer") or server.tokenizer_path
    try:
        return get_tokenizer(path)  # which knows `tiny` and `smollm2` too
    except ModelLoadError as error:
        pytest.skip(f"the tokenizer {path!r} cannot be loaded here ({error}); name another with --sglang-tokenizer")


@pytest.fixture(scope="session")
def sglang_vocab_size(sglang_tokenizer: Any) -> int:
    """Number of token ids that are safe to send: an id beyond the model's rows kills a genuine server."""
    return len(sglang_tokenizer)


@pytest.fixture(scope="session")
def _stopping() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Commands that stop servers: a server looks only every five seconds whether it should end."""
    commands: list[subprocess.Popen[bytes]] = []
    yield commands
    for command in commands:
        command.wait()


@pytest.fixture
def start_sglang_cpu(_stopping: list[subprocess.Popen[bytes]]) -> Iterator[Callable[..., str]]:
    """Start genuine servers of the test's own: `start_sglang_cpu("--context-length", "512") -> base URL`.

    For tests that need special options, or break the server. Skipped where none is installed; install one with
    `scripts/sglang-cpu install`. Takes about 25 seconds a server; all are stopped after the test, beside the next one.
    """
    names: list[str] = []
    if platform.system() != "Linux" or shutil.which("bash") is None or _sglang_cpu("installed").returncode:
        pytest.skip("no genuine SGLang server is installed here: scripts/sglang-cpu install")

    def start(*options: str) -> str:
        names.append(name := f"test-{uuid.uuid4().hex[:8]}")
        result = _sglang_cpu("serve", "--name", name, *options)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip().rpartition("\n")[2]

    yield start
    for name in names:
        null = subprocess.DEVNULL  # the streams of a test process are its way to pytest
        _stopping.append(subprocess.Popen(_command("stop", "--name", name), stdin=null, stdout=null, stderr=null))


def _command(*arguments: str) -> list[str]:
    return ["bash", str(SGLANG_CPU), *arguments]


def _sglang_cpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = _command(*arguments)
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


async def _wait_until_idle(server: Server) -> None:
    """Wait for a server to count no request; not for ever, and not where it does not tell: that is for the tests."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if not await server.running():
                return
        except (OSError, ValueError, LookupError, TypeError, aiohttp.ClientError):
            return
        await asyncio.sleep(0.02)
