"""Requests that the embedded engine refuses, in the server's words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from strands_sglang.backends.engine.request import EngineSampling, parse_request
from strands_sglang.exceptions import SGLangContextLengthError, SGLangHTTPError, SGLangRequestError
from tests.conftest import requires_shared


def parse(input_ids: Any = (1, 2, 3), **fields: Any) -> Any:
    return parse_request(input_ids, fields, vocab_size=100, context_length=512, seed=0)


def refusal(**fields: Any) -> Any:
    with pytest.raises(SGLangHTTPError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return json.loads(caught.value.body)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1."),
        ({"top_p": 2}, "top_p must be in (0, 1], got 2."),
        ({"top_k": -7}, "top_k must be -1 (disable) or at least 1, got -7."),
        ({"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1."),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens must be in [0, max_new_tokens(4)], got 5."),
        ({"logit_bias": {"100": 1.0}}, "logit_bias must has keys in [0, 99], got 100."),
        ({"n": 2}, "n > 1 is not supported by the embedded engine; send several requests."),
        ({"stop_regex": "a+"}, "stop_regex is not supported by the embedded engine."),
    ],
)
def test_values_out_of_range_are_refused_like_the_value_checks_of_the_server(params: Any, message: str) -> None:
    assert refusal(sampling_params=params) == {"error": {"message": message}}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_new_tokens": 16.0}, "invalid type: floating point `16.0`, expected i64"),
        ({"ignore_eos": 1}, "invalid type: integer `1`, expected a boolean"),
        ({"top_k": True}, "invalid type: boolean `true`, expected i64"),
        ({"temperature": "1"}, 'invalid type: string "1", expected f64'),
    ],
)
def test_wrong_types_are_refused_like_the_schema_check_of_the_server(params: Any, message: str) -> None:
    assert refusal(sampling_params=params) == {"error": message}


def test_only_one_grammar_is_allowed() -> None:
    assert "Only one of" in refusal(sampling_params={"regex": "a", "ebnf": "b"})["error"]["message"]


def test_integers_are_fine_where_floats_are_expected() -> None:
    assert EngineSampling.parse({"temperature": 1, "top_p": 1}, vocab_size=100).temperature == 1


def test_temperature_zero_is_greedy_and_makes_top_k_irrelevant() -> None:
    params = EngineSampling.parse({"temperature": 0, "top_k": 0}, vocab_size=100)
    assert params.greedy and params.temperature == 1.0


@requires_shared
def test_an_unknown_key_is_refused_as_recorded_from_the_server(shared: Any) -> None:
    recorded = json.loads((shared / "data/sglang_samples/0.5.23/44_bad_unknown_sampling_param.json").read_text())
    assert refusal(sampling_params={"max_new_tokens": 2, "foo": 1}) == recorded["response_json"]


@requires_shared
@pytest.mark.parametrize(
    "name",
    [
        "27_overflow_input_too_long",
        "28_overflow_input_eq_ctx",
        "29_overflow_input_ctx_minus1",
        "30_overflow_input_plus_max_new",
    ],
)
def test_context_overflow_is_refused_as_recorded_from_the_server(shared: Any, name: str) -> None:
    recorded = json.loads((shared / f"data/sglang_samples/0.5.23/{name}.json").read_text())
    request = recorded["request"]["json"]
    with pytest.raises(SGLangContextLengthError) as caught:
        parse(**request)
    assert json.loads(caught.value.body) == recorded["response_json"]


@requires_shared
@pytest.mark.parametrize(
    "name", ["31_overflow_input_plus_max_new_eq", "32_overflow_no_max_new", "33_overflow_max_new_none"]
)
def test_the_budget_of_new_tokens_is_clipped_as_recorded_from_the_server(shared: Any, name: str) -> None:
    recorded = json.loads((shared / f"data/sglang_samples/0.5.23/{name}.json").read_text())
    expected = recorded["response_json"]["meta_info"]["finish_reason"]["length"]
    assert parse(**recorded["request"]["json"]).max_new_tokens == expected


@pytest.mark.parametrize("ids", [[100], [-1], [1.5], ["1"], [[1]], [True]])
def test_ids_that_would_kill_a_server_never_reach_the_model(ids: Any) -> None:
    with pytest.raises(SGLangRequestError):
        parse(ids)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(SGLangHTTPError, match=re.escape("input_ids cannot be empty.")):
        parse([])


def test_a_start_behind_the_prompt_is_refused() -> None:
    message = refusal(return_logprob=True, logprob_start_len=4)["error"]["message"]
    assert message.startswith("req.logprob_start_len=4 is higher than the number of input tokens")


@pytest.mark.parametrize("field", ["image_data", "lora_path", "return_hidden_states", "session_params"])
def test_known_but_unsupported_fields_are_refused(field: str) -> None:
    assert refusal(**{field: ["x"]}) == {"error": {"message": f"{field} is not supported by the embedded engine."}}


def test_unknown_top_level_fields_are_ignored_as_on_the_server() -> None:
    assert parse(foo=1, return_routed_experts=True).prompt == [1, 2, 3]


def test_null_for_a_boolean_is_refused() -> None:
    assert refusal(return_prompt_token_ids=None)["type"] == "Bad Request"
