"""The client of an address. Shared clients and tokenizers: one of each per address and path in a process.

`get_client`, `get_client_from_slime_args` and `get_tokenizer` return the same object for the same arguments; their
`cache_clear` forgets these objects (it does not close clients).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from ..exceptions import BackendRequestError

if TYPE_CHECKING:
    from .engine.engine import EmbeddedEngine
    from .http.server_client import ServerClient

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_CONCURRENCY_PER_ENGINE = 512
"""slime's default of `sglang_server_concurrency`."""


_clients: dict[Any, ServerClient] = {}
_tokenizers: dict[Any, Any] = {}


def client_class(base_url: str, plain: str = "sglang") -> tuple[type[ServerClient], str]:
    """The client class for an address, and the address without its marking.

    `vllm+http://host:8000` is vLLM, `sglang+http://...` SGLang, a plain address of the kind `plain`; else `ValueError`.
    """
    kind, marked, rest = str(base_url).partition("+http")
    kind, rest = (kind, f"http{rest}") if marked else (plain, str(base_url))
    if kind == "vllm":
        from .vllm import VLLMClient

        return VLLMClient, rest
    if kind == "sglang":
        from .sglang.client import SGLangClient

        return SGLangClient, rest
    raise ValueError(f"base_url={base_url!r}: expected http://..., sglang+http://... or vllm+http://...")


class Connection(NamedTuple):
    """A server's client, the tokenizer of its model, and the folder or hub id of that tokenizer."""

    client: ServerClient
    tokenizer: Any
    name: str


def connect(
    server: str | ServerClient, tokenizer: str | None = None, *, plain: str = "sglang", **options: Any
) -> Connection:
    """Ask a server for its model, and load the tokenizer. Blocks.

    Args:
        server: An address as in `client_class`, with `options` of the client, or its client.
        tokenizer: Folder or hub id; the one that the server names if None.

    Raises:
        ValueError: The address is none, or the tokenizer is not the server's.
        BackendConnectionError: Nothing answers, the key is refused, it is another kind of server, or it names none.
        ModelLoadError: The tokenizer cannot be loaded.
    """
    if isinstance(server, str):
        make, address = client_class(server, plain)
        server = make(address, **options)
    loaded = None if tokenizer is None else get_tokenizer(tokenizer)  # before a server is asked
    served = server.served_tokenizer(is_optional=tokenizer is not None)
    name = tokenizer or str(served)
    loaded = get_tokenizer(name) if loaded is None else loaded
    server.check_tokenizer(loaded, name)
    return Connection(server, loaded, name)


def open_engine(model: str, **options: Any) -> EmbeddedEngine:
    """The embedded engine with a model; `UnknownModelError`, before torch is loaded, for a name that cannot be one."""
    from .engine.own_models import check_model_name

    check_model_name(model)
    from .engine.engine import EmbeddedEngine

    return EmbeddedEngine(model, **options)


class _Cached(Generic[P, R]):
    """A function that returns the same object for the same arguments, with a cache that its caller can clear."""

    def __init__(self, function: Callable[P, R], values: dict[Any, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.cache_clear = values.clear

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)


def _hashable(value: Any) -> Any:
    """A key for an option, equal for equal options."""
    if isinstance(value, Mapping):
        return "mapping", tuple(sorted((name, _hashable(item)) for name, item in value.items()))
    return ("list", *map(_hashable, value)) if isinstance(value, (list, set, frozenset)) else value


def _get_client(base_url: str, **options: Any) -> ServerClient:
    """The client of an address, made on the first call and shared after that.

    Args:
        base_url: Server or router: an `SGLangClient`, and for `vllm+http://...` a `VLLMClient`.
        **options: Options of the client; other options make another client.
    """
    url = str(base_url).rstrip("/")
    key = url, _hashable(options)
    if key not in _clients:
        client, address = client_class(url)
        _clients.setdefault(key, client(address, **options))
    return _clients[key]


def _get_client_from_slime_args(args: Any, **overrides: Any) -> ServerClient:
    """The shared client for slime's arguments: its router, its number of connections, no time-out.

    Connections are `sglang_server_concurrency` (per engine) times the engines: `rollout_num_engines` where it is
    set, otherwise `rollout_num_gpus // rollout_num_gpus_per_engine`, and never fewer than one engine's share.

    Args:
        args: slime's arguments; reads `sglang_router_ip`, `sglang_router_port` and the four above. Those of its fork
            vime begin with `vllm_` and make a `VLLMClient`.
        **overrides: Options of the client that replace those of slime's arguments.

    Raises:
        BackendRequestError: The arguments name no router.
    """
    server = "sglang" if getattr(args, "sglang_router_ip", None) or not hasattr(args, "vllm_router_ip") else "vllm"
    host, port = getattr(args, f"{server}_router_ip", None), getattr(args, f"{server}_router_port", None)
    if not host or not port:
        raise BackendRequestError(
            f"args.{server}_router_ip={host!r}, args.{server}_router_port={port!r}: expected the router's address, "
            "which slime fills in when its engines have started"
        )
    host = f"[{host}]" if ":" in str(host) and not str(host).startswith("[") else host
    concurrency = _count(args, f"{server}_server_concurrency") or DEFAULT_CONCURRENCY_PER_ENGINE
    engines = _count(args, "rollout_num_engines")
    gpus, per_engine = _count(args, "rollout_num_gpus"), _count(args, "rollout_num_gpus_per_engine")
    connections = concurrency * (engines or 1)
    if engines is None and gpus is not None and per_engine is not None:
        # An engine larger than the rollout's own GPUs is still one engine, with all of its concurrency.
        connections = max(concurrency, concurrency * gpus // per_engine)
    options = {"max_connections": connections, "timeout": None, **overrides}
    return _get_client(f"{'vllm+' if server == 'vllm' else ''}http://{host}:{port}", **options)


def _count(args: Any, name: str) -> int | None:
    """A positive count among the arguments; None where it is absent, zero, or not a number."""
    value = getattr(args, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _get_tokenizer(path: str | None = None, *, tokenizer_path: str | None = None, **options: Any) -> Any:
    """The Hugging Face tokenizer of a model, loaded on the first call and shared after that.

    Args:
        path: Name or folder of the model; `smollm2` and `tiny` are the embedded engine's.
        tokenizer_path: The name of `path` in strands-sglang 0.3.
        **options: Options of `AutoTokenizer.from_pretrained`.

    Raises:
        TypeError: No path or name.
        ImportError: `transformers` is not installed; the message names the extra.
        ModelLoadError: There is no such tokenizer.
    """
    path = tokenizer_path if path is None else path
    if not isinstance(path, str | PathLike):
        raise TypeError(f"got {path!r}, expected the path or hub id of a model, such as get_tokenizer('Qwen/Qwen3-8B')")
    key = str(path), _hashable(options)
    if key not in _tokenizers:
        from .engine.loader import load_tokenizer

        _tokenizers.setdefault(key, load_tokenizer(str(path), **options))
    return _tokenizers[key]


get_client = _Cached(_get_client, _clients)
get_client_from_slime_args = _Cached(_get_client_from_slime_args, _clients)
get_tokenizer = _Cached(_get_tokenizer, _tokenizers)
