"""Requests are checked before they leave the process, and written once as the JSON text in which they are sent."""

from __future__ import annotations

import copy
from array import array
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.backends.contract import GenerateRequest, check_prompt, token_array
from strands_sglang.backends.http.call import GenerateCall, write_prompt
from strands_sglang.backends.sglang.request import (
    SGLangSamplingParams,
    check_sampling_params,
    checked_fields,
)
from strands_sglang.exceptions import SGLangRequestError

GOOD: dict[str, Any] = {
    "max_new_tokens": 0,
    "min_new_tokens": 0,
    "temperature": 0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.5,
    "frequency_penalty": -2,
    "presence_penalty": 2.0,
    "repetition_penalty": 2,
    "stop": ["a", "b"],
    "stop_token_ids": [1, 2],
    "stop_regex": "a+",
    "ignore_eos": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "no_stop_trim": True,
    "n": 1,
    "json_schema": "{}",
    "logit_bias": {"5": -1.0},
    "sampling_seed": 3,
    "custom_params": {"return_top_p_token_ids": True},
    "beam_width": 2,
    "stream_interval": 4,
    "watermark": None,
}


def test_good_parameters_pass_unchanged() -> None:
    assert check_sampling_params(GOOD) == {key: value for key, value in GOOD.items() if value is not None}


def test_every_known_key_is_covered_here() -> None:
    assert set(GOOD) | {"regex", "ebnf", "structural_tag"} == SGLangSamplingParams.model_fields.keys()


def test_the_result_shares_nothing_with_the_input() -> None:
    params = {"stop": ["a"], "custom_params": {"a": [1]}, "logit_bias": {"1": 1.0}, "stop_token_ids": [1]}
    before = copy.deepcopy(params)
    checked = check_sampling_params(params)
    checked["stop"].append("b")
    checked["custom_params"]["a"].append(2)
    checked["logit_bias"]["2"] = 0.0
    checked["stop_token_ids"].append(9)
    checked["temperature"] = 5
    assert params == before


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("max_tokens", "max_new_tokens"),
        ("seed", "sampling_seed"),
        ("temprature", "temperature"),
        ("topp", "top_p"),
        ("max_new_token", "max_new_tokens"),
        ("guided_json", "json_schema"),
        ("stop_sequences", "stop"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(key: str, nearest: str) -> None:
    with pytest.raises(SGLangRequestError, match=f"did you mean '{nearest}'"):
        check_sampling_params({key: 1})


def test_a_key_like_no_other_lists_the_valid_ones() -> None:
    with pytest.raises(SGLangRequestError, match=r"valid names are .*temperature"):
        check_sampling_params({"qqqq": 1})
    with pytest.raises(SGLangRequestError, match="choice"):
        check_sampling_params({"choice": ["a"]})


def test_extra_keys_may_be_let_through() -> None:
    assert check_sampling_params({"brand_new": 1}, extra_keys={"brand_new"}) == {"brand_new": 1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_new_tokens", True), ("max_new_tokens", -1), ("max_new_tokens", 1.0), ("max_new_tokens", "5"),
        ("temperature", -0.1), ("temperature", True), ("temperature", "1"), ("temperature", float("inf")),
        ("temperature", float("nan")), ("top_p", 0), ("top_p", 1.1), ("top_k", 0), ("top_k", -2), ("top_k", 1.0),
        ("min_p", -0.1), ("min_p", 1.1), ("frequency_penalty", 2.1), ("presence_penalty", -2.1),
        ("repetition_penalty", 0), ("repetition_penalty", 2.1), ("min_new_tokens", -1), ("stop", 5), ("stop", [1]),
        ("stop", ["x"] * 33), ("stop", ""), ("stop", ["a", ""]), ("stop_regex", "("), ("stop_regex", [""]),
        ("custom_params", {"a": float("nan")}), ("custom_params", {"a": [{"b": float("inf")}]}),
        ("logit_bias", {"\u0663": 1.0}), ("stop_token_ids", 5), ("stop_token_ids", ["5"]), ("stop_token_ids", [True]),
        ("stop_token_ids", [-1]), ("stop_regex", "é" * 129), ("ignore_eos", 1), ("ignore_eos", "true"), ("n", 0),
        ("json_schema", {"type": "object"}), ("json_schema", ""), ("regex", 5), ("logit_bias", [1]),
        ("logit_bias", {"a": 1.0}), ("logit_bias", {"1": "x"}), ("logit_bias", {True: 1.0}),
        ("sampling_seed", 1.5), ("custom_params", [1]), ("custom_params", {1: 2}), ("beam_width", 0),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_their_name_and_value(key: str, value: Any) -> None:
    with pytest.raises(SGLangRequestError) as caught:
        check_sampling_params({key: value})
    assert key in str(caught.value)
    assert "must" in str(caught.value)


def test_top_k_zero_is_greedy_only() -> None:
    assert check_sampling_params({"top_k": 0, "temperature": 0})["top_k"] == 0


def test_one_grammar_at_most() -> None:
    with pytest.raises(SGLangRequestError, match="json_schema and regex"):
        check_sampling_params({"json_schema": "{}", "regex": "a"})
    assert check_sampling_params({"json_schema": "{}", "regex": None}) == {"json_schema": "{}"}


def test_min_must_not_exceed_max() -> None:
    with pytest.raises(SGLangRequestError, match="min_new_tokens"):
        check_sampling_params({"min_new_tokens": 5, "max_new_tokens": 4})


def test_integers_of_numpy_and_integer_keys_become_what_json_takes() -> None:
    checked = check_sampling_params({"top_k": np.int64(5), "temperature": np.float32(0.5), "logit_bias": {7: 1}})
    assert checked == {"top_k": 5, "temperature": 0.5, "logit_bias": {"7": 1}}
    assert type(checked["top_k"]) is int
    assert type(checked["temperature"]) is float


def test_parameters_must_be_a_mapping() -> None:
    with pytest.raises(SGLangRequestError, match="mapping"):
        check_sampling_params([("temperature", 1)])  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ input ids


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "empty"), (array("i"), "empty"), ([-1], "has -1"), (array("i", [4, -2]), "has -2"),
        ([10], "outside the vocabulary of 10"), (array("I", [10]), "outside"), (np.array([3, 11]), "11"),
        (np.array(3), "is a int"),
        ([1, 2.0], r"input_ids\[1\]=2.0"), ([1, "a"], r"input_ids\[1\]='a'"), ([True], "True"), ([None], "None"),
        (array("f", [1.0]), "1.0"), (np.array([1.0]), "1.0"), (np.array([[1]]), r"\[1\]"), ("abc", "str"),
        (None, "NoneType"), ([[1, 2]], r"\[1, 2\]"), ({1, 2}, "set"),
    ],
)  # fmt: skip
def test_bad_ids_are_refused(ids: Any, words: str) -> None:
    with pytest.raises(SGLangRequestError, match=words):
        check_prompt(token_array(ids), 10)


