"""Factories of models: each call of a factory makes a fresh model, over a client and tokenizer they all share.

A fresh model per step keeps steps apart. Any callable without arguments that returns a Strands `Model` is a factory.
Those made here have an attribute `config`, JSON values that decide the model's answers; evaluations save it.
Their `**options` go to the model, or to the factory they call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from strands.models import Model

from strands_sglang.backends import Capabilities
from strands_sglang.backends.clients import connect, get_client, open_engine
from strands_sglang.backends.engine.own_models import ModelLoadError, is_own_model, only_from_cache, why_no_answer
from strands_sglang.command_line import SERVERS
from strands_sglang.exceptions import BackendConnectionError, MediaError, install_command
from strands_sglang.limits import Limits
from strands_sglang.trajectory.images import image_expander

from .jsonable import name_of, plain
from .seeds import RolloutSeed, SeededBackend
from .types import ModelFactory as ModelFactory

if TYPE_CHECKING:
    from strands_sglang.tool_parsers import ToolParser

logger = logging.getLogger(__name__)

DEFAULT_SAMPLING_PARAMS: dict[str, Any] = {"max_new_tokens": 16384}
"""Sampling parameters of a factory that was given none; the model's own defaults hold for the rest."""


def sglang_model_factory(
    *,
    tokenizer: Any,
    client: Any,
    model_id: str | None = None,
    tool_parser: ToolParser | str | None = None,
    sampling_params: Mapping[str, Any] | None = None,
    enable_thinking: bool | None = None,
    seeded: bool | None = None,
    **options: Any,
) -> ModelFactory:
    """A factory of `SGLangModel`, with exact token data.

    Args:
        tokenizer: Hugging Face tokenizer of the served model.
        client: `SGLangClient`, the embedded engine, or anything that speaks the generate contract. Shared.
        model_id: Name for telemetry.
        tool_parser: Reads tool calls: a parser or its name, such as `"hermes"`; None chooses one that fits the chat
            template.
        sampling_params: SGLang sampling parameters, `{"max_new_tokens": 16384}` if None. Copied for every model.
        enable_thinking: The chat template's argument of that name; None leaves it to the template.
        seeded: In a rollout that has a seed (an evaluation gives every sample one), send a `sampling_seed` with each
            call. None does so where the client declares that it samples by seeds, as the embedded engine does; an
            SGLang server does only with `--enable-deterministic-inference`, so that True is yours to say.
    """
    from strands_sglang.model import TokenModel
    from strands_sglang.tool_parsers import as_tool_parser

    budgets = Limits.of(options.pop("limits", None)).set_ones("tokens", owner="a model")
    options = {**budgets, **options}
    parser = as_tool_parser(tool_parser)
    params = dict(DEFAULT_SAMPLING_PARAMS if sampling_params is None else sampling_params)
    if seeded is None:
        can = getattr(client, "capabilities", None)
        seeded = isinstance(can, Capabilities) and can.seeds

    def factory() -> Model:
        backend = client
        if seeded and (rollout := RolloutSeed.current()) is not None:
            backend = SeededBackend(client, rollout.for_model())
            rollout.is_used = True
        return TokenModel(
            tokenizer=tokenizer,
            client=backend,
            tool_parser=parser,
            model_id=model_id,
            sampling_params=dict(params),
            enable_thinking=enable_thinking,
            **options,
        )

    named = {
        "enable_thinking": enable_thinking,
        "tool_parser": None if parser is None else name_of(parser),
        "seeded": seeded,
    }
    return _with_config(factory, model_id, params, {**named, **options})


def _with_config(
    factory: Callable[[], Model], model_id: str | None, params: Mapping[str, Any], options: Mapping[str, Any]
) -> ModelFactory:
    config = {"model_id": model_id, "sampling_params": dict(params), **plain(options, leaf=name_of)}
    factory.config = config  # type: ignore[attr-defined]
    return factory


def local_model_factory(
    *,
    engine: Any = None,
    model: str = "smollm2",
    sampling_params: Mapping[str, Any] | None = None,
    **options: Any,
) -> ModelFactory:
    """A factory of models over the embedded engine: no server, no GPU, exact token data (extra `local`).

    Args:
        engine: A running `strands_sglang.backends.engine.EmbeddedEngine`, which stays the caller's to close. None
            starts one; it is the factory's attribute `engine` and ends with the process or with
            `await factory.engine.close()`.
        model: Model of a started engine: a name it knows, a Hugging Face id or a folder.
        sampling_params: Sampling parameters, `{"max_new_tokens": 1024}` if None.
    """
    if engine is None:
        engine = open_engine(model)
    factory = sglang_model_factory(
        tokenizer=engine.tokenizer,
        client=engine,
        sampling_params={"max_new_tokens": 1024} if sampling_params is None else sampling_params,
        **options,
    )
    factory.engine = engine  # type: ignore[attr-defined]
    factory.config["model"] = getattr(engine, "model_path", None)  # type: ignore[attr-defined]
    return factory


