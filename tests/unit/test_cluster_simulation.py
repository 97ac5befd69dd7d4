"""The simulation of a cluster, on made-up costs whose outcome can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.cluster_simulation import (
    OBJECTS_BETWEEN_COLLECTIONS,
    PASSES,
    Cluster,
    Costs,
    compare,
    needs,
    predicted,
    simulate,
    simulated,
)

COSTS = Costs(turn_s=(0.010, 0.0), rollout_bytes=(1e6, 100.0), process_bytes=2e8)
CLUSTER = Cluster(
    rollouts=1,
    turns=5,
    tokens=5_000,
    sampled=100,
    tool_s=2.0,
    router_s=0.001,
    prefill_tokens_s=10_000.0,
    decode_s=0.02,
    jitter=0.0,
)


def test_a_single_rollout_waits_for_nobody() -> None:
    outcome = simulate(CLUSTER, COSTS)
    # 4,900 prompt tokens in all are prefilled once: what was sampled is in the cache already.
    prefill = (4_900 - 4 * 100) / 10_000
    assert outcome.seconds == pytest.approx(5 * (0.010 + 0.001 + 100 * 0.02) + 4 * 2.0 + prefill)
    assert outcome.added_s(0.5) == pytest.approx(0.011)
    assert outcome.connections == (1, 1)


def test_a_saturated_process_takes_as_many_turns_as_its_cpu_allows() -> None:
    outcome = simulate(replace(CLUSTER, rollouts=2_000, slots=2_000, prefill_tokens_s=math.inf), COSTS)
    assert outcome.turns == 10_000
    assert outcome.turns_per_s == pytest.approx(100, rel=0.04)
    assert outcome.busy["worker processes"] == pytest.approx(1, abs=0.04)


def test_rollouts_wait_for_slots() -> None:
    cluster = replace(CLUSTER, rollouts=8, turns=1, slots=2, routers=0, prefill_tokens_s=math.inf, processes=8)
    outcome = simulate(cluster, COSTS)
    assert outcome.seconds == pytest.approx(0.010 + 4 * 2.0)
    assert outcome.connections == (8, 1)


@pytest.mark.parametrize(
    ("change", "cached"),
    [({}, 10_000 / 14_500), ({"cache_tokens": 10}, 0.0), ({"update_every_s": 0.5}, 0.0)],
    ids=["kept", "too small", "new weights at each turn"],
)
def test_prefixes_are_cached_while_there_is_room_and_weights_stay(change: dict[str, float], cached: float) -> None:
    outcome = simulate(replace(CLUSTER, rollouts=2, **change), COSTS)  # type: ignore[arg-type]
    assert outcome.cached == pytest.approx(cached)


def test_without_affinity_prefixes_are_elsewhere() -> None:
    kept = simulate(replace(CLUSTER, rollouts=50, servers=10), COSTS)
    lost = simulate(replace(CLUSTER, rollouts=50, servers=10, affinity=False), COSTS)
    assert lost.cached < 0.5 * kept.cached


def test_a_weight_update_stops_the_server() -> None:
    plain = simulate(CLUSTER, COSTS)
    updated = simulate(replace(CLUSTER, update_every_s=plain.seconds - 1.0, update_s=30.0), COSTS)
    assert updated.seconds >= plain.seconds + 29.9


def test_the_same_seed_gives_the_same_outcome() -> None:
    cluster = replace(CLUSTER, rollouts=20, jitter=0.5)
    assert simulate(cluster, COSTS) == simulate(cluster, COSTS)
    assert simulate(cluster, COSTS, seed=8) != simulate(cluster, COSTS)


def test_needs_follow_the_load() -> None:
    cluster = replace(CLUSTER, rollouts=400, servers=8, slots=400)
    few = needs(cluster, COSTS, 0.25)
    many = needs(replace(cluster, rollouts=1_600, servers=32), COSTS, 0.25)
    assert few["processes"] >= few["turns_per_s"] * 0.010
    assert 3 <= many["processes"] / few["processes"] <= 5
    assert few["memory_gb"] == pytest.approx((few["processes"] * 2e8 + 400 * 1.5e6) / 1e9, abs=0.06)


def test_dear_turns_saturate_the_workers_and_slow_prefill_the_servers() -> None:
    workers = simulate(replace(CLUSTER, rollouts=500, slots=500, prefill_tokens_s=math.inf), COSTS)
    servers = simulate(replace(CLUSTER, rollouts=500, slots=500, processes=50, prefill_tokens_s=1_000.0), COSTS)
    assert max(workers.busy, key=workers.busy.__getitem__) == "worker processes"
    assert max(servers.busy, key=servers.busy.__getitem__) == "prefill"


def test_rollouts_that_are_ready_together_share_a_pass_of_the_event_loop() -> None:
    costs = replace(COSTS, pass_s=0.001)
    alone = simulate(replace(CLUSTER, tool_s=0.0, decode_s=0.0), costs)
    assert alone.added_s(0.5) == pytest.approx(0.011 + 2 * len(PASSES) * 0.001)
    crowd = replace(CLUSTER, rollouts=1_000, slots=1_000, tool_s=0.0, decode_s=0.0, prefill_tokens_s=math.inf)
    assert simulate(crowd, costs).turns_per_s == pytest.approx(100, rel=0.03)


def test_a_late_collection_walks_the_rollouts_that_are_alive() -> None:
    cluster = replace(CLUSTER, rollouts=100, slots=100, turns=4, tool_s=0.0, routers=0, prefill_tokens_s=math.inf)
    made = OBJECTS_BETWEEN_COLLECTIONS / 250  # the collection comes with turn 250 of 400
    costs = replace(COSTS, objects=(300.0, 50.0), objects_made=made, walk_s=1e-6)
    assert simulate(cluster, costs).added[-1] < 2.1
    slow = simulate(cluster, replace(costs, walk_s=1e-3))
    alive = (slow.seconds - simulate(cluster, costs).seconds) / 1e-3
    assert alive == pytest.approx(100 * 300 + 250 * 50, rel=0.05)


def crowd(rollouts: int, tokens: int, cpu_ms: float, **more: object) -> dict[str, object]:
    """Figures as `many_rollouts` writes them."""
    return {
        "rollouts": rollouts,
        "turns": 8,
        "tokens": tokens,
        "delay_ms": 0,
        "cpu_ms_per_turn": cpu_ms,
        "peak_mb": 200.0 + rollouts * tokens / 10_000,
        "collections": {"objects_per_turn": 150.0},
        **more,
    }


def small_crowds(quick_ms: float, paced_ms: float) -> dict[str, Any]:
    return {
        "at_once": [crowd(100, 2_000, quick_ms)],
        "paced": [crowd(100, 2_000, paced_ms, delay_ms=1_000, added_ms={"p50": 5.0, "p99": 50.0})],
        "twice": crowd(200, 2_000, paced_ms, delay_ms=2_000),
        "longer": [crowd(100, 8_000, quick_ms + 3.0), crowd(100, 8_000, paced_ms + 3.0, delay_ms=1_000)],
        "alive": {"objects_of_a_rollout": 400.0, "objects_of_its_turn": 50.0, "walk_us_per_object": 0.75},
    }


def test_costs_are_lines_through_two_crowds_and_a_pass_of_the_event_loop() -> None:
    costs = Costs.measured(small_crowds(4.0, 5.0))
    assert costs.of_turn(2_000) == pytest.approx(0.004)
    assert costs.of_turn(14_000) == pytest.approx(0.010)
    assert costs.memory(2, 10, 4_000) == pytest.approx(4e8 + 10 * 4e5)
    small = crowd(100, 2_000, 5.0, delay_ms=1_000)
    outcome = simulated(small, costs)
    assert 1000 * outcome.busy["worker processes"] * outcome.seconds / outcome.turns == pytest.approx(5.0, rel=0.01)
    assert predicted(small, costs)["added_ms.p99"] == pytest.approx(50.0)


def test_predictions_are_compared_with_what_was_measured() -> None:
    figures = small_crowds(4.0, 5.0)
    costs = Costs.measured(figures)
    large = crowd(1_000, 2_000, 5.0, delay_ms=10_000)
    truth = predicted(large, costs)
    assert truth["connections"] == pytest.approx(1_000, abs=10)
    assert truth["peak_mb"] == pytest.approx(400.0)
    seen = {
        "turns_per_s": truth["turns_per_s"],
        "peak_mb": 1.3 * truth["peak_mb"],
        "connections": 1_000,
        "added_ms": {
            "p50": 1.1 * truth["added_ms.p50"],
            "p99": 2 * truth["added_ms.p99"],
        },
    }
    figures["at_once"].append(crowd(1_000, 2_000, 4.0, turns_per_s=200.0))
    figures["paced"].append({**large, **seen})
    assert {(row["case"], row["figure"]): row["agrees"] for row in compare(figures, costs)} == {
        ("1000, at once", "turns_per_s"): False,
        ("1000, paced", "turns_per_s"): True,
        ("1000, paced", "connections"): True,
        ("1000, paced", "peak_mb"): False,
        ("1000, paced", "added_ms.p50"): True,
        ("1000, paced", "added_ms.p99"): False,
    }
