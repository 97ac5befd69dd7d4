"""The server at an address: its kind, its tokenizer and its vocabulary. Blocks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...command_line import SERVERS
from ...exceptions import BackendConnectionError
from ..answer import is_count

SECONDS: Final = 10.0
"""Time limit of each question."""
MODELS: Final = "/v1/models"
"""Path of the list of models, which every server has."""

PROBE: Final = 'Hello, w\u00f6rld!  12345\n<tool_call>{"name": "add"}</tool_call><|im_end|>\t\u4f60\u597d \U0001f642'
"""Text by which tokenizers are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """The facts that tell servers of one kind from others.

    Attributes:
        name: Its name on command lines and in addresses, a key of `command_line.SERVERS`.
        generate_route: Path of generate calls.
        abort_route: Path of abort calls.
        answer_key: A key that every generate answer has.
        wire_names: Names of a request's id and prompt.
        affinity_header: The header by which routers keep an episode on one worker.
        start_command: The command that starts a server.
        key_variable: Environment variable that may hold the server's key.
        tokenizer_route: Path of the answer that names the tokenizer.
        tokenizer_fields: Names of the field there: the first that is set counts.
        name_routes: Paths of the answer that has the name under which the model is served: the first that is there.
        name_field: Name of the field there.
    """

    name: str
    generate_route: str
    abort_route: str
    answer_key: str
    wire_names: tuple[str, bytes]
    affinity_header: str
    start_command: str
    key_variable: str
    tokenizer_route: str
    tokenizer_fields: tuple[str, ...]
    name_routes: tuple[str, ...]
    name_field: str


def read_tokenizer_name(
    server: ServerKind, base_url: str, headers: Mapping[str, str], *, is_optional: bool
) -> str | None:
    """The folder or hub id that a server names as its tokenizer.

    Args:
        is_optional: None if the server does not say.

    Raises:
        BackendConnectionError: Nothing answers, the key is refused, it is another kind of server, or it names none.
    """
    kind, name, route = server.name, SERVERS[server.name], server.tokenizer_route

    def ask(path: str) -> Any:
        try:
            return _ask(f"{base_url}{path}", headers)
        except (urllib.error.HTTPError, ValueError) as error:  # a status, or what is not JSON
            if isinstance(error, urllib.error.HTTPError) and error.code == 401:
                raise BackendConnectionError(
                    f"the server at {base_url!r} refuses the key, or misses one (HTTP 401): set {server.key_variable} "
                    "to the key that it was started with (--api-key)"
                ) from error
            return error
        except OSError as error:
            raise BackendConnectionError(
                f"no {name} server answers at {base_url!r} ({getattr(error, 'reason', error)}); start one, or correct "
                "the address"
            ) from error

    models = ask(MODELS)
    model = next(iter(listed_models(models)), {})
    owner = model.get("owned_by")  # both kinds put their own name there
    if owner in SERVERS and owner != kind:
        raise BackendConnectionError(
            f"what answers at {base_url!r} is a server of {SERVERS[owner]}, not of {name}: choose --backend {owner}, "
            f"or write the address {owner}+{base_url}"
        )
    info = models if route == MODELS else ask(route)
    if isinstance(info, Exception) and not is_optional:
        raise BackendConnectionError(
            f"what answers at {base_url!r} is not a server of {name}: GET {route} gives {info}; correct the address, "
            f"or choose another backend (--backend {' or '.join(SERVERS.keys() - {kind})})"
        )
    source = model if route == MODELS else info if isinstance(info, dict) else {}
    tokenizer = next((source[field] for field in server.tokenizer_fields if source.get(field)), None)
    if not tokenizer and not is_optional:
        raise BackendConnectionError(f"{base_url}{route} names no tokenizer; give one with --tokenizer (tokenizer=)")
    return str(tokenizer) if tokenizer else None


def read_model_name(server: ServerKind, base_url: str, headers: Mapping[str, str]) -> str | None:
    """The name under which a server serves its model, or None if it states none.

    Raises:
        BackendConnectionError: Nothing answers.
    """
    for route in server.name_routes:
        try:
            answer = _ask(f"{base_url}{route}", headers)
        except (urllib.error.HTTPError, ValueError):  # a proxy may serve nothing but the calls
            continue
        except OSError as error:
            raise BackendConnectionError(f"{base_url}{route} is not answered ({error}): start the server") from error
        source = next(iter(listed_models(answer)), {}) if route == MODELS else answer
        name = source.get(server.name_field) if isinstance(source, dict) else None
        if name and isinstance(name, str):
            return name
    return None


def listed_models(listing: Any) -> list[dict[str, Any]]:
    """The models in an answer of `MODELS`."""
    models = listing.get("data") if isinstance(listing, Mapping) else None
    return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []


def check_tokenizer(base_url: str, headers: Mapping[str, str], tokenizer: Any, name: str) -> None:
    """`ValueError` if a tokenizer, called `name`, encodes otherwise than the server shows (`POST /tokenize`)."""
    body = json.dumps({"prompt": PROBE, "add_special_tokens": False}).encode()
    try:
        answer = _ask(f"{base_url}/tokenize", {**headers, "Content-Type": "application/json"}, body)
    except (OSError, ValueError):  # routers do not pass this route on
        return
    theirs = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(theirs, list) or theirs == (ours := tokenizer.encode(PROBE, add_special_tokens=False)):
        return
    raise ValueError(
        f"the tokenizer {name!r} is not that of the model at {base_url!r}: a text of {len(PROBE)} characters is "
        f"{len(theirs)} tokens there and {len(ours)} here, or other ones; give the model's own with --tokenizer"
    )


def _ask(url: str, headers: Mapping[str, str], body: bytes | None = None) -> Any:
    request = urllib.request.Request(url, data=body, headers=dict(headers))
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def vocab_size_of(info: Any) -> int | None:
    """Rows of the embedding in an info answer or a model configuration, or None."""
    if not isinstance(info, Mapping):
        return None
    for config in (info, info.get("model_config"), info.get("text_config")):
        size = config.get("vocab_size") if isinstance(config, Mapping) else None
        if is_count(size) and size > 0:
            return size
    return None


def vocab_size_of_folder(path: Any) -> int | None:
    """Rows of the embedding of a model folder on this machine, or None."""
    try:
        return vocab_size_of(json.loads((Path(path) / "config.json").read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None
