"""Many rollouts at once through a server that fails: is every trajectory what a fault-free run records?

    python -m benchmarks.chaos [--rollouts 1000] [--turns 10] [--seed 0] [--passes 2]     # a pass: a round with faults

A server process on loopback (`tests.servers.FaultyServer`) answers with a hash of the prompt: continued from
any point it samples the same, as greedy decoding does. Agents with a tool run against it, first without faults, then
in rounds with them: queue full (503), connection resets, half-written JSON, requests that hang, aborts with partial
output, and one restart of the server in mid-round that breaks all connections. Which request fails follows from the
seed, the prompt and the number of the attempt. Beside them, further agents are cancelled at random moments.

Prints a line a round, and the violations; the exit status is 1 if a trajectory differs, is lost or holds a request
twice, if a request id was used twice, if a connection, task or request was left over, or if memory grew from round to
round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import logging
import os
import random
import sys
import time
import zlib
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.shape import ROOT, LineProcess, arguments, print_figures

FAULTS = {"busy": 0.05, "reset": 0.02, "broken": 0.01, "hang": 0.01, "abort": 0.01}
"""Shares of requests that get a 503, whose connection is reset, that are answered with half of the JSON, that are never
answered, and that are aborted part of the way."""
CANCELLED = 0.02  # further rollouts, as a share
LATENCY, AWAY = 0.02, 0.5  # mean seconds of a good answer, and of a restart
GROWTH_MB = 16.0  # that may come from round to round


# ---- the server's process --------------------------------------------------------------------------------------------


async def serve(options: argparse.Namespace) -> None:
    """Serve until standard input ends; a line in is a command, a line out its result."""
    from tests.servers import FaultyServer, faults

    # A server that stops while it answers hundreds of requests is noisy; it is meant to.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL + 1)
    attempts: Counter[int] = Counter()
    injected: Counter[str] = Counter()
    restart_at: int | None = None
    made = {
        "busy": faults.busy(),
        "reset": faults.reset(),
        "broken": faults.half_written(),
        "hang": faults.hang(),
        "abort": faults.aborted_partway(),
    }
    chaos = False

    def draw(prompt: int) -> float:
        attempts[prompt] += 1
        return zlib.crc32(f"{options.seed}/{prompt}/{attempts[prompt]}".encode()) / 2**32

    def choose(call: Any) -> Any:
        nonlocal restart_at
        server.requests[-1].body = {}  # thousands of prompts would be kept otherwise
        ids = call.body["input_ids"]
        prompt = zlib.crc32(array("q", ids).tobytes())
        if restart_at is not None and len(server.requests) >= restart_at:
            restart_at = None
            restarts.append(asyncio.create_task(restart()))
        if chaos:
            value = draw(prompt)
            for name, share in FAULTS.items():
                value -= share
                if value < 0:
                    injected[name] += 1
                    return made[name]
        delay = LATENCY * (0.5 + prompt % 997 / 997)
        return faults.answer(replace(faults.hash_reply(ids), delay=delay))

    async def restart() -> None:
        injected["cut by restart"] += len(server.running)
        await server.stop()
        await asyncio.sleep(AWAY)
        await server.start()

    restarts: list[asyncio.Task[None]] = []
    server = FaultyServer(choose, max_model_len=1 << 20)
    await server.start()
    print(json.dumps(server.url), flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while command := (await lines.readline()).decode().strip():
        result: Any = None
        if command.startswith("round"):
            for kept in (server.requests, server.aborts, server.paths, attempts, injected, restarts):
                kept.clear()
            chaos = command != "round calm"
            restart_at = options.rollouts * options.turns // 2 if chaos else None
        else:
            await asyncio.gather(*restarts)
            result = {
                "rids": server.rids,
                "answered": [r.rid for r in server.requests if r.outcome != "disconnected" and r.status == 200],
                "injected": dict(injected),
                "restarts": len(restarts),
                "left": {"requests": len(server.running), "connections": server.open_connections},
            }
        print(json.dumps(result), flush=True)
    await server.stop()


# ---- the rollouts ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Round:
    """Results of a round of rollouts, and what it left behind."""

    name: str
    seconds: float = 0.0
    digests: list[bytes | None] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    stats: dict[str, Any] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    rss_mb: float = 0.0


class Rollouts:
    """Runs episodes of agents."""

    def __init__(self, options: argparse.Namespace) -> None:
        sys.path.insert(0, str(ROOT / "tests"))
        self.options = options
        self.choose = random.Random(options.seed)

    async def episode(self, client: Any, index: int, result: Round) -> None:
        from provider_support import make_agent
        from rollout_support import make_model

        model = make_model(client, sampling_params={"max_new_tokens": 200})
        agent = make_agent(model)
        try:
            await agent.invoke_async(f"Episode {index}: add.", limits={"turns": self.options.turns})
        except Exception as error:  # a lost rollout is what is counted here
            cause = getattr(error, "original_exception", error)
            result.failures[f"{type(cause).__name__}: {str(cause)[:60]}"] += 1
            return
        trajectories = model.trajectories
        if len(trajectories) != 1 or len(trajectories[0].turns) != self.options.turns:
            result.failures["wrong number of trajectories or turns"] += 1
            return
        (trajectory,) = trajectories
        result.request_ids.extend(trajectory.request_ids)
        result.tokens += sum(trajectory.loss_mask)
        record = [list(trajectory.token_ids), list(trajectory.loss_mask), list(trajectory.logprobs)]
        result.digests[index] = hashlib.sha256(json.dumps(record).encode()).digest()

    async def cancelled(self, client: Any, number: int) -> None:
        """An episode of its own prompt that is cancelled on its way; nothing of it may be left."""
        index = self.options.rollouts + number
        nobody = Round(name="cancelled", digests=[None] * (index + 1))
        episode = asyncio.create_task(self.episode(client, index, nobody))
        await asyncio.sleep(self.choose.uniform(0, 2 * LATENCY * self.options.turns))
        episode.cancel()
        await asyncio.gather(episode, return_exceptions=True)

    async def round(self, name: str, server: LineProcess) -> Round:
        from strands_sglang import SGLangClient

        options = self.options
        await server.ask("round calm" if name == "calm" else "round chaos")
        tasks, files = len(asyncio.all_tasks()), open_files()
        result = Round(name=name, digests=[None] * options.rollouts)
        client = SGLangClient(server.greeting, timeout=options.timeout, retry_delay=0.1, max_retry_delay=2.0)
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for index in range(options.rollouts):
                group.create_task(self.episode(client, index, result))
            if name != "calm":
                for number in range(round(CANCELLED * options.rollouts)):
                    group.create_task(self.cancelled(client, number))
        result.seconds = time.perf_counter() - started
        await client.close()
        del client
        gc.collect()
        deadline = time.monotonic() + 5  # a closed socket is noticed a little later
        while not result.stats or (any(result.left.values()) and time.monotonic() < deadline):
            await asyncio.sleep(0.05)
            result.stats = await server.ask("stats")
            own = {"tasks": len(asyncio.all_tasks()) - tasks, "files": open_files() - files}
            result.left = {**result.stats["left"], **own}
        result.rss_mb = rss_mb()
        return result


def open_files() -> int:
    """Open file descriptors of this process; 0 where the system does not say."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def rss_mb() -> float:
    """Resident memory of this process in MB."""
    import psutil

    return float(psutil.Process().memory_info().rss) / 1e6


