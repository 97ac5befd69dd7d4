"""The embedded engine behind SGLang's routes, over a real socket, held against recorded answers of a server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from aiohttp import web

from strands_sglang import SGLangClient
from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_model
from strands_sglang.exceptions import SGLangContextLengthError, SGLangHTTPError
from tests.conftest import ROOT, requires_shared
from tests.servers.engine_server import create_app

PROMPT = [20, 21, 22, 23]
LONG = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_model()


@pytest.fixture
async def engine(tiny: TinyModel) -> AsyncIterator[EmbeddedEngine]:
    async with EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, threads=1, seed=0) as engine:
        yield engine


@pytest.fixture
async def url(engine: EmbeddedEngine) -> AsyncIterator[str]:
    runner = web.AppRunner(create_app(engine), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def call(url: str, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url + path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def idle(engine: EmbeddedEngine, running: int) -> None:
    async with asyncio.timeout(20):
        while (await engine.loads())["num_running_reqs"] != running:
            await asyncio.sleep(0.005)


async def test_the_client_gets_the_answer_of_the_engine(url: str, engine: EmbeddedEngine) -> None:
    fields: dict[str, Any] = {"sampling_params": {"temperature": 0, "max_new_tokens": 12}, "return_logprob": True}
    expected = await engine.generate(PROMPT, **fields)
    async with SGLangClient(url) as client:
        answer = await client.generate(PROMPT, **fields)
        assert await client.health()
        assert (await client.get_model_info())["weight_version"] == "default"
    assert answer["output_ids"] == expected["output_ids"]
    assert answer["meta_info"]["output_token_logprobs"] == expected["meta_info"]["output_token_logprobs"]


async def test_the_client_meets_the_errors_it_knows(url: str) -> None:
    async with SGLangClient(url, max_retries=0) as client:
        with pytest.raises(SGLangContextLengthError):
            await client.generate([5] * 5000)
        with pytest.raises(SGLangHTTPError, match="Failed to compile regex grammar"):
            await client.generate(PROMPT, sampling_params={"regex": "((("})


@requires_shared
@pytest.mark.parametrize(
    "name",
    [
        "09_logprob_start_gt_len",
        "34_bad_empty_body",
        "37_bad_empty_ids",
        "40_bad_temperature",
        "41_bad_top_p",
        "42_bad_top_k",
        "43_bad_max_new_negative",
        "44_bad_unknown_sampling_param",
        "47_bad_method",
        "48_bad_path",
        "54_info_health",
        "56_info_ready",
        "70_abort_unknown_rid",
        "71_abort_empty",
        "75_pause_abort",
        "76_continue_abort",
        "87_flush_cache_end",
        "88_update_weight_version",
        "131_float_for_int",
    ],
)
async def test_status_and_body_are_those_of_a_recorded_answer(url: str, shared: Any, name: str) -> None:
    recorded = json.loads((shared / f"data/sglang_samples/0.5.23/{name}.json").read_text())
    request = recorded["request"]
    status, body = await call(url, request["path"], request.get("json"), request["method"])
    assert status == recorded["status"]
    assert body == (recorded["response_json"] or recorded["response_text"] or "")


@requires_shared
@pytest.mark.parametrize(
    "name",
    ["35_bad_not_json", "38_bad_id_string", "39_bad_id_float", "46_bad_type_sampling_params", "130_null_for_bool"],
)
async def test_what_cannot_be_parsed_has_the_shape_of_a_recorded_answer(url: str, shared: Any, name: str) -> None:
    recorded = json.loads((shared / f"data/sglang_samples/0.5.23/{name}.json").read_text())
    request = recorded["request"]
    async with aiohttp.ClientSession() as session:
        data = request["raw"] or json.dumps(request["json"])
        headers = {"content-type": "application/json"}
        async with session.post(url + "/generate", data=data, headers=headers) as response:
            assert response.status == recorded["status"]
            body = await response.json()
    assert body.keys() == recorded["response_json"].keys()
    assert {**body, "message": ""} == {**recorded["response_json"], "message": ""}


async def test_an_id_outside_the_vocabulary_is_a_400_and_kills_nobody(url: str) -> None:
    status, body = await call(url, "/generate", {"input_ids": [1, 999999]})
    assert status == 400 and "999999" in body["error"]["message"]
    assert (await call(url, "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}))[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": 1}),
        ("/generate", {"text": []}),
        ("/tokenize", {"prompt": 1}),
        ("/tokenize", {"messages": "x"}),
        ("/tokenize", {"messages": [None]}),
        ("/tokenize", {"add_special_tokens": "x"}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [10**30]}),
        ("/detokenize", {"skip_special_tokens": 1}),
        ("/abort_request", {"rid": 1}),
        ("/pause_generation", {"mode": 1}),
        ("/flush_cache?timeout=x", {}),
        ("/flush_cache?timeout=nan", {}),
        ("/update_weight_version", {"new_version": "1", "abort_all_requests": 1}),
        ("/update_weights_from_disk", {"model_path": 1}),
        ("/update_weights_from_disk", {"model_path": "some/name-of-a-hub"}),
    ],
)
async def test_a_malformed_request_is_a_400(url: str, path: str, body: Any) -> None:
    assert (await call(url, path, body))[0] == 400


async def test_the_client_learns_the_size_of_the_vocabulary(url: str, engine: EmbeddedEngine) -> None:
    async with SGLangClient(url) as client:
        assert await client.vocab_size() == engine.vocab_size


async def test_a_batch_is_a_list_with_numbered_ids(url: str) -> None:
    body = {"rid": "bb", "input_ids": [[1, 2], [3, 4]], "sampling_params": {"max_new_tokens": 1}}
    status, answers = await call(url, "/generate", body)
    assert status == 200 and [answer["meta_info"]["id"] for answer in answers] == ["bb_0", "bb_1"]


async def test_a_bad_member_fails_the_whole_batch(url: str) -> None:
    body = {"input_ids": [[1, 2], [3, 4]], "sampling_params": [{"max_new_tokens": 1}, {"top_p": 2}]}
    status, answer = await call(url, "/generate", body)
    assert (status, answer) == (400, {"error": {"message": "top_p must be in (0, 1], got 2."}})


async def test_text_is_tokenized(url: str, engine: EmbeddedEngine) -> None:
    body = {"text": "What is", "sampling_params": {"max_new_tokens": 1}, "return_prompt_token_ids": True}
    assert (await call(url, "/generate", body))[1]["prompt_token_ids"] == engine.tokenizer.encode("What is")


async def test_a_stream_ends_with_the_whole_answer(url: str) -> None:
    body = {"input_ids": PROMPT, "stream": True, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    _, text = await call(url, "/generate", body)
    *_, last, done = re.findall(r"^data: (.*)$", text, re.MULTILINE)
    assert done == "[DONE]" and len(json.loads(last)["output_ids"]) == 4


async def test_a_stream_reports_an_error_in_the_stream(url: str) -> None:
    status, text = await call(url, "/generate", {"input_ids": [5] * 5000, "stream": True})
    first, done = re.findall(r"^data: (.*)$", text, re.MULTILINE)
    assert status == 200 and done == "[DONE]" and "context length" in json.loads(first)["error"]["message"]


async def test_an_abort_over_http_returns_partial_output(url: str, engine: EmbeddedEngine) -> None:
    task = asyncio.create_task(call(url, "/generate", {"rid": "a", "input_ids": PROMPT, "sampling_params": LONG}))
    await idle(engine, 1)
    assert await call(url, "/abort_request", {"rid": "a"}) == (200, "")
    status, answer = await task
    assert status == 200 and answer["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_client_that_goes_away_aborts_its_request(url: str, engine: EmbeddedEngine) -> None:
    task = asyncio.create_task(call(url, "/generate", {"input_ids": PROMPT, "sampling_params": LONG}))
    await idle(engine, 1)
    task.cancel()
    await idle(engine, 0)


async def test_a_paused_server_is_not_ready_and_goes_on_after_continue(url: str, engine: EmbeddedEngine) -> None:
    await call(url, "/pause_generation", {"mode": "in_place"})
    assert (await call(url, "/ready", method="GET"))[0] == 503
    task = asyncio.create_task(call(url, "/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 1}}))
    await asyncio.sleep(0.05)
    assert not task.done()
    await call(url, "/continue_generation", {})
    assert (await task)[0] == 200


async def test_flushing_a_busy_server_fails_or_waits(url: str, engine: EmbeddedEngine) -> None:
    task = asyncio.create_task(
        call(url, "/generate", {"input_ids": PROMPT, "sampling_params": LONG | {"max_new_tokens": 600}})
    )
    await idle(engine, 1)
    assert await call(url, "/flush_cache", {}) == (400, "Flush cache failed.\n")
    status, text = await call(url, "/flush_cache?timeout=60", {})
    assert status == 200 and text.startswith("Cache flushed.")
    assert len((await task)[1]["output_ids"]) == 600


async def test_weights_come_from_disk(url: str, engine: EmbeddedEngine, tmp_path: Any) -> None:
    make_tiny_model(tmp_path, seed=1)
    body = {"model_path": str(tmp_path), "weight_version": "v2"}
    status, answer = await call(url, "/update_weights_from_disk", body)
    assert status == 200 and answer["success"]
    assert (await call(url, "/model_info", method="GET"))[1]["weight_version"] == "v2"
    status, answer = await call(url, "/update_weights_from_disk", {"model_path": str(tmp_path / "none")})
    assert status == 400 and not answer["success"]


async def test_info_routes_tell_the_context_length_and_the_load(url: str) -> None:
    assert (await call(url, "/v1/models", method="GET"))[1]["data"][0]["max_model_len"] == 4096
    assert (await call(url, "/v1/loads", method="GET"))[1]["loads"][0]["num_running_reqs"] == 0
    assert (await call(url, "/server_info", method="GET"))[1]["device"] == "cpu"
    for path in ("/get_model_info", "/get_server_info", "/health_generate"):
        assert (await call(url, path, method="GET"))[0] == 200


async def test_tokenize_and_detokenize_are_inverse(url: str) -> None:
    _, tokens = await call(url, "/tokenize", {"prompt": "What is <|im_end|>"})
    assert tokens["count"] == len(tokens["tokens"])
    _, text = await call(url, "/detokenize", {"tokens": tokens["tokens"], "skip_special_tokens": False})
    assert text == {"text": "What is <|im_end|>"}
    messages = [{"role": "user", "content": "hi"}]
    _, chat = await call(url, "/tokenize", {"messages": messages})
    _, text = await call(url, "/detokenize", {"tokens": chat["tokens"], "skip_special_tokens": False})
    assert text == {"text": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}


def test_the_module_serves_prints_its_address_and_ends_on_a_signal() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.servers.engine_server",
        "--model",
        "tiny",
        "--port",
        "0",
        "--threads",
        "1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            line = process.stdout.readline()
            address = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+) model tiny\n", line)
            assert address is not None, line
            status, _ = asyncio.run(call(address[1], "/health", method="GET"))
        finally:
            process.send_signal(signal.SIGTERM)
        assert status == 200 and process.wait(timeout=30) == 0