def openai_model_factory(
    *,
    model_id: str,
    sampling_params: Mapping[str, Any] | None = None,
    client_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> ModelFactory:
    """A factory of the SDK's `OpenAIModel`, for any OpenAI-compatible server (extra `openai`). No token data.

    Args:
        sampling_params: Request parameters; `max_new_tokens` is sent as `max_tokens`.
        client_args: Arguments of the OpenAI client, such as `base_url` and `api_key`.
    """
    try:  # a missing extra shows here, not in the first step
        from strands.models.openai import OpenAIModel
    except ImportError as error:
        raise ImportError(f"OpenAI models need the openai package: {install_command('openai')}") from error
    params = _rename_max_tokens(sampling_params)

    def factory() -> Model:
        return OpenAIModel(model_id=model_id, params=dict(params), client_args=dict(client_args or {}), **options)

    return _with_config(factory, model_id, params, options)


def bedrock_model_factory(
    *,
    model_id: str,
    boto_session: Any = None,
    boto_client_config: Any = None,
    region_name: str | None = None,
    sampling_params: Mapping[str, Any] | None = None,
    **options: Any,
) -> ModelFactory:
    """A factory of the SDK's `BedrockModel`; all models share one boto3 client, which is thread-safe. No token data.

    Args:
        boto_session: boto3 session with credentials; the SDK makes one if None.
        region_name: Region, when there is no session.
        sampling_params: Inference parameters; `max_new_tokens` is sent as `max_tokens`.
    """
    from strands.models.bedrock import BedrockModel

    params = _rename_max_tokens(sampling_params)
    arguments: dict[str, Any] = {"model_id": model_id, **params, **options}
    access = {"boto_session": boto_session, "boto_client_config": boto_client_config, "region_name": region_name}
    arguments |= {name: value for name, value in access.items() if value is not None}
    client: Any = None

    def factory() -> Model:
        nonlocal client
        model = BedrockModel(**arguments)
        # BedrockModel takes no client; every one after the first is given the first one's.
        client = model.client if client is None else client
        model.client = client
        return model

    return _with_config(factory, model_id, params, options)


def _server_from_args(
    kind: str, *, base_url: str, model_id: str | None, tokenizer: str | None, **options: Any
) -> ModelFactory:
    """The factory for a server, whose tokenizer is asked for where none is given."""
    client = get_client(f"{kind}+{base_url}" if base_url.startswith("http") else base_url)
    if client.server.name != kind:
        server = SERVERS[client.server.name]
        raise ValueError(f"{base_url!r} is the address of a {server} server: choose --backend {client.server.name}")
    try:
        _, loaded, path = connect(client, tokenizer)
    except ModelLoadError as error:
        raise ValueError(f"{error}; give another with --tokenizer, a folder or a hub id") from error
    if "processor" not in options and (processor := _processor_beside(path)) is not None:
        options["processor"] = processor
    return sglang_model_factory(tokenizer=loaded, client=client, model_id=model_id or path, **options)


sglang_from_args = partial(_server_from_args, "sglang")
"""`sglang_model_factory` for an SGLang server."""
vllm_from_args = partial(_server_from_args, "vllm")
"""`sglang_model_factory` for a vLLM server."""


def _processor_beside(tokenizer: str) -> str | None:
    """The folder or hub id of a tokenizer, where it has the image processor of a model whose images are exact."""
    if is_own_model(tokenizer):
        return None
    options: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False}
    try:
        from transformers.utils import cached_file

        options["local_files_only"] = only_from_cache(tokenizer)
        if cached_file(tokenizer, "preprocessor_config.json", **options) is None:
            return None
        image_expander(tokenizer)
    except (ImportError, OSError, MediaError) as error:
        logger.info("tokenizer=<%s>, error=<%s> | images will be refused", tokenizer, error)
        return None
    return tokenizer


def local_from_args(*, model_id: str | None, **options: Any) -> ModelFactory:
    """`local_model_factory` for the name of a model."""
    return local_model_factory(model=model_id or "smollm2", **options)


def openai_from_args(*, base_url: str | None, model_id: str, **options: Any) -> ModelFactory:
    """`openai_model_factory`, also for a server of one's own."""
    if base_url:
        if (why := why_no_answer(base_url, 10.0)) is not None:  # every sample would fail alike
            raise BackendConnectionError(
                f"no server answers at {base_url!r} ({why}); start one, or correct the address"
            )
        options["client_args"] = {"base_url": base_url, "api_key": "EMPTY", **options.get("client_args", {})}
    return openai_model_factory(model_id=model_id, **options)


def _rename_max_tokens(sampling_params: Mapping[str, Any] | None) -> dict[str, Any]:
    params = dict(DEFAULT_SAMPLING_PARAMS if sampling_params is None else sampling_params)
    if "max_new_tokens" in params:
        params["max_tokens"] = params.pop("max_new_tokens")
    return params
