"""What 10,000 and 100,000 concurrent rollouts need: a seeded simulation, fed with the costs of one process.

    python -m benchmarks.cluster_simulation [--costs benchmarks/results/many_rollouts.json] [--rollouts 10000 100000]
        [--turns 8] [--tokens 16000] [--tool-s 2] [--servers N] [--no-affinity] ...

CPU and memory of rollouts and the size of a process are measured by `many_rollouts`. What belongs to a cluster is
assumed, and each assumption is an option: what servers prefill and decode, how many requests they take at once, how
much they cache, what a router costs, how long tools take, how often weights change. Worker processes are event loops:
a pass does a step of all turns that are ready, and costs something whatever is ready; their garbage collector stops
them now and then for as long as it takes to walk the rollouts that are alive. Routers serve one request after the
other. Servers have slots, one prefill at a time, and a prefix cache that drops what was used least recently, and
everything when weights change.

For each number of rollouts it looks for the fewest worker processes whose added latency stays below `--added-s` in 99 %
of turns, then says what that takes, and what saturates first. Before that it predicts what `many_rollouts` measured
with its larger crowds, from the costs of the small ones, and prints where the two differ by more than 20 %; then the
exit status is 1. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from strands_env.core.garbage import YOUNG_COLLECTIONS, YOUNG_OBJECTS

RESULTS = Path(__file__).resolve().parent / "results" / "many_rollouts.json"
TOLERANCE = 0.2
OBJECTS_BETWEEN_COLLECTIONS = YOUNG_OBJECTS * YOUNG_COLLECTIONS
PASSES = (0.8, 0.15, 0.05)
"""Shares of the work of half a turn that passes of the event loop do. (There are six; one does nearly everything.)"""
BYTES_PER_TOKEN = 6.0
"""An id of a large vocabulary and its comma in the JSON of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What one process costs; turns and memory linear in the length of a rollout.

    Attributes:
        turn_s: CPU seconds of a turn in a process that is always busy, and what each token of the whole rollout adds.
        pass_s: CPU seconds of a pass of the event loop, whatever is ready: where few rollouts share a pass a turn costs
            more, and other code ran meanwhile.
        rollout_bytes: Memory of a rollout, and what each of its tokens adds.
        process_bytes: Memory of a process without rollouts.
        objects: Objects of a live rollout that the garbage collector walks, and what each of its turns adds.
        objects_made: Objects by which a turn brings the next late collection nearer.
        walk_s: CPU seconds to walk an object.
        tail: By how much the added latency that 99 % of the turns of the small crowd stayed below exceeds the simulated
            one: what comes in lumps, such as young collections and the machine's other processes, is not simulated.
    """

    turn_s: tuple[float, float]
    pass_s: float = 0.0
    rollout_bytes: tuple[float, float]
    process_bytes: float
    objects: tuple[float, float] = (0.0, 0.0)
    objects_made: float = 0.0
    walk_s: float = 0.0
    tail: float = 1.0

    @classmethod
    def measured(cls, figures: dict[str, Any]) -> Costs:
        """The costs of the small crowds of `many_rollouts`."""
        quick, paced, twice = figures["at_once"][0], figures["paced"][0], figures["twice"]
        quick_long, paced_long = figures["longer"]
        alive = figures["alive"]
        # From two crowds: the first rollouts of a process also fill what was left free by imports.
        empty_mb, mb_per_rollout = line(paced, twice, "peak_mb", "rollouts")
        mb_per_token = line(paced, paced_long, "peak_mb", "tokens")[1] / paced["rollouts"]
        turn_s, token_s = line(quick, quick_long, "cpu_ms_per_turn", "tokens")
        costs = cls(
            turn_s=(1e-3 * turn_s, 1e-3 * token_s),
            rollout_bytes=(1e6 * (mb_per_rollout - mb_per_token * paced["tokens"]), 1e6 * mb_per_token),
            process_bytes=1e6 * empty_mb,
            objects=(alive["objects_of_a_rollout"], alive["objects_of_its_turn"]),
            objects_made=paced["collections"]["objects_per_turn"],
            walk_s=1e-6 * alive["walk_us_per_object"],
        )
        costs = replace(costs, pass_s=fitted_pass_s(paced, costs))
        return replace(costs, tail=1e-3 * paced["added_ms"]["p99"] / simulated(paced, costs).added_s(0.99))

    def of_turn(self, tokens: int) -> float:
        """CPU seconds of a turn of rollouts with so many tokens, in a busy process."""
        return self.turn_s[0] + self.turn_s[1] * tokens

    def memory(self, processes: int, rollouts: int, tokens: int) -> float:
        """Bytes of so many processes with so many rollouts among them."""
        return processes * self.process_bytes + rollouts * (self.rollout_bytes[0] + self.rollout_bytes[1] * tokens)


def line(small: dict[str, Any], large: dict[str, Any], name: str, by: str) -> tuple[float, float]:
    """A figure of two crowds as a constant, and what each token of a rollout or each rollout adds."""
    slope = max(0.0, (large[name] - small[name]) / (large[by] - small[by]))
    return small[name] - slope * small[by], slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster and its load.

    Attributes:
        rollouts: Rollouts that run at once.
        turns: Turns of each.
        tokens: Tokens of each at its end.
        sampled: Tokens sampled in a turn.
        tool_s: Mean seconds of a tool call.
        processes: Worker processes.
        routers: Router processes; 0 for none.
        router_s: CPU seconds of a router for a request.
        servers: Servers.
        slots: Requests a server runs at once.
        prefill_tokens_s: Tokens a server prefills a second.
        decode_s: Seconds between two sampled tokens of a request.
        cache_tokens: Tokens in the prefix cache of a server.
        affinity: Turns of a rollout go to the same server.
        update_every_s: Seconds between two weight updates.
        update_s: Seconds a server stands still for one.
        stagger_s: Seconds over which the rollouts start.
        jitter: Tools and decoding take 1 - jitter to 1 + jitter times their mean.
    """

    rollouts: int
    turns: int = 8
    tokens: int = 16_000
    sampled: int = 200
    tool_s: float = 2.0
    processes: int = 1
    routers: int = 1
    router_s: float = 0.0005
    servers: int = 1
    slots: int = 256
    prefill_tokens_s: float = 20_000.0
    decode_s: float = 0.02
    cache_tokens: int = 1_000_000
    affinity: bool = True
    update_every_s: float = math.inf
    update_s: float = 10.0
    stagger_s: float = 0.0
    jitter: float = 0.5


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What happened.

    Attributes:
        seconds: From the first start to the last end.
        turns: Turns taken.
        added: Seconds that workers and routers added to each turn, sorted.
        busy: Share of the time that each resource worked.
        connections: Most requests in flight at once, and most of one process.
        cached: Share of the prompt tokens that servers had in their cache.
        prompt_tokens: Tokens of all prompts.
    """

    seconds: float
    turns: int
    added: list[float]
    busy: dict[str, float]
    connections: tuple[int, int]
    cached: float
    prompt_tokens: int

    @property
    def turns_per_s(self) -> float:
        """Turns of the whole cluster a second."""
        return self.turns / self.seconds

    def added_s(self, share: float) -> float:
        """The latency that a share of the turns stays below."""
        return self.added[min(len(self.added) - 1, int(share * len(self.added)))]


class Queue:
    """Serves one after the other in the order of arrival."""

    def __init__(self) -> None:
        self._free = self.busy = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """When a request that arrives now is done."""
        self._free = max(now, self._free) + seconds
        self.busy += seconds
        return self._free


@dataclass(slots=True)
class Work:
    """Half of a turn, which a worker process does in `PASSES`: preparing a request, or what follows its answer."""

    rollout: int
    turn: int
    is_answer: bool
    since: float
    late: float
    passes: int = 0


class Process:
    """A worker process: an event loop, which does a step of all that is ready in each pass, and a garbage collector."""

    def __init__(self, cluster: Cluster, costs: Costs) -> None:
        self.busy = 0.0
        self.is_running = False
        self._cluster, self._costs = cluster, costs
        self._half = costs.of_turn(cluster.tokens) / 2
        self._ready: list[Work] = []
        self._made = self._alive = 0.0

    def add(self, work: Work) -> None:
        """Let the next pass begin with it."""
        self._ready.append(work)

    def run_pass(self, now: float) -> tuple[float, list[tuple[float, Work]]]:
        """When a pass that begins now ends, and what is done by then, with its time."""
        ready, self._ready, began = self._ready, [], now
        self.is_running = bool(ready)
        if not ready:
            return now, []
        done: list[tuple[float, Work]] = []
        now += self._costs.pass_s
        for work in ready:
            now += self._half * PASSES[work.passes]
            work.passes += 1
            if work.passes < len(PASSES):
                self._ready.append(work)
                continue
            done.append((now, work))
            if work.is_answer:
                now += self._collection_s(work.turn)
        self.busy += now - began
        return now, done

    def _collection_s(self, turn: int) -> float:
        """Seconds of the late collection that the end of a turn starts."""
        (of_rollout, of_turn), turns = self._costs.objects, self._cluster.turns
        self._alive += of_turn + (of_rollout if turn == 0 else 0.0)
        self._made += self._costs.objects_made
        seconds = 0.0
        if self._made >= OBJECTS_BETWEEN_COLLECTIONS:
            self._made, seconds = 0.0, self._alive * self._costs.walk_s
        if turn + 1 == turns:
            self._alive -= of_rollout + of_turn * turns
        return seconds


@dataclass(slots=True)
class Server:
    """An inference server: slots, one prefill at a time, a prefix cache."""

    cluster: Cluster
    prefill: Queue = field(default_factory=Queue)
    busy: float = 0.0
    hits: int = 0
    _ends: list[float] = field(default_factory=list)
    _cache: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)
    _held: int = 0

    def serve(self, now: float, rollout: int, prompt: int, decode_s: float) -> float:
        """When the answer to a prompt of so many tokens leaves the server."""
        ends, cluster = self._ends, self.cluster
        start = now if len(ends) < cluster.slots else max(now, heapq.heappop(ends))
        epoch = int(start / cluster.update_every_s)
        cached, of_epoch = self._cache.pop(rollout, (0, epoch))
        self._held -= cached
        hit = min(cached, prompt) if of_epoch == epoch else 0
        self.hits += hit
        end = self.prefill.serve(start, (prompt - hit) / cluster.prefill_tokens_s) + decode_s
        end += cluster.update_s * (int(end / cluster.update_every_s) - epoch)
        heapq.heappush(ends, end)
        self.busy += end - start
        self._cache[rollout] = prompt + cluster.sampled, epoch
        self._held += prompt + cluster.sampled
        while self._held > cluster.cache_tokens and len(self._cache) > 1:
            self._held -= self._cache.popitem(last=False)[1][0]
        return end


class Stage(IntEnum):
    """What happens next."""

    BEGUN = 0
    """A turn begins: its worker process prepares the request."""
    SENT = 1
    """The request is sent."""
    ROUTED = 2
    """It reaches its server."""
    ANSWERED = 3
    """The answer reaches the worker process, which then calls the tool."""
    PASS = 4
    """The event loop of a worker process goes round."""


def simulate(cluster: Cluster, costs: Costs, seed: int = 7) -> Outcome:
    """Run every rollout of the cluster to its end."""
    choose = random.Random(seed)
    step = cluster.tokens // cluster.turns
    workers = [Process(cluster, costs) for _ in range(cluster.processes)]
    routers = [Queue() for _ in range(cluster.routers)]
    servers = [Server(cluster) for _ in range(cluster.servers)]
    in_flight, most = [0] * cluster.processes, [0] * cluster.processes
    flying = most_flying = turns = prompts = 0
    added: list[float] = []
    seconds = 0.0

    def around(mean: float) -> float:
        return mean * choose.uniform(1 - cluster.jitter, 1 + cluster.jitter)

    # (time, number, stage, rollout or process, turn, added so far); the number keeps equal times in order.
    events: list[tuple[float, int, Stage, int, int, float]] = [
        (cluster.stagger_s * rollout / cluster.rollouts, rollout, Stage.BEGUN, rollout, 0, 0.0)
        for rollout in range(cluster.rollouts)
    ]
    number = cluster.rollouts

    def later(time: float, stage: Stage, who: int, turn: int = 0, late: float = 0.0) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (time, number, stage, who, turn, late))

    while events:
        now, _, stage, who, turn, late = heapq.heappop(events)
        if stage is Stage.PASS:
            end, done = workers[who].run_pass(now)
            if workers[who].is_running:
                later(end, Stage.PASS, who)
            for at, work in done:
                if not work.is_answer:
                    later(at, Stage.SENT, work.rollout, work.turn, at - work.since)
                    continue
                added.append(work.late + at - work.since)
                turns += 1
                seconds = max(seconds, at)
                if work.turn + 1 < cluster.turns:
                    later(at + around(cluster.tool_s), Stage.BEGUN, work.rollout, work.turn + 1)
        elif stage is Stage.SENT:
            flying += 1
            in_flight[who % cluster.processes] += 1
            most_flying = max(flying, most_flying)
            most[who % cluster.processes] = max(in_flight[who % cluster.processes], most[who % cluster.processes])
            end = routers[who % cluster.routers].serve(now, cluster.router_s) if routers else now
            later(end, Stage.ROUTED, who, turn, late + end - now)
        elif stage is Stage.ROUTED:
            server = servers[(who if cluster.affinity else choose.randrange(cluster.servers)) % cluster.servers]
            prompt = step * (turn + 1) - cluster.sampled
            prompts += prompt
            end = server.serve(now, who, prompt, around(cluster.sampled * cluster.decode_s))
            later(end, Stage.ANSWERED, who, turn, late)
        else:
            worker = workers[who % cluster.processes]
            is_answer = stage is Stage.ANSWERED
            if is_answer:
                flying -= 1
                in_flight[who % cluster.processes] -= 1
            worker.add(Work(who, turn, is_answer, now, late))
            if not worker.is_running:
                worker.is_running = True
                later(now, Stage.PASS, who % cluster.processes)
    busy = {
        "worker processes": sum(each.busy for each in workers) / (seconds * len(workers)),
        "routers": sum(each.busy for each in routers) / (seconds * len(routers)) if routers else 0.0,
        "prefill": sum(each.prefill.busy for each in servers) / (seconds * len(servers)),
        "slots": sum(each.busy for each in servers) / (seconds * len(servers) * cluster.slots),
    }
    return Outcome(
        seconds=seconds,
        turns=turns,
        added=sorted(added),
        busy=busy,
        connections=(most_flying, max(most)),
        cached=sum(each.hits for each in servers) / prompts,
        prompt_tokens=prompts,
    )


# ---- what is needed --------------------------------------------------------------------------------------------------


def sized(cluster: Cluster, costs: Costs, added_s: float) -> tuple[Cluster, Outcome]:
    """The fewest worker processes, in steps of an eighth, that add less than `added_s` to 99 % of turns."""
    cycle = cluster.tool_s + cluster.sampled * cluster.decode_s
    offered = cluster.rollouts / cycle  # turns a second if nothing waited
    tenth = replace(cluster, rollouts=cluster.rollouts // 10, servers=math.ceil(cluster.servers / 10))
    if tenth.rollouts >= 5_000:  # look for the answer where looking is cheap
        processes = 10 * sized(tenth, costs, added_s)[0].processes
    else:
        processes = max(1, math.ceil(0.5 * offered * costs.of_turn(cluster.tokens)))
    routers = max(1, math.ceil(offered * cluster.router_s / 0.7))
    while True:
        tried = replace(cluster, processes=processes, routers=routers, stagger_s=cycle)
        outcome = simulate(tried, costs)
        if costs.tail * outcome.added_s(0.99) <= added_s:
            return tried, outcome
        processes = max(processes + 1, math.ceil(1.125 * processes))


def needs(cluster: Cluster, costs: Costs, added_s: float) -> dict[str, Any]:
    """What a number of rollouts needs."""
    found, outcome = sized(cluster, costs, added_s)
    first = max(outcome.busy, key=lambda name: outcome.busy[name])
    return {
        "rollouts": found.rollouts,
        "tokens": found.tokens,
        "processes": found.processes,
        "routers": found.routers,
        "servers": found.servers,
        "turns_per_s": round(outcome.turns_per_s, 1),
        "memory_gb": round(costs.memory(found.processes, found.rollouts, found.tokens) / 1e9, 1),
        "connections": outcome.connections[0],
        "connections_of_a_process": outcome.connections[1],
        "prompt_mb_s": round(BYTES_PER_TOKEN * outcome.prompt_tokens / outcome.seconds / 1e6, 1),
        "prompt_tokens_cached": round(outcome.cached, 3),
        "added_ms": {
            "p50": round(1000 * outcome.added_s(0.5), 1),
            "p99": round(1000 * costs.tail * outcome.added_s(0.99), 1),
        },
        "busy": {name: round(share, 3) for name, share in outcome.busy.items()},
        "saturates_first": first,
    }


# ---- beside what was measured ----------------------------------------------------------------------------------------


def simulated(crowd: dict[str, Any], costs: Costs) -> Outcome:
    """A crowd of `many_rollouts`, whose server holds requests and does nothing else."""
    delay_s = crowd["delay_ms"] / 1000
    cluster = Cluster(
        rollouts=crowd["rollouts"],
        turns=crowd["turns"],
        tokens=crowd["tokens"],
        sampled=1,
        tool_s=0.0,
        routers=0,
        slots=crowd["rollouts"],
        prefill_tokens_s=math.inf,
        decode_s=delay_s,
        stagger_s=delay_s,
    )
    return simulate(cluster, costs)


def fitted_pass_s(crowd: dict[str, Any], costs: Costs) -> float:
    """The cost of a pass with which a paced crowd takes the CPU that was measured."""
    measured_s = 1e-3 * crowd["cpu_ms_per_turn"]
    low, high = 0.0, measured_s
    for _ in range(12):
        middle = (low + high) / 2
        outcome = simulated(crowd, replace(costs, pass_s=middle))
        if outcome.busy["worker processes"] * outcome.seconds / outcome.turns < measured_s:
            low = middle
        else:
            high = middle
    return low


def predicted(crowd: dict[str, Any], costs: Costs) -> dict[str, float]:
    """What the simulation says of a crowd."""
    outcome = simulated(crowd, costs)
    figures = {"turns_per_s": outcome.turns_per_s}
    if crowd["delay_ms"]:
        figures["connections"] = float(outcome.connections[0])
        figures["peak_mb"] = costs.memory(1, crowd["rollouts"], crowd["tokens"]) / 1e6
        figures["added_ms.p50"] = 1000 * outcome.added_s(0.5)
        figures["added_ms.p99"] = 1000 * costs.tail * outcome.added_s(0.99)
    return figures


def compare(figures: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """Predictions beside the measurements of all crowds but the small one."""
    rows = []
    for crowd in (*figures["at_once"][1:], *figures["paced"][1:]):
        case = f"{crowd['rollouts']}, {'paced' if crowd['delay_ms'] else 'at once'}"
        for name, value in predicted(crowd, costs).items():
            key, _, part = name.partition(".")
            seen = crowd[key][part] if part else crowd[key]
            agrees = abs(value - seen) <= TOLERANCE * seen
            rows.append(
                {"case": case, "figure": name, "predicted": round(value, 1), "measured": seen, "agrees": agrees}
            )
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Rows as text, one column a key."""
    names = list(rows[0])
    print("  ".join(f"{name:>14}" for name in names))
    for row in rows:
        print("  ".join(f"{row[name]!s:>14}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--costs", type=Path, default=RESULTS, help="what many_rollouts measured")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--added-s", type=float, default=0.25, help="latency that 99 %% of turns stay below")
    default = Cluster(rollouts=0)
    for name, kind in (("turns", int), ("tokens", int), ("sampled", int), ("tool_s", float), ("router_s", float)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(default, name))
    for name, kind in (("slots", int), ("prefill_tokens_s", float), ("decode_s", float), ("cache_tokens", int)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(default, name))
    parser.add_argument("--servers", type=int, help="by default as many as hold all rollouts in their slots and caches")
    parser.add_argument("--update-every-s", type=float, default=300.0)
    parser.add_argument("--update-s", type=float, default=default.update_s)
    parser.add_argument("--no-affinity", action="store_true", help="any server may get any turn")
    args = parser.parse_args()
    if not args.costs.exists():
        raise SystemExit(f"{args.costs} does not exist: run benchmarks.many_rollouts through benchmarks.table first")
    figures = json.loads(args.costs.read_text(encoding="utf-8"))
    costs = Costs.measured(figures)
    comparison = compare(figures, costs)
    if comparison:
        print_table(comparison)
    apart = [row for row in comparison if not row["agrees"]]
    print(f"{len(comparison) - len(apart)} of {len(comparison)} predictions within {TOLERANCE:.0%}\n")
    options = {name: value for name, value in vars(args).items() if name in Cluster.__dataclass_fields__}
    found = []
    for rollouts in args.rollouts:
        servers = args.servers or math.ceil(rollouts * max(1 / args.slots, args.tokens / args.cache_tokens))
        asked = {**options, "rollouts": rollouts, "servers": servers, "affinity": not args.no_affinity}
        found.append(needs(Cluster(**asked), costs, args.added_s))
        print("\n".join(f"{name:>26}: {value}" for name, value in found[-1].items()), end="\n\n", flush=True)
    print(json.dumps({"benchmark": "cluster_simulation", "comparison": comparison, "needs": found}))
    sys.exit(1 if apart else 0)


if __name__ == "__main__":
    main()
