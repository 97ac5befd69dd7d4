"""A user's evaluation: an evaluator of a benchmark of their own, its results and metrics."""

from __future__ import annotations

from collections.abc import Iterable

from strands_env.core import Action, Environment, TaskContext
from strands_env.eval import EvalSample, Evaluator, ScoreTable, read_results, summarize
from strands_env.testing import ScriptedModel


class Sums(Evaluator):
    benchmark_name = "sums"

    def load_dataset(self) -> Iterable[Action]:
        for number in range(3):
            context = TaskContext(id=f"sum-{number}", ground_truth=str(2 * number))
            yield Action(message=f"{number} + {number}", task_context=context)


def environment() -> Environment:
    return Environment(model_factory=lambda: ScriptedModel(lambda messages: "4"), reward_fn=lambda action, result: 1.0)


async def main() -> None:
    evaluator = Sums(environment, n_samples_per_prompt=4, output_path="runs/sums", keep_tokens=True)
    results = await evaluator.run()
    samples: list[EvalSample] = [sample for group in results.values() for sample in group]
    metrics = evaluator.compute_metrics(results)
    print(metrics["pass@1"], [sample.reward for sample in samples])
    for sample in read_results("runs/sums"):
        print(sample.prompt_id, sample.step_result.termination_reason.value)
    summary = summarize(ScoreTable.from_samples((sample.prompt_id, sample) for sample in samples))
    print(summary.mean_reward.value, summary.mean_reward.low)