@given(st.lists(st.integers(-3, 30), min_size=1), st.integers(1, 25))
def test_exactly_the_ids_of_the_vocabulary_pass(ids: list[int], vocab_size: int) -> None:
    try:
        check_prompt(token_array(ids), vocab_size)
    except SGLangRequestError:
        assert min(ids) < 0 or max(ids) >= vocab_size
    else:
        assert min(ids) >= 0
        assert max(ids) < vocab_size


# ------------------------------------------------------------------------------ other fields


@pytest.mark.parametrize(
    "fields",
    [{"rid": 5}, {"rid": ["a"]}, {"stream": True},
     {"input_embeds": [[0.5]]}, {"token_ids_logprob": 5}, {"token_ids_logprob": [-1]}, {"token_ids_logprob": [1.0]},
     {"token_ids_logprob": [[1]]}, {"token_ids_logprob": [True]}],
)  # fmt: skip
def test_known_fields_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(SGLangRequestError):
        checked_fields(fields)


def test_token_ids_must_lie_in_a_known_vocabulary() -> None:
    for params in ({"logit_bias": {"99": 1.0}}, {"stop_token_ids": [99]}):
        assert check_sampling_params(params, vocab_size=100) == params
        with pytest.raises(SGLangRequestError, match="below the vocabulary size, 99"):
            check_sampling_params(params, vocab_size=99)
    fields = {"token_ids_logprob": [0, 99]}
    assert checked_fields(fields, vocab_size=100) == checked_fields(fields) == fields
    with pytest.raises(SGLangRequestError, match="below the vocabulary size, 99"):
        checked_fields(fields, vocab_size=99)


