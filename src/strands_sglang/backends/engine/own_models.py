"""Names of models: the package's own ones, the check of a name, and why a hub does not answer."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from ...exceptions import StrandsSGLangError, did_you_mean

OWN_MODELS = ("smollm2", "tiny", "tiny-vision")
"""Names that `EmbeddedEngine` knows: the default model, a tiny random one, and a tiny vision model."""
DTYPES = ("float32", "bfloat16", "float16")
"""Types that the weights of a model may have."""
EXPECTED = "give smollm2, tiny, a folder with a model and its tokenizer, or a hub id such as Qwen/Qwen3-0.6B"
CONNECT_SECONDS = 3.0
"""Time limit for the Hugging Face hub to accept a connection."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class ModelLoadError(StrandsSGLangError, RuntimeError):
    """A model could not be fetched, verified, converted or loaded."""


class UnknownModelError(ModelLoadError, ValueError):
    """A name that cannot be a model: neither a folder nor a hub id, or one of ours misspelt. No hub was asked."""


def is_own_model(name: str) -> bool:
    """True for the name of a model of this package; a folder of that name comes first."""
    return name in OWN_MODELS and not Path(name).exists()


def check_model_name(name: str) -> None:
    """Refuse a name that cannot be a model with `UnknownModelError`, before a hub is asked."""
    if is_own_model(name) or Path(name).exists():
        return
    if _HUB_ID.fullmatch(name) is None:
        raise UnknownModelError(f"{name!r} is neither a folder nor a hub id: {EXPECTED}")
    if "/" not in name and (hint := did_you_mean(name, OWN_MODELS)):
        raise UnknownModelError(f"unknown model {name!r}{hint}: {EXPECTED}")


def why_no_answer(url: str, timeout: float) -> str | None:
    """The system's error if nothing accepts connections at an address within `timeout` seconds, otherwise None. Blocks.

    Behind a proxy it is assumed to be reachable: only a request would show it. `ValueError` for an address without a
    host, or with an impossible port.
    """
    import socket
    from urllib.request import getproxies, proxy_bypass

    address, proxies = urlsplit(url), getproxies()
    if not address.hostname or address.scheme not in ("http", "https"):
        raise ValueError(f"expected an address such as http://localhost:8000/v1, got {url!r}")
    if (proxies.get(address.scheme) or proxies.get("all")) and not proxy_bypass(address.hostname):
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), timeout=timeout).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def why_no_hub() -> str | None:
    """The reason why the Hugging Face hub cannot be reached, and the setting that helps; None where it can. Blocks.

    The hub's own libraries try for half a minute before they report it.
    """
    from huggingface_hub import constants

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    if (why := why_no_answer(constants.ENDPOINT, CONNECT_SECONDS)) is None:
        return None
    return (
        f"the Hugging Face hub cannot be reached at {constants.ENDPOINT} ({why}; HF_ENDPOINT names a mirror, "
        "HTTPS_PROXY a proxy)"
    )


def is_offline_mode() -> bool:
    """`HF_HUB_OFFLINE` is set: the hub's libraries read their local cache only."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def only_from_cache(name: object) -> bool:
    """A model can only come from the local cache: it is not a local folder, and the hub cannot be reached."""
    return isinstance(name, str) and not Path(name).exists() and why_no_hub() is not None


def why_not_loaded(error: BaseException) -> str:
    """The reason why a model did not load, in one line."""
    message = " ".join(str(error).split())
    if "couldn't connect to" in message or "offline mode" in message:
        return f"it is not in the local cache, and {why_no_hub() or 'the Hugging Face hub cannot be reached'}"
    if "is not a valid model identifier" in message or "Repository Not Found" in message:
        return "the Hugging Face hub has no such model, or asks for a login (hf auth login)"
    return f"{type(error).__name__}: {message[:300]}"
