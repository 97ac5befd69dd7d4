"""Encoding a tool result: in pieces, as `Backend` does it, against the Rust tokenizer.

    python benchmarks/encoding.py [--characters 1000 16000] [--passes 5]

Texts of four kinds, with the real Qwen tokenizer: English words, Python code (modules of this project), JSON with
random numbers, and random base64, in which nothing repeats. `cold` is the first text after the start; the other columns
are medians over different texts of the kind, each encoded once, so that nothing is remembered but words. Microseconds
of CPU time. Ids are compared as well. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
from benchmarks.provider_floor import words  # noqa: E402
from tests.qwen_support import qwen3_tokenizer  # noqa: E402

from strands_sglang.conversation.pieces import PieceEncoder  # noqa: E402

SEED, TEXTS = 7, 40


def english(choose: random.Random, length: int) -> str:
    return words(length // 5, choose.randrange(1 << 30))[:length]


def code(choose: random.Random, length: int) -> str:
    modules = sorted((ROOT / "src").rglob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in choose.choices(modules, k=8))
    start = choose.randrange(max(1, len(text) - length))
    return text[start : start + length]


def records(choose: random.Random, length: int) -> str:
    rows = [{"id": number, "name": f"row{number}", "value": choose.random()} for number in range(length // 40)]
    return json.dumps(rows, indent=1)[:length]


def noise(choose: random.Random, length: int) -> str:
    return base64.b64encode(choose.randbytes(length)).decode()[:length]


KINDS: dict[str, Callable[[random.Random, int], str]] = {
    "english": english,
    "code": code,
    "json": records,
    "base64": noise,
}


def timed(encode: Callable[[str], Any], text: str) -> tuple[float, Any]:
    """Microseconds, and the ids."""
    start = time.thread_time()
    ids = encode(text)
    return 1e6 * (time.thread_time() - start), ids


def measure(passes: int, characters: list[int]) -> Iterator[dict[str, Any]]:
    """A row for each kind and length."""
    rust = qwen3_tokenizer().backend_tokenizer

    def by_rust(text: str) -> list[int]:
        ids: list[int] = rust.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    for length in characters:
        for kind, make in KINDS.items():
            cold, taken, floor, tokens = [], [], [], []
            for number in range(passes):
                choose = random.Random(SEED + number)
                encoder = PieceEncoder.of(rust)
                assert encoder is not None
                for place in range(TEXTS):
                    text = make(choose, length)
                    ours, ids = timed(encoder.encode, text)
                    theirs, expected = timed(by_rust, text)
                    assert ids is None or ids == expected, text
                    if place == 0:
                        cold.append(ours)
                    else:
                        taken.append(ours)
                        floor.append(theirs)
                        tokens.append(len(expected))
            row = {"cold": cold, "pieces": taken, "rust": floor}
            medians = {f"{name}_us": round(statistics.median(values)) for name, values in row.items()}
            ratio = statistics.median(one / other for one, other in zip(taken, floor, strict=True))
            tokens_here = round(statistics.median(tokens))
            yield {"text": kind, "characters": length, "tokens": tokens_here, **medians, "ratio": round(ratio, 2)}


def main() -> None:
    """Print the table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--characters", type=int, nargs="+", default=[1_000, 16_000])
    parser.add_argument("--passes", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for row in measure(args.passes, args.characters):
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    print(json.dumps({"benchmark": "encoding", "texts": rows}))


if __name__ == "__main__":
    main()
