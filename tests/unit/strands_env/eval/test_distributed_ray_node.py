"""A node of a Ray cluster is lost midway."""

from __future__ import annotations

import asyncio

import pytest

from strands_env.eval import Evaluator, RetryPolicy
from strands_env.eval.executors import RayExecutor
from tests.unit.eval_support import tasks
from tests.unit.strands_env.eval.test_distributed_processes import HERE, PATHS, needs_ray


@pytest.fixture
def cluster():
    """Three simulated nodes; actors run on the last two."""
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    made.nodes = [made.add_node(num_cpus=1, resources={"rollouts": 4}, **small) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False, **PATHS)
    yield made
    ray.shutdown()
    made.shutdown()


@needs_ray
@pytest.mark.slow
async def test_a_lost_node_costs_no_rollout(cluster):
    options = {"resources": {"rollouts": 1}, "scheduling_strategy": "SPREAD"}
    async with RayExecutor(f"{HERE}:plain", {"delay": 5.0}, n_workers=2, actor_options=options) as executor:
        evaluator = Evaluator(executor=executor, max_concurrency=8, retry=RetryPolicy(max_attempts=1), output_path=None)
        run = asyncio.create_task(evaluator.run(tasks(8)))
        workers = executor.workers
        while not all(worker.link and worker.link.running for worker in workers):
            await asyncio.sleep(0.1)
        await asyncio.to_thread(cluster.remove_node, cluster.nodes[0], allow_graceful=False)
        results = await run
        assert executor._made > len(workers)  # some ran again alone
    assert [samples[0].reward for samples in results.values()] == [1.0] * 8
