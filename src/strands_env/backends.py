"""The places where a model may be: one table, and the model factory of an entry.

A new backend is one entry here and a function that makes its model factory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_env.core import ModelFactory

_OPTIONS = {"base_url": "a server: give --base-url http://host:port", "model_id": "a model: give --model-id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBackend:
    """One place where a model may be.

    Attributes:
        make: Import path (`module:function`) of what makes a model factory from `base_url`, `model_id`, `tokenizer`,
            `sampling_params` and options.
        has_tokens: Its models keep exact token data; their tool parsers are ours.
        check_sampling: Import path of what checks its sampling parameters; None leaves that to the provider.
        needs: Options that it cannot do without.
        key: Environment variable with the key that its client needs, unless `base_url` names a server of one's own.
        ignores: Options that have no effect, each with the reason.
        loading: Sentence for a display while the model is made; `{base_url}` and `{model_id}` are filled in.
    """

    name: str
    make: str
    has_tokens: bool = False
    check_sampling: str | None = None
    needs: tuple[str, ...] = ()
    key: str | None = None
    ignores: Mapping[str, str] = field(default_factory=dict)
    loading: str | None = None

    def missing(self, options: Mapping[str, Any]) -> str | None:
        """A sentence on what is missing among the options; None if nothing is."""
        for name in self.needs:
            if not options.get(name):
                return f"the backend {self.name!r} needs {_OPTIONS[name]}"
        if self.key is not None and not options.get("base_url") and not os.environ.get(self.key):
            return (
                f"the backend {self.name!r} needs a key: set {self.key}, or name a server of your own with --base-url"
            )
        return None

    def load(self) -> Callable[..., Any]:
        """The function that makes its model factory."""
        return _import_function(self.make)

    def check(self, sampling_params: Mapping[str, Any]) -> None:
        """Refuse sampling parameters that it would refuse or ignore.

        Raises:
            BackendRequestError: One is unknown or out of range.
        """
        if self.check_sampling is not None:
            _import_function(self.check_sampling)(sampling_params)


def _import_function(path: str) -> Callable[..., Any]:
    module, _, function = path.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def _no_tokens(name: str) -> dict[str, str]:
    why = f"the backend {name!r} gives no tokens, and reads tool calls itself"
    return {"tokenizer": why, "tool_parser": why}


def _no_server(name: str) -> dict[str, str]:
    return {"base_url": f"the backend {name!r} has no server to name (--backend sglang, vllm and openai have one)"}


BACKENDS: Mapping[str, ModelBackend] = {
    backend.name: backend
    for backend in (
        ModelBackend(
            name="local",
            make="strands_env.core.models:local_from_args",
            has_tokens=True,
            check_sampling="strands_sglang.backends.sampling:check_sampling_params",
            ignores={**_no_server("local"), "tokenizer": "the model brings its own"},
        ),
        ModelBackend(
            name="sglang",
            make="strands_env.core.models:sglang_from_args",
            has_tokens=True,
            check_sampling="strands_sglang.backends.sglang.request:check_sampling_params",
            needs=("base_url",),
            loading="asking the server at {base_url} for its model, and loading the tokenizer",
        ),
        ModelBackend(
            name="vllm",
            make="strands_env.core.models:vllm_from_args",
            has_tokens=True,
            check_sampling="strands_sglang.backends.vllm.request:check_sampling_params",
            needs=("base_url",),
            loading="asking the server at {base_url} for its model, and loading the tokenizer",
        ),
        ModelBackend(
            name="openai",
            make="strands_env.core.models:openai_from_args",
            needs=("model_id",),
            key="OPENAI_API_KEY",
            ignores=_no_tokens("openai"),
        ),
        ModelBackend(
            name="bedrock",
            make="strands_env.core.models:bedrock_from_args",
            needs=("model_id",),
            ignores={**_no_server("bedrock"), **_no_tokens("bedrock")},
        ),
    )
}
"""Backends by name; the first is the default."""


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
    if (missing := chosen.missing({"base_url": sglang_base_url, "model_id": model_id})) is not None:
        raise ValueError(missing)
    made: ModelFactory = chosen.load()(
        base_url=sglang_base_url, model_id=model_id, tokenizer=tokenizer, sampling_params=sampling_params, **options
    )
    return made
