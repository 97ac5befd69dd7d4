"""Every recorded answer of genuine servers and routers becomes the right result or the right typed error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strands_sglang.backends.answer import parse_answer
from strands_sglang.backends.contract import check_prompt, token_array
from strands_sglang.backends.http.retry import RetryClass
from strands_sglang.backends.http.transport import worker_urls
from strands_sglang.backends.sglang.answer import classify, http_error, read_answer
from strands_sglang.backends.sglang.client import SGLangClient
from strands_sglang.backends.sglang.request import check_sampling_params
from strands_sglang.exceptions import (
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangRequestError,
    SGLangThrottledError,
)
from tests.conftest import SHARED, requires_shared
from tests.servers import FaultyServer, faults

SAMPLES = SHARED / "data" / "sglang_samples"
pytestmark = requires_shared

OVERFLOW = ("overflow_",)
# What a server refuses and this package refuses before sending.
REFUSED_HERE = {
    "bad_empty_ids", "bad_id_string", "bad_id_float", "bad_temperature", "bad_top_p", "bad_top_k",
    "bad_max_new_negative", "bad_unknown_sampling_param", "bad_type_sampling_params", "float_for_int", "choice_500",
}  # fmt: skip


def records(*versions: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for version in versions:
        for path in sorted((SAMPLES / version).glob("*.json")):
            record = json.loads(path.read_text())
            if isinstance(record, dict) and "request" in record and "status" in record and "lines" not in record:
                found.append((f"{version}/{path.stem}", record))
    return found


def body_of(record: dict[str, Any]) -> str:
    if record.get("response_json") is not None:
        return json.dumps(record["response_json"])
    return record.get("response_text") or ""


GENERATE = [(name, r) for name, r in records("0.5.23", "0.5.9") if r["request"].get("path") == "/generate"]
FAILED = [(name, r) for name, r in GENERATE if r["status"] != 200]
ANSWERED = [(name, r) for name, r in GENERATE if r["status"] == 200 and isinstance(r.get("response_json"), dict)]


def params(cases: list[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(value, id=name) for name, value in cases]


def test_the_samples_are_there() -> None:
    assert len(FAILED) > 30
    assert len(ANSWERED) > 50


@pytest.mark.parametrize("record", params(FAILED))
def test_error_answers_become_typed_errors_with_the_servers_words(record: dict[str, Any]) -> None:
    error = http_error(record["status"], body_of(record))
    assert (error.status, error.body) == (record["status"], body_of(record))
    overflow = record["name"].startswith(OVERFLOW)
    assert type(error) is (SGLangContextLengthError if overflow else SGLangHTTPError)
    payload = record.get("response_json")
    words = payload
    while isinstance(words, dict):
        words = words.get("error") or words.get("message") or words.get("detail")
    assert (words or record["response_text"]) in str(error)
    expected = RetryClass.SERVER_ERROR if record["status"] == 500 else RetryClass.NEVER
    assert classify(error) is expected


@pytest.mark.parametrize("record", params([(n, r) for n, r in FAILED if r["name"] in REFUSED_HERE]))
def test_what_can_be_known_here_is_refused_before_it_is_sent(record: dict[str, Any]) -> None:
    request = record["request"]["json"]
    with pytest.raises(SGLangRequestError):
        check_prompt(token_array(request["input_ids"]), 1024)
        check_sampling_params(request["sampling_params"])


@pytest.mark.parametrize("record", params([(n, r) for n, r in ANSWERED if not r["request"]["json"].get("text")]))
def test_what_a_server_accepted_is_not_refused_here(record: dict[str, Any]) -> None:
    request = record["request"]["json"]
    if request.get("input_ids") and not isinstance(request["input_ids"][0], list):
        check_prompt(token_array(request["input_ids"]), 1024)
        if record["name"] != "bad_unknown_top_level":
            check_sampling_params(request.get("sampling_params") or {})


@pytest.mark.parametrize("record", params(ANSWERED[:6]))
def test_a_good_answer_cut_anywhere_is_a_decoding_error(record: dict[str, Any]) -> None:
    payload = json.dumps(record["response_json"]).encode()
    for end in range(0, len(payload), max(1, len(payload) // 97)):
        with pytest.raises(SGLangDecodingError):
            read_answer(parse_answer(payload[:end], "meta_info", http_error))


def test_an_error_in_a_stream_is_an_error() -> None:
    record = json.loads((SAMPLES / "0.5.23" / "123_stream_overflow.json").read_text())
    with pytest.raises(SGLangContextLengthError, match="5000 tokens") as caught:
        parse_answer("\n\n".join(record["lines"]).encode(), "meta_info", http_error)
    assert caught.value.status == 400


def test_a_full_queue_is_throttling() -> None:
    full = json.loads((SAMPLES / "0.5.23" / "93_misc.json").read_text())["queue_full_3"]
    error = http_error(full["status"], json.dumps(full["body"]))
    assert type(error) is SGLangThrottledError
    assert "The request queue is full." in str(error)
    assert classify(error) is RetryClass.BUSY


def test_lists_of_answers_are_refused() -> None:
    for name in ("50_batch", "52_n2"):
        record = json.loads((SAMPLES / "0.5.23" / f"{name}.json").read_text())
        with pytest.raises(SGLangDecodingError, match="list"):
            read_answer(record["response_json"])


# -------------------------------------------------------------------------------- routers


def router_record(name: str) -> Any:
    return json.loads((SAMPLES / "routers" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["95_sglang-router", "95_smg"])
def test_worker_lists_of_both_routers_are_read(name: str) -> None:
    urls = worker_urls(router_record(name)["workers_json"])
    assert urls == ["http://127.0.0.1:31101", "http://127.0.0.1:31102"]


@pytest.mark.parametrize("name", ["95_sglang-router", "95_smg"])
def test_status_of_a_worker_through_both_routers(name: str) -> None:
    classes = {}
    for key, case in router_record(name).items():
        if key.startswith("worker_status_") and case.get("client_status"):
            body = case["client_body"]
            error = http_error(case["client_status"], body if isinstance(body, str) else json.dumps(body))
            classes[int(key.removeprefix("worker_status_"))] = classify(error)
    assert {code: classes[code] for code in (400, 404, 422)} == dict.fromkeys((400, 404, 422), RetryClass.NEVER)
    assert classes[429] is RetryClass.BUSY
    assert classes[503] is RetryClass.BUSY


@pytest.mark.parametrize("name", ["97_sglang-router_real_kill"])
def test_a_dead_worker_behind_a_router_is_retried(name: str) -> None:
    case = router_record(name)["sigkill_scheduler_of_worker_mid_request"]
    error = http_error(case["status"], json.dumps(case["body"]))
    assert classify(error) is RetryClass.WORKER_LOST
    assert "error sending request" in str(error)


@pytest.mark.parametrize("name", ["97_sglang-router_real_basic", "97_smg_real_basic"])
def test_router_answers_are_read(name: str) -> None:
    record = router_record(name)
    good = record["generate"]["body"]
    assert read_answer(good).payload == good
    overflow = record["overflow"]
    assert isinstance(http_error(400, json.dumps(overflow["body"])), SGLangContextLengthError)
    refused = record["bad_ids"]
    error = http_error(refused["status"], refused["body"])
    assert error.status == 422
    assert "Failed to deserialize" in str(error)
    assert classify(error) is RetryClass.NEVER


# ------------------------------------------------------------------- over a real socket


async def test_every_good_answer_passes_unchanged() -> None:
    script = [faults.raw_answer(r["response_json"]) for _, r in ANSWERED]
    async with FaultyServer(script) as server, SGLangClient(server.url, max_retries=0) as client:
        for _, record in ANSWERED:
            prompt = (
                record["request"]["json"].get("input_ids")
                or [1] * record["response_json"]["meta_info"]["prompt_tokens"]
            )
            assert await client.generate(prompt) == record["response_json"]
