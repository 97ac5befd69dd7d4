"""Factories of models: a fresh model a call, shared clients, nothing mutated, extras imported late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from strands_env.core.backends import model_factory_from_args
from strands_env.core.models import (
    DEFAULT_SAMPLING_PARAMS,
    bedrock_model_factory,
    local_model_factory,
    openai_model_factory,
    sglang_model_factory,
)
from strands_env.utils import get_cached_client_from_slime_args
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.exceptions import SGLangConnectionError


def test_sglang_factory_makes_fresh_models_over_one_client() -> None:
    tokenizer, client = MagicMock(), MagicMock(spec=SGLangClient)
    factory = sglang_model_factory(tokenizer=tokenizer, client=client, enable_thinking=True, model_id="qwen")
    first, second = factory(), factory()
    assert first is not second
    assert isinstance(first, SGLangModel)
    assert first.tokenizer is second.tokenizer is tokenizer  # type: ignore[attr-defined]
    assert first.client is second.client is client  # type: ignore[attr-defined]
    config = first.get_config()
    assert config["model_id"] == "qwen"
    assert config["enable_thinking"] is True
    assert config["sampling_params"] == DEFAULT_SAMPLING_PARAMS


def test_unknown_option_is_refused() -> None:
    factory = sglang_model_factory(tokenizer=MagicMock(), client=MagicMock(), return_logprobs=True)
    with pytest.raises(TypeError, match="return_logprobs"):
        factory()


def test_local_factory_uses_a_running_engine() -> None:
    engine = SimpleNamespace(tokenizer=MagicMock(), generate=print, model_path="tiny")
    factory: Any = local_model_factory(engine=engine, tool_parser="hermes", reasoning_policy="branch")
    assert factory.engine is factory().client is engine
    assert factory.config["tool_parser"].endswith(".HermesToolParser")
    assert (factory.config["model"], factory.config["reasoning_policy"]) == ("tiny", "branch")


@patch("strands.models.bedrock.BedrockModel")
def test_bedrock_models_share_one_client_and_take_max_tokens(provider: MagicMock) -> None:
    provider.side_effect = lambda **arguments: SimpleNamespace(client=object(), arguments=arguments)
    params = {"max_new_tokens": 2048, "temperature": 0.7}
    factory: Any = bedrock_model_factory(model_id="m", boto_session="session", sampling_params=params)
    first, second = factory(), factory()
    assert first.client is second.client
    assert first.arguments == {"model_id": "m", "boto_session": "session", "max_tokens": 2048, "temperature": 0.7}
    assert params == {"max_new_tokens": 2048, "temperature": 0.7}


@pytest.mark.parametrize("given", [None, {"max_new_tokens": 4096, "temperature": 0.5}])
def test_openai_models_take_max_tokens(given: dict[str, Any] | None) -> None:
    before = dict(DEFAULT_SAMPLING_PARAMS)
    provider = MagicMock()
    with patch("strands.models.openai.OpenAIModel", provider):
        openai_model_factory(model_id="gpt", sampling_params=given, client_args={"api_key": "k"})()
    arguments = provider.call_args.kwargs
    assert arguments["params"]["max_tokens"] == (given or before)["max_new_tokens"]
    assert "max_new_tokens" not in arguments["params"]
    assert arguments["client_args"] == {"api_key": "k"}
    assert before == DEFAULT_SAMPLING_PARAMS


def test_arguments_without_a_model_are_explained() -> None:
    with pytest.raises(ValueError, match="unknown backend 'ollama': choose one of local, sglang"):
        model_factory_from_args("ollama")
    with pytest.raises(ValueError, match="give --base-url"):
        model_factory_from_args("sglang")
    with pytest.raises(SGLangConnectionError, match="no SGLang server answers at"):
        model_factory_from_args("sglang", sglang_base_url="http://127.0.0.1:9")


def test_slime_arguments_give_the_shared_client() -> None:
    args = SimpleNamespace(sglang_router_ip="127.0.0.1", sglang_router_port=3000)
    assert get_cached_client_from_slime_args(args) is get_cached_client_from_slime_args(args)
