"""Shared clients and tokenizers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from strands_sglang.backends.clients import get_client, get_client_from_slime_args, get_tokenizer
from strands_sglang.exceptions import SGLangRequestError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    get_client.cache_clear()
    yield
    get_client.cache_clear()


def slime(**values: object) -> SimpleNamespace:
    return SimpleNamespace(**{"sglang_router_ip": "10.0.0.1", "sglang_router_port": 9000, **values})


def test_the_same_address_and_options_give_the_same_client_until_the_cache_is_cleared() -> None:
    client = get_client("http://h:1", max_retries=3, headers={"A": "b"})
    assert get_client("http://h:1/", headers={"A": "b"}, max_retries=3) is client
    assert get_client("http://h:1") is not client
    assert (client.max_retries, client._headers["A"]) == (3, "b")
    get_client_from_slime_args.cache_clear()
    assert get_client("http://h:1", max_retries=3, headers={"A": "b"}) is not client


def test_slime_arguments_that_are_a_mock() -> None:
    args = MagicMock()
    args.sglang_router_ip, args.sglang_router_port = "10.0.0.1", 9000
    args.sglang_server_concurrency, args.rollout_num_gpus, args.rollout_num_gpus_per_engine = 256, 8, 2
    client = get_client_from_slime_args(args)
    assert client.base_url == "http://10.0.0.1:9000"
    assert client.max_connections == 1024
    assert client.timeout is None
    assert get_client_from_slime_args(args) is client


@pytest.mark.parametrize(
    ("values", "connections"),
    [
        ({"sglang_server_concurrency": 512, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 4}, 2048),
        ({"sglang_server_concurrency": 512, "rollout_num_engines": 3, "rollout_num_gpus": 16}, 1536),
        ({"sglang_server_concurrency": 64, "rollout_num_gpus": 0, "rollout_num_gpus_per_engine": 8}, 64),
        ({"sglang_server_concurrency": 64, "rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 8}, 64),
        ({}, 512),
    ],
)
def test_connections_follow_slimes_formula_and_are_never_zero(values: dict[str, object], connections: int) -> None:
    assert get_client_from_slime_args(slime(**values)).max_connections == connections


def test_overrides_win_and_ipv6_routers_are_bracketed() -> None:
    client = get_client_from_slime_args(slime(sglang_router_ip="::1"), timeout=5.0, max_connections=7)
    assert (client.base_url, client.timeout, client.max_connections) == ("http://[::1]:9000", 5.0, 7)


def test_missing_router_is_a_clear_error() -> None:
    with pytest.raises(SGLangRequestError, match="sglang_router_ip"):
        get_client_from_slime_args(SimpleNamespace())


def test_without_transformers_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"\[hf\]"):
        get_tokenizer("some/model")


def test_tokenizers_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[tuple[str, dict[str, object]]] = []

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(path: str, **options: object) -> object:
            loads.append((path, options))
            return object()

    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=AutoTokenizer))
    monkeypatch.setattr("strands_sglang.backends.engine.loader.only_from_cache", lambda path: path == "cached")
    try:
        assert get_tokenizer("m") is get_tokenizer("m")
        assert get_tokenizer("m", revision="r") is not get_tokenizer("m")
        get_tokenizer("cached")
        assert loads == [("m", {}), ("m", {"revision": "r"}), ("cached", {"local_files_only": True})]
    finally:
        get_tokenizer.cache_clear()
