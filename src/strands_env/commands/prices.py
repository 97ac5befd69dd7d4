"""Prices of tokens: their arguments, and what a saved run was given."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Any

from strands_env.eval import Prices

PRICES = ("price_input", "price_output", "price_cached_input")
"""Names of the options."""


def add_prices(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the arguments."""
    text = {
        "price_input": "price of a million tokens read, in any currency",
        "price_output": "price of a million tokens sampled",
        "price_cached_input": "price of a million tokens read from a cache (default: as other input)",
    }
    for name in PRICES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=_price, metavar="P", help=text[name])


def prices_of(given: Mapping[str, Any], saved: Mapping[str, Any] | None = None) -> Prices | None:
    """The prices that are given, else those of the saved run; None without any.

    Args:
        given: Options of this command.
        saved: Options of the saved run.
    """
    found = {name: (given if given.get(name) is not None else saved or {}).get(name) for name in PRICES}
    if all(value is None for value in found.values()):
        return None
    return Prices(
        input=found["price_input"] or 0.0, output=found["price_output"] or 0.0, cached_input=found["price_cached_input"]
    )


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected a price of at least 0 for a million tokens, got {text!r}")
    return value
