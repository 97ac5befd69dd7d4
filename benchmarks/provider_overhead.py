"""What the provider costs beside the SDK itself.

    python benchmarks/provider_overhead.py [--turns 1 20 100] [--repeats 5]

The same agent, tool and replies are run twice: on a bare model that hands the SDK ready-made events, and on
`SGLangModel` with a scripted client (no network, no sampling) whose own time is taken out. The difference is what exact
trajectories cost: following the history, rendering and encoding deltas, decoding and parsing replies, recording.
"encoding" is the part of it that the tokenizer takes for the new messages. CPU seconds of this process; medians of the
repeats; the ratio of the provider to the SDK alone is the figure to quote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from strands import Agent
from strands.models import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from provider_support import Replay, add, call, tokenizer

from strands_sglang import SGLangModel

RESULT_PADDING = 1000  # characters of each tool result beside the sum


class BareModel(Model):
    """Yields the events of one tool call, and does nothing else."""

    def __init__(self) -> None:
        self.calls = 0

    def update_config(self, **model_config: Any) -> None:
        """Nothing to configure."""

    def get_config(self) -> dict[str, Any]:
        """Nothing configured."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Not used."""
        raise NotImplementedError

    async def count_tokens(self, *args: Any, **kwargs: Any) -> int:
        """Free of charge."""
        return 0

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """One tool call."""
        self.calls += 1
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"call{self.calls:05d}", "name": "add"}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"a": 1, "b": 2})}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}
        yield {
            "metadata": {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}, "metrics": {"latencyMs": 0}}
        }


class TimedReplay(Replay):
    """A scripted client that knows what it costs itself."""

    def __init__(self) -> None:
        super().__init__([call(1, 2)], cycle=True)
        self.seconds = 0.0

    async def generate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The reply; never waits, so the time is its own."""
        started = time.process_time()
        try:
            return await super().generate(*args, **kwargs)
        finally:
            self.seconds += time.process_time() - started


class TimedTokenizer:
    """The tokenizer, timed where it encodes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Encode."""
        return self._timed(self._inner, *args, **kwargs)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Encode."""
        return self._timed(self._inner.encode, *args, **kwargs)

    def _timed(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += time.process_time() - started


def padded_add() -> Any:
    """The tool, with results of about a kilobyte."""
    from strands import tool

    @tool(name="add", description="Add two numbers.", inputSchema=add.tool_spec["inputSchema"])
    async def wide_add(a: int, b: int) -> str:
        return str(a + b) + " " + "lorem ipsum " * (RESULT_PADDING // 12)

    return wide_add


async def episode(model: Any, turns: int) -> float:
    """CPU seconds per turn of one episode."""
    agent = Agent(model=model, tools=[padded_add()], callback_handler=None, context_manager=False, retry_strategy=None)
    started = time.process_time()
    await agent.invoke_async("go", limits={"turns": 1})
    for _ in range(turns - 1):
        await agent.invoke_async(limits={"turns": 1})
    return (time.process_time() - started) / turns


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[5, 20, 100])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    asyncio.run(episode(SGLangModel(tokenizer=tokenizer(), client=TimedReplay()), 2))
    print(f"CPU ms per turn, medians of {args.repeats} interleaved repeats, 1 kB tool results")
    print(f"{'turns':>6} {'SDK alone':>10} {'provider':>9} {'of it encoding':>15} {'provider / SDK':>15}")
    for turns in args.turns:
        bare, provider, encoding = [], [], []
        for _ in range(args.repeats):
            bare.append(1000 * asyncio.run(episode(BareModel(), turns)))
            client, encoder = TimedReplay(), TimedTokenizer(tokenizer())
            both = asyncio.run(episode(SGLangModel(tokenizer=encoder, client=client), turns))
            provider.append(1000 * (both - client.seconds / turns) - bare[-1])
            encoding.append(1000 * encoder.seconds / turns)
        alone, cost, tokenizing = (statistics.median(values) for values in (bare, provider, encoding))
        print(f"{turns:>6} {alone:>10.2f} {cost:>9.2f} {tokenizing:>15.2f} {cost / alone:>15.2f}")


if __name__ == "__main__":
    main()
