"""A prompt as the JSON text in which it is sent, and requests that are checked once."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang.backends import GenerateRequest, PromptIds
from strands_sglang.backends.http.server import GenerateCall
from strands_sglang.backends.sglang.request import checked_fields
from strands_sglang.exceptions import SGLangRequestError


@pytest.mark.parametrize("ids", [[3, 1, 2], (3, 1, 2), array("i", [3, 1, 2]), np.array([3, 1, 2], dtype=np.int32)])
def test_ids_of_any_kind_are_the_same_text(ids: Any) -> None:
    prompt = PromptIds.of(ids)
    assert (b"".join(prompt.chunks), len(prompt), prompt.highest, prompt.size) == (b"3,1,2", 3, 3, 5)
    assert prompt.tolist() == [3, 1, 2]


def test_a_prompt_grows_by_text() -> None:
    grown = PromptIds().followed_by(array("i", [7, 8])).followed_by(array("i")).followed_by(array("i", [1]))
    assert (grown.tolist(), len(grown), grown.highest) == ([7, 8, 1], 3, 8)


def test_chunks_are_shared_and_joined_in_time() -> None:
    grown = PromptIds()
    for token in range(100):
        before, grown = grown, grown.followed_by(array("i", [token, 5]))
        assert b"".join(grown.chunks) == b",".join(b"%d,5" % each for each in range(token + 1))
        assert grown.size == len(b"".join(grown.chunks)) and len(grown.chunks) <= 32
        assert len(grown.chunks) == 1 or grown.chunks[:-1] == before.chunks


def test_what_follows_is_checked() -> None:
    with pytest.raises(SGLangRequestError, match="-1"):
        PromptIds.of([1]).followed_by(array("i", [-1]))


def test_a_body_is_the_json_of_the_request() -> None:
    fields = {"sampling_params": {"temperature": 1.0}, "return_logprob": None, "routing_key": "k", "rid": "r"}
    prompt = PromptIds.of([1, 2])
    checked = checked_fields(prompt, fields)
    assert checked == {"sampling_params": {"temperature": 1.0}, "rid": "r", "routing_key": "k"}
    call = GenerateCall.of(GenerateRequest(prompt=prompt), {"sampling_params": checked["sampling_params"]})
    assert orjson.loads(call.body("r2", (b"rid", b"input_ids"))) == {
        "rid": "r2", "sampling_params": {"temperature": 1.0}, "input_ids": [1, 2],
    }  # fmt: skip


def test_ids_beyond_the_vocabulary_are_refused_without_a_look_at_each() -> None:
    with pytest.raises(SGLangRequestError, match="outside the vocabulary of 9"):
        checked_fields(PromptIds((b"1,9",), 2, 9, 3), {}, vocab_size=9)
