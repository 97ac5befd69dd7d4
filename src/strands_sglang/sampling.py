"""Check a request before it leaves the process: sampling parameters, input ids, `max_new_tokens`, top-level fields.

A server answers some of these mistakes with 400, ignores others, and dies of one (an id outside the vocabulary).
Rules are those of SGLang's `SamplingParams` and of its request schema.
"""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ._sampling_checks import (
    Check,
    boolean,
    copy_json,
    fail,
    grammar,
    integer,
    logit_bias,
    mapping,
    number,
    strings,
    token_ids,
)
from .exceptions import SGLangRequestError

CONTEXT_RESERVE = 2
"""Tokens the server keeps free: with `max_new_tokens` equal to `context - prompt`, two fewer are sampled.

Servers also refuse prompts within six tokens of the context (506 of 512, measured on 0.5.23), as context overflow.
"""

DEFAULT_MAX_NEW_TOKENS = 2048
"""`max_new_tokens` when neither it, nor the context length, nor a budget is known."""

GRAMMAR_KEYS = ("json_schema", "regex", "ebnf", "structural_tag")
"""Keys that constrain decoding; the server takes at most one."""

_ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "max_output_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "grammar": "ebnf",
    "response_format": "json_schema",
    "num_return_sequences": "n",
    "best_of": "n",
}