# ---- the verdict -----------------------------------------------------------------------------------------------------


def violations(calm: Round, rounds: list[Round], options: argparse.Namespace) -> list[str]:
    """Violated expectations, one sentence each."""
    found = []
    for one in [calm, *rounds]:
        lost = one.digests.count(None)
        if lost:
            found.append(f"{one.name}: {lost} rollouts lost: {dict(one.failures.most_common(5))}")
        different = sum(a is not None and a != b for a, b in zip(one.digests, calm.digests, strict=True))
        if different:
            found.append(f"{one.name}: {different} trajectories differ from the fault-free run")
        twice = len(one.request_ids) - len(set(one.request_ids))
        if twice:
            found.append(f"{one.name}: {twice} requests recorded twice")
        unanswered = len(set(one.request_ids) - set(one.stats["answered"]))
        if unanswered:
            found.append(f"{one.name}: {unanswered} recorded requests that the server never answered")
        reused = len(one.stats["rids"]) - len(set(one.stats["rids"]))
        if reused:
            found.append(f"{one.name}: {reused} request ids sent twice")
        found += [f"{one.name}: {count} {name} left over" for name, count in one.left.items() if count]
    for one in rounds:
        if one.stats["restarts"] != 1:
            found.append(f"{one.name}: {one.stats['restarts']} restarts instead of 1")
        expected = options.rollouts * options.turns
        found += [
            f"{one.name}: no {name} was injected"
            for name, share in FAULTS.items()
            if share * expected > 10 and not one.stats["injected"].get(name)
        ]
    warm = rounds[len(rounds) // 3]  # in a long run everything has been warm once by then
    growth = rounds[-1].rss_mb - warm.rss_mb
    if growth > max(GROWTH_MB, 0.05 * warm.rss_mb):
        found.append(f"memory grew by {growth:.0f} MB from {warm.name} to {rounds[-1].name}")
    return found


def row(one: Round, calm: Round) -> dict[str, Any]:
    """The figures of a round."""
    return {
        "round": one.name,
        "rollouts": len(one.digests),
        "equal": sum(a == b for a, b in zip(one.digests, calm.digests, strict=True) if a),
        "requests": len(one.request_ids),
        "sent": len(one.stats["rids"]),
        "faults": one.stats["injected"],
        "tokens": one.tokens,
        "left": one.left,
        "rss_mb": round(one.rss_mb),
        "seconds": round(one.seconds, 1),
    }


async def run(options: argparse.Namespace, arguments: list[str]) -> int:
    server = await LineProcess.start(sys.executable, "-m", "benchmarks.chaos", *arguments, "--serve")
    try:
        rollouts = Rollouts(options)
        async with asyncio.timeout(options.limit):
            calm = await rollouts.round("calm", server)
            print_figures("chaos", **row(calm, calm))
            rounds: list[Round] = []
            while len(rounds) < options.passes:
                rounds.append(await rollouts.round(f"chaos {len(rounds) + 1}", server))
                print_figures("chaos", **row(rounds[-1], calm))
    finally:
        await server.stop()
    found = violations(calm, rounds, options)
    print_figures("chaos", rounds=len(rounds), violations=found)
    return 1 if found else 0


def main() -> int:
    parser = arguments(__doc__, passes=2)
    parser.add_argument("--rollouts", type=int, default=1000, help="episodes, all at once")
    parser.add_argument("--turns", type=int, default=10, help="turns of an episode")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds of an attempt of the client")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for everything")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rollouts, options.turns, options.timeout = 60, 4, 3.0
    if options.serve:
        asyncio.run(serve(options))
        return 0
    return asyncio.run(run(options, sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