# ------------------------------------------------------------------------------ as JSON


@pytest.mark.parametrize("ids", [[3, 1, 2], (3, 1, 2), array("i", [3, 1, 2]), np.array([3, 1, 2], dtype=np.int64)])
def test_ids_of_any_kind_are_one_array(ids: Any) -> None:
    assert token_array(ids) == array("i", [3, 1, 2])


def test_ids_that_no_vocabulary_has_are_refused() -> None:
    with pytest.raises(SGLangRequestError, match="has 2147483648: expected token ids from 0 to 2147483647"):
        token_array([1, 2**31])


def test_a_body_is_the_json_of_the_request() -> None:
    fields = {"sampling_params": {"temperature": 1.0}, "return_logprob": None, "routing_key": "k", "rid": "r"}
    prompt = token_array([1, 2])
    checked = checked_fields(fields)
    assert checked == {"sampling_params": {"temperature": 1.0}, "rid": "r", "routing_key": "k"}
    sent = {"sampling_params": checked["sampling_params"]}
    call = GenerateCall(GenerateRequest(prompt=prompt), sent, ("rid", b"input_ids"))
    assert orjson.loads(call.body("r2", write_prompt(call.request))) == {
        "rid": "r2", "sampling_params": {"temperature": 1.0}, "input_ids": [1, 2],
    }  # fmt: skip


def test_the_text_of_a_prompt_grows_only_by_what_extends_it() -> None:
    scratch: dict[str, Any] = {}
    for ids in ([7, 8], [7, 8], [7, 8, 1, 2], [7, 9], [7, 8, 1], [7, 8, 1, 3], [7, 8, 513], [5], [5, 6]):
        request = GenerateRequest(prompt=array("i", ids), scratch=scratch)
        call = GenerateCall(request, {}, ("rid", b"input_ids"))
        assert orjson.loads(call.body("r", write_prompt(request))) == {"rid": "r", "input_ids": ids}


def test_parts_that_the_last_call_had_are_not_written_again_and_the_prompt_is_what_is_sent(monkeypatch) -> None:
    first, reply, more, other = (array("i", ids) for ids in ([7, 8], [], [1, 2], [3]))
    scratch: dict[str, Any] = {}
    written: list[list[int]] = []
    dumps = orjson.dumps
    write = lambda ids, option: (written.append(ids.tolist()), dumps(ids, option=option))[1]  # noqa: E731
    monkeypatch.setattr("strands_sglang.backends.http.call.orjson.dumps", write)

    def sent(*parts: array[int], prompt: array[int] | None = None) -> list[int]:
        written.clear()
        whole = array("i", b"".join(parts)) if prompt is None else prompt
        text = b"".join(write_prompt(GenerateRequest(prompt=whole, parts=parts, scratch=scratch), 10))
        assert orjson.loads(b"[" + text + b"]") == whole.tolist()
        return [token for ids in written for token in ids]

    assert sent(first) == [7, 8]
    assert sent(first, reply, more) == [1, 2]
    assert sent(first, reply, more) == []
    assert sent(first, reply, other) == [7, 8, 3]
    assert sent(first, reply, array("i", [3])) == []  # equal, and not the same
    assert sent(first, reply, prompt=array("i", [7, 9])) == [7, 9]  # a wrapper of the backend changed it
    assert sent(array("i"), first) == [7, 8]
    assert scratch["prompt"][0][1] is first  # no copy


@pytest.mark.parametrize(
    ("ids", "vocab_size", "words"),
    [
        ([7, 8, -1], 10, "input_ids has -1"),
        ([7, 8, 10], 10, "input_ids has 10, outside"),
        ([7, 8, 1], 8, "input_ids has 8, outside"),  # an id of the call before, when the vocabulary was not known
        ([7, 8], 8, "input_ids has 8, outside"),
        ([], 10, "input_ids is empty"),
    ],
)
def test_a_grown_prompt_is_checked_whole(ids: list[int], vocab_size: int, words: str) -> None:
    scratch: dict[str, Any] = {}
    write_prompt(GenerateRequest(prompt=array("i", [7, 8]), scratch=scratch))
    for _ in range(2):  # what was refused is not held for checked
        with pytest.raises(SGLangRequestError, match=words):
            write_prompt(GenerateRequest(prompt=array("i", ids), scratch=scratch), vocab_size)