_penalty = number(lambda x: -2 <= x <= 2, "a number from -2 to 2")
_CHECKS: Mapping[str, Check] = {
    "max_new_tokens": integer(0),
    "min_new_tokens": integer(0),
    "temperature": number(lambda x: x >= 0, "a finite number of at least 0"),
    "top_p": number(lambda x: 0 < x <= 1, "a number above 0 and up to 1"),
    "top_k": integer(-1),
    "min_p": number(lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "frequency_penalty": _penalty,
    "presence_penalty": _penalty,
    "repetition_penalty": number(lambda x: 0 < x <= 2, "a number above 0 and up to 2"),
    "stop": strings(32),
    "stop_token_ids": token_ids,
    "stop_regex": strings(32, max_bytes=256, patterns=True),
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "no_stop_trim": boolean,
    "n": integer(1),
    "json_schema": grammar,
    "regex": grammar,
    "ebnf": grammar,
    "structural_tag": grammar,
    "logit_bias": logit_bias,
    "sampling_seed": integer(),
    "custom_params": mapping,
    "beam_width": integer(1),
    "stream_interval": integer(1),
    "watermark": lambda _, value: copy_json(value),
}
SAMPLING_KEYS = frozenset(_CHECKS)
"""Every sampling parameter of the server that can be sent (`choice` is listed by its schema, but answers 500)."""


def validate_sampling_params(
    params: Mapping[str, Any], *, extra_keys: Collection[str] = (), vocab_size: int | None = None
) -> dict[str, Any]:
    """Check sampling parameters as the server would, and return a fresh copy that shares nothing with them.

    A value of None means the server's default and is left out, except `max_new_tokens`, where None has a meaning of
    its own (all that fits) and is kept.

    Args:
        params: SGLang sampling parameters; never changed.
        extra_keys: Further keys to let through unchecked, for servers newer than this package.
        vocab_size: Rows of the embedding: token ids must be below it. None if unknown.

    Raises:
        SGLangRequestError: An unknown key (the message names the nearest valid one), a wrong type or value, a token
            id outside the vocabulary, or more than one grammar.
    """
    if not isinstance(params, Mapping):
        raise SGLangRequestError(f"sampling_params={params!r}: expected a mapping of parameter names to values")
    checked: dict[str, Any] = {}
    for key, value in params.items():
        if key in extra_keys:
            checked[key] = copy_json(value)
        elif key not in _CHECKS:
            raise SGLangRequestError(_unknown_key(key))
        elif value is not None:
            checked[key] = _CHECKS[key](key, value)
        elif key == "max_new_tokens":
            checked[key] = None
    grammars = [key for key in GRAMMAR_KEYS if key in checked]
    if len(grammars) > 1:
        raise SGLangRequestError(f"sampling_params has {' and '.join(grammars)}: the server takes at most one grammar")
    if checked.get("top_k") == 0 and checked.get("temperature") != 0:
        raise fail("top_k", 0, "-1 (off) or an integer of at least 1")
    longest = checked.get("max_new_tokens")
    if longest is not None and checked.get("min_new_tokens", 0) > longest:
        raise fail("min_new_tokens", checked["min_new_tokens"], f"at most max_new_tokens={longest}")
    for key in ("stop_token_ids", "logit_bias"):
        tokens = (int(token) for token in checked.get(key) or ())
        if vocab_size is not None and any(token >= vocab_size for token in tokens):
            raise fail(key, checked[key], f"token ids below the vocabulary size, {vocab_size}")
    return checked


def _unknown_key(key: Any) -> str:
    near = _ALIASES.get(key) or next(iter(difflib.get_close_matches(str(key), sorted(SAMPLING_KEYS), 1, 0.5)), None)
    hint = f"did you mean {near!r}?" if near else f"valid names are {', '.join(sorted(SAMPLING_KEYS))}"
    return f"sampling_params has no {key!r}; {hint}"


def validate_input_ids(ids: Sequence[int] | array[int] | Any, vocab_size: int | None = None) -> None:
    """Check prompt ids. An id outside the vocabulary kills an SGLang server and every request in flight.

    Costs one pass in C; no Python code runs per token.

    Args:
        ids: Prompt ids: a list or tuple of integers, an integer `array`, or a one-dimensional integer ndarray.
        vocab_size: Rows of the embedding (ids are 0 to `vocab_size - 1`), or None if unknown.

    Raises:
        SGLangRequestError: No ids, ids that are not integers, or ids outside the vocabulary.
    """
    if isinstance(ids, (list, tuple)):
        kinds = set(map(type, ids))
        if not kinds <= {int}:
            where = next(i for i, item in enumerate(ids) if type(item) is not int)
            raise SGLangRequestError(f"input_ids[{where}]={ids[where]!r}: expected an integer token id")
    elif isinstance(ids, array):
        if ids.typecode not in "bBhHiIlLqQ":
            raise SGLangRequestError(f"input_ids is an array of type {ids.typecode!r}: expected integers")
    elif isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise SGLangRequestError(f"input_ids is a {ids.ndim}-d array of {ids.dtype}: expected 1-d integers")
    else:
        raise SGLangRequestError(f"input_ids is a {type(ids).__name__}: expected a list of integer token ids")
    if not len(ids):
        raise SGLangRequestError("input_ids is empty: expected at least one token id")
    low, high = (ids.min(), ids.max()) if isinstance(ids, np.ndarray) else (min(ids), max(ids))
    if low < 0:
        raise SGLangRequestError(f"input_ids has {int(low)}: a negative id would kill the server")
    if vocab_size is not None and high >= vocab_size:
        raise SGLangRequestError(
            f"input_ids has {int(high)}, outside the vocabulary of {vocab_size}: it would kill the server; "
            "is this the tokenizer of the served model?"
        )


def bound_max_new_tokens(
    requested: int | None,
    prompt_len: int,
    context_len: int | None,
    remaining_budget: int | None = None,
) -> int:
    """The `max_new_tokens` to send: what was asked for, bounded by the context and by the remaining budget.

    Prompt and new tokens together stay `CONTEXT_RESERVE` below the context length, which is all the server samples.

    Args:
        requested: What the caller asked for; None means all that fits.
        prompt_len: Length of the prompt, in tokens.
        context_len: Context length of the served model, or None if unknown.
        remaining_budget: Tokens the caller may still sample, or None for no limit.

    Returns:
        Tokens to ask for; 0 when the context or the budget is used up, and nothing should be sent.
    """
    bounds = [bound for bound in (requested, remaining_budget) if bound is not None]
    if context_len is not None:
        bounds.append(context_len - prompt_len - CONTEXT_RESERVE)
    return max(0, min(bounds)) if bounds else DEFAULT_MAX_NEW_TOKENS


_BOOL_FIELDS = frozenset(
    {
        "return_logprob",
        "return_text_in_logprobs",
        "return_prompt_token_ids",
        "return_sampling_mask",
        "return_routed_experts",
        "return_indexer_topk",
        "return_flat_raw_top_logprobs",
        "return_flat_raw_output_top_logprobs",
        "background",
        "require_reasoning",
    }
)
_INT_FIELDS = {
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "routed_experts_start_len": 0,
    "max_thinking_tokens": 0,
}


def validate_fields(
    fields: Mapping[str, Any], prompt_len: int | None = None, vocab_size: int | None = None
) -> dict[str, Any]:
    """Check the top-level fields of a generate request, leave out those that are None, and return a fresh dict.

    Unknown fields pass: servers ignore what they do not know. `sampling_params` is left to
    `validate_sampling_params`.

    Args:
        fields: Fields besides the prompt.
        prompt_len: Length of the prompt, if known: start positions must lie within it.
        vocab_size: Rows of the embedding: token ids must be below it. None if unknown.

    Raises:
        SGLangRequestError: A known field of the wrong type or out of range, or one this client cannot serve.
    """
    checked = {key: value for key, value in fields.items() if value is not None}
    for key, value in checked.items():
        if key in _BOOL_FIELDS and not isinstance(value, bool):
            raise SGLangRequestError(f"{key}={value!r}: expected True or False")
        low = _INT_FIELDS.get(key)
        if low is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
            raise SGLangRequestError(f"{key}={value!r}: expected an integer of at least {low}")
        if prompt_len is not None and key.endswith("_start_len") and isinstance(value, int) and value > prompt_len:
            raise SGLangRequestError(f"{key}={value!r}: expected at most the prompt length, {prompt_len}")
    scored = checked.get("token_ids_logprob", [])
    if not isinstance(scored, (list, tuple)) or any(
        type(token) is not int or token < 0 or (vocab_size is not None and token >= vocab_size) for token in scored
    ):
        below = "" if vocab_size is None else f", below the vocabulary size, {vocab_size}"
        raise SGLangRequestError(f"token_ids_logprob={scored!r:.200}: expected a list of token ids{below}")
    if checked.get("stream"):
        raise SGLangRequestError("stream=True: this client reads one whole answer per call; leave stream out")
    rid = checked.get("rid")
    if rid is not None and not (isinstance(rid, str) and rid):
        raise SGLangRequestError(f"rid={rid!r}: expected a non-empty string")
    for key in ("text", "input_embeds"):
        if key in checked:
            raise SGLangRequestError(
                f"{key} is given besides input_ids: the server would use input_ids; leave {key} out"
            )
    return checked
