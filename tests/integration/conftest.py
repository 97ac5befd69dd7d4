"""The servers of the integration suite: which ones, and what they say about themselves.

Every test here gets the marker `integration`. A test that takes `sglang_base_url` or `sglang_server` runs once for each
URL given (`--sglang-base-url`, or the environment variable SGLANG_BASE_URL, several separated by commas) and is skipped
without one. Nothing about the model is assumed: name, context length, vocabulary and tokenizer come from the server.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from strands_sglang import SGLangClient
from tests.conftest import ROOT

HERE = Path(__file__).resolve().parent
NO_SERVER = "no server given: use --sglang-base-url=URL or the environment variable SGLANG_BASE_URL"
SGLANG_CPU = ROOT / "scripts" / "sglang-cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server says about itself."""

    base_url: str
    model: str
    """Name under which the model is served."""
    tokenizer_path: str
    """Where the server has its tokenizer from: a folder on its machine or a hub id."""
    context_length: int
    """Prompt and completion together, in tokens."""
    info: dict[str, Any]
    """The whole answer of `/model_info`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.integration)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a server once for each server."""
    if "sglang_base_url" in metafunc.fixturenames:
        given = metafunc.config.getoption("--sglang-base-url") or ""
        urls = [url.strip().rstrip("/") for url in given.split(",") if url.strip()]
        metafunc.parametrize(
            "sglang_base_url", urls or [None], indirect=True, scope="session", ids=urls or ["no-server"]
        )


@pytest.fixture(scope="session")
def sglang_base_url(request: pytest.FixtureRequest) -> str:
    """Base URL of the server under test, without a slash at its end."""
    if request.param is None:
        pytest.skip(NO_SERVER)
    return str(request.param)


@pytest.fixture(autouse=True)
def _server_to_itself(request: pytest.FixtureRequest) -> Iterator[None]:
    """One test at a time on a server, over all test processes: some pause it, flush its cache or count its requests.

    A request of the test before may still run, or be counted for a moment after its answer: each begins on an idle one.
    """
    if "sglang_base_url" not in request.fixturenames:
        yield
        return
    fcntl = pytest.importorskip("fcntl")
    base_url = request.getfixturevalue("sglang_base_url")
    name = re.sub(r"\W+", "-", base_url)
    with open(Path(tempfile.gettempdir()) / f"strands-rollout-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _wait_until_idle(base_url)
        yield


@pytest.fixture(scope="session")
def sglang_server(sglang_base_url: str) -> ServerFacts:
    """The facts of the server under test; an unreachable server is a failure, not a skip."""
    info = _get_json(f"{sglang_base_url}/model_info")
    model = _get_json(f"{sglang_base_url}/v1/models")["data"][0]
    return ServerFacts(
        base_url=sglang_base_url,
        model=model["id"],
        tokenizer_path=info.get("tokenizer_path") or info["model_path"],
        context_length=int(model["max_model_len"]),
        info=info,
    )


@pytest.fixture
async def client(sglang_base_url: str) -> AsyncIterator[SGLangClient]:
    """A client of the server under test."""
    async with SGLangClient(sglang_base_url, retry_delay=0.05) as made:
        yield made


async def loads(base_url: str) -> dict[str, Any]:
    """How busy a server is."""
    async with aiohttp.ClientSession(base_url) as session, session.get("/v1/loads?include=core") as answer:
        return dict((await answer.json())["loads"][0])


async def running_requests(base_url: str) -> int:
    """Requests that a server is working on."""
    return int((await loads(base_url))["num_running_reqs"])


@pytest.fixture(scope="session")
def sglang_tokenizer(request: pytest.FixtureRequest, sglang_server: ServerFacts) -> Any:
    """The server's Hugging Face tokenizer; `--sglang-tokenizer` names another where its path cannot be read here."""
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' or 'local' is not installed")
    path = request.config.getoption("--sglang-tokenizer") or sglang_server.tokenizer_path
    try:
        return transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        pytest.skip(f"the tokenizer {path!r} cannot be loaded here ({error}); name another with --sglang-tokenizer")


@pytest.fixture(scope="session")
def sglang_vocab_size(sglang_tokenizer: Any) -> int:
    """Number of token ids that are safe to send: an id beyond the model's rows kills a genuine server."""
    return len(sglang_tokenizer)


@pytest.fixture
def start_sglang_cpu() -> Iterator[Callable[..., str]]:
    """Start genuine servers of the test's own: `start_sglang_cpu("--context-length", "512") -> base URL`.

    For tests that need special options, or break the server. Skipped where none is installed; install one with
    `scripts/sglang-cpu install`. Takes about 25 seconds a server; all are stopped at the end of the test.
    """
    names: list[str] = []
    if platform.system() != "Linux" or shutil.which("bash") is None or _sglang_cpu("installed").returncode:
        pytest.skip("no genuine SGLang server is installed here: scripts/sglang-cpu install")

    def start(*options: str) -> str:
        names.append(f"test-{uuid.uuid4().hex[:8]}")
        result = _sglang_cpu("serve", "--name", names[-1], *options)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip().rpartition("\n")[2]

    yield start
    for name in names:
        _sglang_cpu("stop", "--name", name)


def _sglang_cpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SGLANG_CPU), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)


def _wait_until_idle(base_url: str) -> None:
    """Wait for a server to count no request; not for ever, and not where it does not tell: that is for the tests."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{base_url}/v1/loads?include=core", timeout=30) as answer:
                loads = json.load(answer)["loads"]
            if not any(load["num_running_reqs"] or load["num_waiting_reqs"] for load in loads):
                return
        except (OSError, ValueError, LookupError, TypeError):
            return
        time.sleep(0.02)


def _get_json(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.fail(f"GET {url}: {error}; is the server of --sglang-base-url running?", pytrace=False)
