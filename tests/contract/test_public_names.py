"""The names and signatures existing users rely on."""

from __future__ import annotations

import inspect
import pickle

import pytest

import strands_sglang
from strands_sglang import (
    SGLangClient,
    SGLangClientError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangModel,
    SGLangThrottledError,
    TokenManager,
    ToolLimiter,
    exceptions,
)


def test_everything_in_all_exists_and_is_sorted() -> None:
    assert all(hasattr(strands_sglang, name) for name in strands_sglang.__all__)
    assert sorted(strands_sglang.__all__) == sorted(set(strands_sglang.__all__))


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (SGLangClient.__init__, "base_url max_connections timeout connect_timeout max_retries retry_delay"),
        (SGLangClient.generate, "input_ids"),
        (SGLangClient.abort, "rid"),
        (SGLangModel.__init__, "tokenizer client base_url tool_parser"),
        (ToolLimiter.__init__, "max_tool_iters max_tool_calls"),
        (TokenManager.add_prompt, "token_ids logprobs"),
        (TokenManager.add_response, "token_ids logprobs"),
        (strands_sglang.decode_routed_experts, "data seq_len num_layers top_k"),
        (strands_sglang.get_tokenizer, "path"),
    ],
)
def test_parameters_have_their_names(function: object, names: str) -> None:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert set(names.split()) <= parameters.keys()


def test_the_client_has_its_defaults() -> None:
    parameters = inspect.signature(SGLangClient.__init__).parameters
    defaults = {name: p.default for name, p in parameters.items()}
    expected = {
        "max_connections": 1000,
        "timeout": 900.0,
        "connect_timeout": 5.0,
        "max_retries": 60,
        "retry_delay": 1.0,
    }
    assert expected.items() <= defaults.items()


def test_the_model_has_its_methods_and_properties() -> None:
    for name in ("stream", "structured_output", "update_config", "get_config", "count_tokens", "reset"):
        assert callable(getattr(SGLangModel, name)), name
    for name in ("tokenizer", "token_manager", "routed_experts", "tool_parse_errors", "trajectories"):
        assert isinstance(getattr(SGLangModel, name), property), name


def test_the_error_tree() -> None:
    assert issubclass(SGLangHTTPError, SGLangClientError)
    assert issubclass(SGLangContextLengthError, SGLangHTTPError)
    assert issubclass(SGLangThrottledError, SGLangHTTPError)
    assert issubclass(SGLangConnectionError, SGLangClientError)
    assert issubclass(SGLangDecodingError, SGLangClientError)


def test_http_errors_take_status_and_body_in_both_forms() -> None:
    positional, named = SGLangHTTPError(500, "boom"), SGLangHTTPError("said", status=500, body="boom")
    assert (positional.status, positional.body) == (named.status, named.body) == (500, "boom")
    assert "500" in str(positional) and str(named) == "said"
    with pytest.raises(TypeError, match="status"):
        SGLangHTTPError("no status")


def every_error() -> list[Exception]:
    made = []
    for name, kind in vars(exceptions).items():
        if inspect.isclass(kind) and issubclass(kind, exceptions.StrandsSGLangError):
            if issubclass(kind, SGLangHTTPError):
                made.append(kind(400, f"body of {name}"))
            elif kind is exceptions.ContextOverflowError:
                made.append(kind(20, 17))
            elif kind is exceptions.TokenBudgetReachedError:
                made.append(kind("max_sampled_tokens", 5, 6))
            elif kind is exceptions.SGLangAbortedError:
                made.append(kind("stopped", {"output_ids": [1]}))
            else:
                made.append(kind(f"message of {name}"))
    return made


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
