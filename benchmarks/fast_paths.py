"""What each fast path saves of a whole rollout, alone.

    python -m benchmarks.fast_paths [--passes 15] [--sizes 3k 36k] [--tools 1] [--paths pieces flat_loop]

Rollouts of an `Environment` with `SGLangModel` run against the scripted server of `provider_floor`, all in one process:
with all fast paths, without each of them (`STRANDS_ROLLOUT_PLAIN=name`), and without any, in a new order each pass. A
figure is the median over the passes of CPU milliseconds per turn, garbage collections included; what a fast path saves
is the median of `1 - with / without` within a pass.

The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.provider_floor import (
    MOST_NEW_TOKENS,
    QUESTION,
    SIZES,
    SYSTEM,
    TOOL,
    Worker,
    machine,
    order_of,
    save_tokenizer,
    words,
)

AGENTS = {"3k": 8, "36k": 2, "90k": 1}
ALL, NONE = "all", "none"


def environment(client: Any, tokenizer: Any, order: dict[str, Any], tools: int) -> Any:
    """An environment like that of `provider_floor`, with more tools."""
    from strands import tool

    from strands_env.core import Environment
    from strands_env.core.models import sglang_model_factory

    result = words(order["result_words"], 1)

    async def search(query: str) -> str:
        return result

    names = [TOOL["name"], *(f"{TOOL['name']}_{number}" for number in range(1, tools))]
    made = [tool(name=name, description=TOOL["description"], inputSchema=TOOL["inputSchema"])(search) for name in names]

    class Library(Environment):
        def get_tools(self) -> list[Any]:
            return made

    params = {"max_new_tokens": MOST_NEW_TOKENS + order["turns"]}
    factory = sglang_model_factory(client=client, tokenizer=tokenizer, sampling_params=params)
    return Library(model_factory=factory, system_prompt=SYSTEM, reward_fn=lambda action, result: 1.0)


async def turn_ms(tokenizer: Any, order: dict[str, Any], tools: int) -> float:
    """CPU milliseconds of a turn."""
    from strands_env.core import Action
    from strands_sglang import SGLangClient

    async with SGLangClient(base_url=order["url"]) as client:
        env = environment(client, tokenizer, order, tools)
        gc.collect()
        started = time.process_time()
        results = await asyncio.gather(*(env.step(Action(message=QUESTION)) for _ in range(order["agents"])))
        spent = time.process_time() - started
    assert all(each.error is None and each.reward.reward == 1.0 for each in results), results[0].error
    return 1000 * spent / (order["turns"] * order["agents"])


def measured(tokenizer: Any, size: str, url: str, args: argparse.Namespace) -> dict[str, Any]:
    """What one size takes, and what each fast path saves of it."""
    from strands_sglang.fast_paths import VARIABLE, FastPath

    order = {**order_of(size, url), "agents": AGENTS[size]}
    turned_off = args.paths or [path.value for path in FastPath]

    def run(off: str) -> float:
        os.environ[VARIABLE] = {ALL: "", NONE: "1"}.get(off, off)
        return asyncio.run(turn_ms(tokenizer, order, args.tools))

    run(ALL), run(NONE)  # imports, self-check, caches
    taken: dict[str, list[float]] = {off: [] for off in (ALL, *turned_off, NONE)}
    choose = random.Random(0)
    for _ in range(args.passes):
        both_ends = run(ALL)
        for off in choose.sample(list(taken)[1:], k=len(taken) - 1):
            taken[off].append(run(off))
        taken[ALL].append((both_ends + run(ALL)) / 2)
    rows = {
        off: {
            "ms": round(statistics.median(each), 2),
            "saves": round(statistics.median(1 - fast / slow for fast, slow in zip(taken[ALL], each, strict=True)), 3),
        }
        for off, each in taken.items()
    }
    return {"ms": rows.pop(ALL)["ms"], "without": rows}


def main() -> None:
    """Print the table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["3k", "36k"])
    parser.add_argument("--tools", type=int, default=1, help="tools of the agent; the model calls one of them")
    parser.add_argument("--paths", nargs="+", default=[], help="these fast paths only")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), None)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        server = Worker(sys.executable, "--serve", folder)
        assert server.process.stdout is not None
        url = f"http://127.0.0.1:{server.process.stdout.readline().strip()}"
        try:
            sizes = {size: measured(tokenizer, size, url, args) for size in args.sizes}
        finally:
            server.close()
    for size, row in sizes.items():
        print(f"{size}: {row['ms']:.2f} ms of CPU a turn with all fast paths")
        for off, figures in row["without"].items():
            print(f"  without {off:>16}: {figures['ms']:>7.2f} ms; it saves {figures['saves']:>6.1%}")
    settings = {"passes": args.passes, "tools": args.tools}
    print(json.dumps({"benchmark": "fast_paths", **settings, "sizes": sizes, **machine()}))


if __name__ == "__main__":
    main()
