"""The places where a model may be: one table, and the model factory of an entry.

A new backend is one entry here and a function that makes its model factory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_env.core import ModelFactory

_OPTIONS = {"base_url": "a server: give --base-url http://host:port", "model_id": "a model: give --model-id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBackend:
    """A place where a model may be.

    Attributes:
        make: Import path (`module:function`) of the maker of a model factory, from `base_url`, `model_id`, `tokenizer`,
            those left out that the backend ignores, `sampling_params` and options.
        has_tokens: Its models keep exact token data; their tool parsers are ours.
        check_sampling: Import path of the check of its sampling parameters; None leaves that to the provider.
        needs: Options that it cannot do without.
        key: Environment variable with the key that its client needs, unless `base_url` names a server of one's own.
        ignores: Options that have no effect, each with the reason.
    """

    name: str
    make: str
    has_tokens: bool = False
    check_sampling: str | None = None
    needs: tuple[str, ...] = ()
    key: str | None = None
    ignores: Mapping[str, str] = field(default_factory=dict)

    def missing(self, options: Mapping[str, Any]) -> str | None:
        """A sentence on the first option that is missing; None if none is."""
        for name in self.needs:
            if not options.get(name):
                return f"the backend {self.name!r} needs {_OPTIONS[name]}"
        if self.key is not None and not options.get("base_url") and not os.environ.get(self.key):
            return (
                f"the backend {self.name!r} needs a key: set {self.key}, or name a server of your own with --base-url"
            )
        return None

    def check(self, sampling_params: Mapping[str, Any]) -> None:
        """Refuse sampling parameters that it would refuse or ignore.

        Raises:
            BackendRequestError: One is unknown or out of range.
        """
        if self.check_sampling is not None:
            resolve_name(self.check_sampling)(sampling_params)


def _without(name: str, *, server: bool = False, tokens: bool = False) -> dict[str, str]:
    """The options that a backend without a server, or without tokens, ignores."""
    found = {}
    if server:
        found["base_url"] = f"the backend {name!r} has no server to name (--backend sglang, vllm and openai have one)"
    if tokens:
        why = f"the backend {name!r} gives no tokens, and reads tool calls itself"
        found |= {"tokenizer": why, "tool_parser": why, "model_options": f"the backend {name!r} has none of them"}
    return found


_NO_MODEL = "the backend 'scripted' has no model and no server"
BACKENDS: Mapping[str, ModelBackend] = {
    backend.name: backend
    for backend in (
        ModelBackend(
            name="local",
            make="strands_env.core.models:local_from_args",
            has_tokens=True,
            check_sampling="strands_sglang.backends.sampling:check_sampling_params",
            ignores={**_without("local", server=True), "tokenizer": "the model brings its own"},
        ),
        ModelBackend(
            name="sglang",
            make="strands_env.core.models:sglang_from_args",
            has_tokens=True,
            check_sampling="strands_sglang.backends.sglang.request:check_sampling_params",
            needs=("base_url",),
        ),
        ModelBackend(
            name="vllm",
            make="strands_env.core.models:vllm_from_args",
            has_tokens=True,
            check_sampling="strands_sglang.backends.vllm.request:check_sampling_params",
            needs=("base_url",),
        ),
        ModelBackend(
            name="openai",
            make="strands_env.core.models:openai_from_args",
            needs=("model_id",),
            key="OPENAI_API_KEY",
            ignores=_without("openai", tokens=True),
        ),
        ModelBackend(
            name="bedrock",
            make="strands_env.core.models:bedrock_model_factory",
            needs=("model_id",),
            ignores=_without("bedrock", server=True, tokens=True),
        ),
        ModelBackend(
            name="scripted",
            make="strands_env.testing.scripted:scripted_from_args",
            ignores=dict.fromkeys(("model_id", "base_url", "tokenizer", "tool_parser", "model_options"), _NO_MODEL),
        ),
    )
}
"""Backends by name; the first is the default, and the last samples nothing: it is for trying things."""


def model_factory_from_args(
    backend: str = "local",
    *,
    sglang_base_url: str | None = None,
    model_id: str | None = None,
    tokenizer: str | None = None,
    sampling_params: Mapping[str, Any] | None = None,
    **options: Any,
) -> ModelFactory:
    """The factory for the arguments of a command line; for examples and the `strands-env` command.

    Args:
        backend: A name of `BACKENDS`.
        sglang_base_url: Server of the backend, for those that have one.
        model_id: Model: for `local` its name, for `sglang` only a label, needed by the others.
        tokenizer: Name or folder of the tokenizer; `sglang` asks the server for it if None.

    Raises:
        ValueError: The backend is unknown, or misses an argument.
        BackendConnectionError: No server answers at the URL.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    chosen = BACKENDS[backend]
    place = {"base_url": sglang_base_url, "model_id": model_id, "tokenizer": tokenizer}
    if (missing := chosen.missing(place)) is not None:
        raise ValueError(missing)
    place = {name: value for name, value in place.items() if name not in chosen.ignores}
    factory: ModelFactory = resolve_name(chosen.make)(**place, sampling_params=sampling_params, **options)
    return factory
