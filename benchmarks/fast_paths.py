"""What each fast path saves of a whole rollout, alone.

    python -m benchmarks.fast_paths [--passes 15] [--sizes 3k 36k] [--tools 1]

Rollouts of an `Environment` with `SGLangModel` run against the scripted server of `provider_floor`, all in one process:
with all fast paths, without each of them (`STRANDS_ROLLOUT_PLAIN=name`), and without any, in a new order each pass. A
figure is the median over the passes of CPU milliseconds per turn, garbage collections included; what a fast path saves
is the median of `1 - with / without` within a pass.

The self-check of a template runs once per process. So `self_check_cache` is measured as CPU milliseconds of the check
and of reading its outcome. The last line of the output is one JSON object.
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
    turned_off = [path.value for path in FastPath if path is not FastPath.SELF_CHECK_CACHE]

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


def self_check_ms(tokenizer: Any) -> dict[str, float]:
    """CPU milliseconds of the self-check, and of reading its outcome."""
    from strands_sglang.fast_paths import VARIABLE, FastPath
    from strands_sglang.messages import format_tool_specs
    from strands_sglang.template import ChatTemplate, DeltaRenderer, cache

    taken = {}
    for name, off in (("kept", ""), ("reads", ""), ("checks", FastPath.SELF_CHECK_CACHE.value)):
        os.environ[VARIABLE] = off
        cache._known.clear()
        template = ChatTemplate(tokenizer.chat_template)
        started = time.process_time()
        DeltaRenderer(template, tools=format_tool_specs([TOOL]), stop_tokens=["<|im_end|>"]).report  # noqa: B018
        taken[name] = round(1000 * (time.process_time() - started), 1)
    return {"checks": taken["checks"], "reads": taken["reads"]}


def main() -> None:
    """Print the table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["3k", "36k"])
    parser.add_argument("--tools", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        save_tokenizer(Path(folder), None)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        server = Worker(sys.executable, "--serve", folder)
        assert server.process.stdout is not None
        url = f"http://127.0.0.1:{server.process.stdout.readline().strip()}"
        try:
            sizes = {size: measured(tokenizer, size, url, args) for size in args.sizes}
            check = self_check_ms(tokenizer)
        finally:
            server.close()
    for size, row in sizes.items():
        print(f"{size}: {row['ms']:.2f} ms of CPU a turn with all fast paths")
        for off, figures in row["without"].items():
            print(f"  without {off:>16}: {figures['ms']:>7.2f} ms; it saves {figures['saves']:>6.1%}")
    print(f"self-check: {check['checks']:.1f} ms, read from disk in {check['reads']:.1f} ms")
    settings = {"passes": args.passes, "tools": args.tools}
    print(json.dumps({"benchmark": "fast_paths", **settings, "sizes": sizes, "self_check_ms": check, **machine()}))


if __name__ == "__main__":
    main()
