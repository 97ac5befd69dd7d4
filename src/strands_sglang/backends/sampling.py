"""Sampling parameters: one checked model for all backends, each of which maps its names to its own."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from ..exceptions import BackendRequestError, did_you_mean

CONSTRAINTS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})
"""Sampling parameters that constrain decoding."""

# Names at other engines, so that an error can name the right one.
_OTHER_NAMES = {
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


def _without_numpy(value: Any) -> Any:
    """A scalar of NumPy as Python's own: JSON takes no other."""
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value


def must(holds: object, words: str) -> None:
    """Refuse a value of a parameter unless something holds of it."""
    if not holds:
        raise ValueError(f"must {words}")


def _check_strings(value: Any) -> str | list[str]:
    items = [value] if isinstance(value, str) else value
    is_list = isinstance(items, list | tuple) and all(isinstance(item, str) for item in items)
    must(is_list, "be a string or a list of strings")
    must(len(items) <= 32, f"be at most 32 strings, not {len(items)}")  # SGLang's limit, as the 256 bytes below
    must(all(items), "not hold an empty string, which would end every reply at once")
    return value if isinstance(value, str) else list(items)


def _check_patterns(value: Any) -> str | list[str]:
    patterns = _check_strings(value)
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        must(len(pattern.encode()) <= 256, "be patterns of at most 256 bytes")
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            must(False, f"be regular expressions ({error} in {pattern!r})")
    return patterns


def _check_token_ids(value: Any) -> list[int]:
    is_list = isinstance(value, list | tuple | set | frozenset)
    items: list[Any] = [_without_numpy(item) for item in value] if is_list else [None]
    are_ids = all(type(item) is int and item >= 0 for item in items)  # True is an int as well
    must(are_ids, "be a list of token ids, integers of at least 0")
    return items


def _check_bias(value: Any) -> dict[str, float]:
    must(isinstance(value, Mapping), "be a mapping of token ids (as strings) to numbers")
    bias = {str(token): _without_numpy(amount) for token, amount in value.items()}
    must(all(re.fullmatch("[0-9]+", token) for token in bias), "have token ids as keys")
    are_numbers = all(type(amount) in (int, float) and math.isfinite(amount) for amount in bias.values())
    must(are_numbers, "have a finite number for every token id")
    return bias


def _check_grammar(value: Any) -> str:
    must(not isinstance(value, dict | list), "be a string; use json.dumps(...)")
    must(isinstance(value, str) and value, "be a non-empty string")
    return str(value)


Count = Annotated[int, BeforeValidator(_without_numpy)]
Number = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_without_numpy)]
Strings = Annotated[str | list[str] | None, PlainValidator(_check_strings)]
Grammar = Annotated[str | None, PlainValidator(_check_grammar)]


class SamplingParams(BaseModel):
    """Sampling parameters under SGLang's names and in its ranges; a subclass names those that its backend lacks.

    None means the backend's default. The last three shape the text of an answer, which nothing here reads.
    """

    lacking: ClassVar[Collection[str]] = ()
    """Parameters that the backend does not have."""
    why_lacking: ClassVar[str] = ""
    """The rest of a sentence that says so."""

    # Strict, because SGLang refuses 1.0 for a count and unknown names, and routers drop the latter silently.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_new_tokens: Annotated[Count, Field(ge=0)] | None = None
    min_new_tokens: Annotated[Count, Field(ge=0)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Count, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=2)] | None = None
    stop: Strings = None
    stop_token_ids: Annotated[list[int] | None, PlainValidator(_check_token_ids)] = None
    stop_regex: Annotated[str | list[str] | None, PlainValidator(_check_patterns)] = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[dict[str, float] | None, PlainValidator(_check_bias)] = None
    sampling_seed: Count | None = None
    json_schema: Grammar = None
    regex: Grammar = None
    ebnf: Grammar = None
    structural_tag: Grammar = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        grammars = [name for name in self.model_fields_set if name in CONSTRAINTS]
        if len(grammars) > 1:
            raise ValueError(f"has {' and '.join(sorted(grammars))}: a call takes at most one grammar")
        if self.top_k == 0 and self.temperature != 0:  # SGLang takes 0 for greedy sampling only
            raise ValueError("['top_k'] must be -1 (off) or an integer of at least 1, got 0")
        low, high = self.min_new_tokens, self.max_new_tokens
        if low is not None and high is not None and low > high:
            raise ValueError(f"['min_new_tokens'] must be at most max_new_tokens={high}, got {low}")
        return self


def check_sampling_params(
    params: Mapping[str, Any],
    model: type[SamplingParams] = SamplingParams,
    *,
    extra_keys: Collection[str] = (),
    vocab_size: int | None = None,
) -> dict[str, Any]:
    """A checked copy of sampling parameters that shares nothing with them, without those that are None.

    Args:
        model: The parameters that the backend has, with its ranges.
        extra_keys: Further names to let through unchecked, for servers newer than this package.
        vocab_size: Rows of the embedding: token ids must be below it. None if unknown.

    Raises:
        BackendRequestError: An unknown name (the message names the nearest valid one), a wrong type or value, a token
            id outside the vocabulary, or more than one grammar.
    """
    if not isinstance(params, Mapping | SamplingParams):
        raise BackendRequestError(f"sampling_params must be a mapping of names to values, got {params!r}")
    values = {name: value for name, value in dict(params).items() if value is not None}
    extra = {name: copy.deepcopy(values.pop(name)) for name in list(values) if name in extra_keys}
    if lacking := next((name for name in values if name in model.lacking), None):
        raise BackendRequestError(
            f"sampling_params[{lacking!r}] must be left out: {model.why_lacking}, got {values[lacking]!r}"
        )
    try:
        validated = model.model_validate(values)
    except ValidationError as error:
        raise BackendRequestError(_first_fault(error, model)) from None
    # Attributes, not `model_dump`: validators made fresh containers already, and this runs every turn.
    result = {name: getattr(validated, name) for name in values} | extra
    for name in ("stop_token_ids", "logit_bias"):
        if vocab_size is not None and any(int(token) >= vocab_size for token in result.get(name, ())):
            raise BackendRequestError(
                f"sampling_params[{name!r}] must have token ids below the vocabulary size, {vocab_size}, "
                f"got {result[name]!r}"
            )
    return result


def _first_fault(error: ValidationError, model: type[SamplingParams]) -> str:
    fault = error.errors(include_url=False, include_context=False)[0]
    if not fault["loc"]:  # several parameters that do not agree
        return f"sampling_params{fault['msg'].removeprefix('Value error, ').replace('has ', ' has ', 1)}"
    name = fault["loc"][0]
    if fault["type"] == "extra_forbidden":
        names = sorted(model.model_fields)
        other = _OTHER_NAMES.get(str(name))
        hint = f" (did you mean {other!r}?)" if other in names else did_you_mean(str(name), names)
        return f"sampling_params has no {name!r}{hint or '; valid names are ' + ', '.join(names)}"
    expected = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return f"sampling_params[{name!r}] {expected}, got {fault['input']!r}"
