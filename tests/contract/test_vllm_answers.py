"""Answers of a genuine vLLM 0.32, recorded by `record_vllm.py`: what each becomes."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strands_sglang.backends import GenerateAnswer, GenerateRequest, token_array
from strands_sglang.backends.answer import parse_answer
from strands_sglang.backends.http.retry import RetryClass, classify_status
from strands_sglang.backends.vllm.answer import http_error, read_answer
from strands_sglang.exceptions import BackendAnswerError, BackendContextLengthError, BackendHTTPError
from strands_sglang.trajectory import FinishType

RECORDED = json.loads(Path(__file__).with_name("vllm_answers.json").read_text(encoding="utf-8"))


def payload(name: str) -> Any:
    return json.loads(RECORDED[name]["body"])


def read(parsed: Any, name: str = "plain", **changes: Any) -> GenerateAnswer:
    sent = RECORDED[name]["request"]
    request = GenerateRequest(
        prompt=token_array(sent["token_ids"]),
        sampling_params={"max_new_tokens": sent["sampling_params"]["max_tokens"]},
        vocab_size=1024,
        **{"logprobs": sent["sampling_params"].get("logprobs") is not None, **changes},
    )
    return read_answer(parsed, request, rid=sent.get("request_id"))


def read_recorded(name: str) -> GenerateAnswer:
    return read(payload(name), name)


@pytest.mark.parametrize(
    ("name", "kind", "matched"),
    [
        ("plain", FinishType.LENGTH, None),
        ("stop_string", FinishType.STOP, "a"),
        ("stop_token", FinishType.STOP, "last"),
        ("end_of_sequence", FinishType.STOP, "last"),
        ("cut_to_the_room", FinishType.LENGTH, None),
        ("aborted", FinishType.ABORT, None),
    ],
)
def test_how_an_answer_ended(name: str, kind: FinishType, matched: Any) -> None:
    answer = read_recorded(name)
    assert answer.finish.type is kind
    assert answer.finish.matched == (answer.output_ids[-1] if matched == "last" else matched)


def test_what_an_answer_holds() -> None:
    parsed = payload("plain")
    answer, choice, usage = read_recorded("plain"), parsed["choices"][0], parsed["usage"]
    assert answer.output_ids.tolist() == choice["token_ids"]
    assert answer.output_logprobs.tolist() == pytest.approx([e["logprob"] for e in choice["logprobs"]["content"]])
    assert (answer.prompt_tokens, answer.cached_tokens) == (40, usage["prompt_tokens_details"]["cached_tokens"])
    shown = read_recorded("shown")
    assert (shown.rid, shown.prompt_ids) == ("abc", RECORDED["shown"]["request"]["token_ids"])
    assert read_recorded("without_logprobs").output_logprobs is None
    changed = read_recorded("two_versions")
    assert [span.version for span in changed.weight_spans] == ["default", "v2"]
    first, second = changed.weight_spans
    assert first.start == 0 and first.end == second.start and second.end == len(changed.output_ids)


@pytest.mark.parametrize("value", [-9999.0, None, float("nan")])
def test_a_sampled_token_without_a_logprob_is_refused_and_never_zero(value: Any) -> None:
    parsed = payload("plain")
    parsed["choices"][0]["logprobs"]["content"][2]["logprob"] = value
    with pytest.raises(BackendAnswerError, match="not made up"):
        read(parsed)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("choices.0.logprobs.content.2", ..., "do not belong"),
        ("choices.0.logprobs.content.0.token_id", 1, "do not belong"),
        ("choices.0.finish_reason", ..., "no finish_reason"),
        ("usage.prompt_tokens", 41, "40 tokens were sent"),
        ("choices.0.token_ids.3", 1024, "vocabulary"),
        ("choices.0.token_ids.3", ..., "completion_tokens"),
        ("choices.0.token_ids", [3] * 99, "max_new_tokens was"),
        ("choices.0", ..., "no single choice"),
        ("choices.0.token_ids", None, "no token_ids"),
    ],
)
def test_an_answer_that_contradicts_itself_or_the_request_is_refused(path: str, value: Any, words: str) -> None:
    parsed = holder = payload("plain")
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    for key in keys:
        holder = holder[key]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    with pytest.raises(BackendAnswerError, match=words):
        read(parsed)


def test_the_answer_to_another_request_is_refused() -> None:
    parsed = payload("shown")
    parsed["request_id"] = "generate-tokens-other"
    with pytest.raises(BackendAnswerError, match="connections got mixed"):
        read(parsed, "shown")


def test_entries_of_older_servers_name_their_token_as_text() -> None:
    parsed = payload("plain")
    for entry in parsed["choices"][0]["logprobs"]["content"]:
        entry["token"] = f"token_id:{entry.pop('token_id')}"
    assert read(parsed).output_ids == read_recorded("plain").output_ids


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_routed_experts_are_rows_of_int32(dtype: str) -> None:
    rows = np.arange(43 * 2 * 3, dtype=dtype).reshape(43, 2, 3)
    file = io.BytesIO()
    np.save(file, rows)
    parsed = payload("plain")
    parsed["choices"][0]["routed_experts"] = base64.b64encode(file.getvalue()).decode()
    experts = read(parsed, experts_from=0).routed_experts
    assert experts is not None
    assert np.frombuffer(experts, dtype="<i4").reshape(43, 2, 3).tolist() == rows.tolist()
    for broken in ("!", base64.b64encode(b"nothing").decode()):
        parsed["choices"][0]["routed_experts"] = broken
        with pytest.raises(BackendAnswerError, match="routed_experts"):
            read(parsed, experts_from=0)


def test_sampling_masks_have_a_set_for_every_token() -> None:
    parsed = payload("plain")
    sets = [[token, token + 1] for token in parsed["choices"][0]["token_ids"]]
    parsed["choices"][0]["sampling_mask"] = sets
    mask = read(parsed).sampling_mask
    assert mask is not None and mask.ids.tolist() == [token for each in sets for token in each]
    parsed["choices"][0]["sampling_mask"] = sets[:-1]
    with pytest.raises(BackendAnswerError, match="sampling_mask"):
        read(parsed)


@pytest.mark.parametrize(
    "name",
    ["too_long", "out_of_vocabulary", "too_hot", "too_many_logprobs", "bad_grammar", "wrong_type", "unknown_model"],
)
def test_a_wrong_request_is_not_repeated_and_says_what_the_server_said(name: str) -> None:
    error = http_error(RECORDED[name]["status"], RECORDED[name]["body"].encode())
    assert type(error) is (BackendContextLengthError if name == "too_long" else BackendHTTPError)
    assert classify_status(error.status) is RetryClass.NEVER
    assert json.loads(RECORDED[name]["body"])["error"]["message"] in str(error)


@pytest.mark.parametrize(
    ("status", "body", "words", "kind"),
    [
        (403, b'{"error":{"message":"Scale-out endpoints are disabled."}}', "--enable-scale-out", RetryClass.NEVER),
        (404, b'{"detail":"Not Found"}', "SGLangClient", RetryClass.NEVER),
        (503, b"", "(empty body)", RetryClass.BUSY),
        (500, b'{"error":{"message":"EngineCore died"}}', "EngineCore died", RetryClass.SERVER_ERROR),
    ],
)
def test_errors_say_what_helps(status: int, body: bytes, words: str, kind: RetryClass) -> None:
    error = http_error(status, body)
    assert words in str(error) and classify_status(error.status) is kind


def test_an_error_inside_an_answer_has_its_own_status() -> None:
    with pytest.raises(BackendHTTPError) as caught:
        parse_answer(b'{"error":{"message":"no","code":400}}', "choices", http_error)
    assert caught.value.status == 400
    assert parse_answer(json.dumps(payload("plain")).encode(), "choices", http_error) == payload("plain")
