"""Options of `SGLangModel` that depend on its client."""

from __future__ import annotations

from typing import Any

import pytest
from provider_support import Replay, tokenizer

from strands_sglang import SGLangClient, SGLangModel, SGLangRequestError, ToolParserError
from strands_sglang.tool_parsers import HermesToolParser, as_tool_parser
from tests.servers import FaultyServer

GO = [{"role": "user", "content": [{"text": "go"}]}]


async def test_sampling_parameters_that_the_client_lets_through_reach_the_server() -> None:
    async with (
        FaultyServer() as server,
        SGLangClient(server.url, extra_sampling_keys=["key_of_tomorrow"]) as client,
    ):
        model = SGLangModel(tokenizer=tokenizer(), client=client, sampling_params={"key_of_tomorrow": 1})
        async for _ in model.stream(GO):
            pass
        model.update_config(sampling_params={"key_of_tomorrow": 2, "max_new_tokens": 8})
        async for _ in model.stream(GO):
            pass
    sent = [request.body["sampling_params"]["key_of_tomorrow"] for request in server.requests]
    assert sent == [1, 2]


async def test_another_client_serves_the_next_call() -> None:
    first, second = Replay(["one"]), Replay(["two"])
    model = SGLangModel(tokenizer=tokenizer(), client=first)
    model.client = second
    async for _ in model.stream(GO):
        pass
    assert (len(first.requests), len(second.requests)) == (0, 1)


def test_other_sampling_parameters_stay_unknown() -> None:
    with pytest.raises(SGLangRequestError, match="key_of_tomorrow"):
        SGLangModel(tokenizer=tokenizer(), client=Replay([]), sampling_params={"key_of_tomorrow": 1})


def test_a_tool_parser_may_be_named() -> None:
    assert isinstance(as_tool_parser("hermes"), HermesToolParser)
    SGLangModel(tokenizer=tokenizer(), client=Replay([]), tool_parser="hermes")


@pytest.mark.parametrize(
    ("parser", "error", "message"),
    [
        ("hermess", ToolParserError, "did you mean 'hermes'"),
        (HermesToolParser, TypeError, "write HermesToolParser"),
        (3, TypeError, "got tool_parser=3, expected a ToolParser or the name of one"),
    ],
)
def test_another_tool_parser_is_refused_at_once(parser: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SGLangModel(tokenizer=tokenizer(), client=Replay([]), tool_parser=parser)
