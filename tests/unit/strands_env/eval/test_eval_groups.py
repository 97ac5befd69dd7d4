"""Which prompts count under a group policy, wherever one asks."""

from __future__ import annotations

import asyncio
import json

import pytest

from strands_env.commands.cli import main
from strands_env.eval import EvalOptions, Evaluator, RetryPolicy, ScoreTable, StoreCorruptError, read_scores, summarize
from strands_env.eval.report import write_report
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from tests.unit.eval_support import FakeEnv, outcome, sample, tasks
from tests.unit.strands_env.eval.test_eval_report import islands

WHOLE = [sample(1.0, 0, prompt="whole"), sample(1.0, 1, prompt="whole")]
LOST = [sample(0.0, 0, prompt="lost"), sample(None, 1, prompt="lost", aborted=True)]
MISSING = [sample(0.0, 0, prompt="missing")]
DROP = EvalOptions(group_policy="drop", n_samples_per_prompt=2)


def table_of(options, *samples):
    return ScoreTable.from_samples(((sample.prompt_id, sample) for sample in samples), options)


def save(folder, policy: str, *samples):
    paths = StorePaths.of(folder)
    RunConfig(paths.run, {}, {"options": {"n_samples_per_prompt": 2, "group_policy": policy}}).check(has_results=False)
    log = ResultLog(paths, fsync_interval=None)
    log.append(list(samples))
    log.close()
    return str(folder)


def test_prompts_with_lost_or_missing_samples_have_no_part():
    unscored = [sample(1.0, 0, prompt="unscored"), sample(None, 1, prompt="unscored")]  # not lost, so it counts
    table = table_of(DROP, *WHOLE, *LOST, *MISSING, *unscored)
    summary = summarize(table)
    assert table.left_out == {"lost", "missing"}
    assert (summary.mean_reward.value, summary.mean_reward.prompts, summary.scored, summary.left_out) == (1.0, 2, 3, 2)
    assert (summary.samples, summary.aborted, summary.totals["output_tokens"]) == (7, 1, 35)
    keep = EvalOptions(n_samples_per_prompt=2)
    assert summarize(table_of(keep, *WHOLE, *LOST, *MISSING)).mean_reward.prompts == 3


@pytest.mark.parametrize(("policy", "mean"), [("keep", 1 / 3), ("drop", 1.0), ("stop", 1.0)])
def test_the_saved_policy_is_the_one_of_every_reader(policy, mean, tmp_path, capsys):
    run = save(tmp_path / "run", policy, *WHOLE, *LOST, *MISSING)
    assert summarize(read_scores(run)).mean_reward.value == pytest.approx(mean)
    overview = islands(write_report(run, tmp_path / "r.html").path)["overview"]
    assert overview["summary"]["mean_reward"]["value"] == pytest.approx(mean)
    assert overview["running"][-1][1] == pytest.approx(mean, abs=1e-5)
    other = save(tmp_path / "other", "keep", *WHOLE, *LOST, *MISSING)
    assert main(["compare", run, other, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"]["prompts"] == (3 if policy == "keep" else 1)
    assert main(["report", run, "--text"]) == 0
    out = capsys.readouterr().out
    assert f"reward      {mean:.3f}" in out
    assert ("2 prompts with lost or missing samples" in out) == (policy != "keep")


def test_a_policy_that_is_none_is_refused_and_none_at_all_is_keep():
    def saved(about) -> SavedRun:
        return SavedRun(paths=StorePaths.of("run"), document={"about": about})

    for options in ({"group_policy": "sometimes"}, {"n_samples_per_prompt": "2"}, {"group_policy": []}):
        with pytest.raises(StoreCorruptError, match=next(iter(options))):
            _ = saved({"options": options}).options
    assert saved({}).options == saved(None).options == EvalOptions()


def test_the_evaluator_saves_its_policy_and_leaves_interrupted_prompts_out(tmp_path):
    seen: list[dict] = []

    def evaluator(n: int) -> Evaluator:
        return Evaluator(
            lambda: FakeEnv(lambda action: outcome(float(action.task_context.id.startswith("p1")))),
            n_samples_per_prompt=n,
            output_path=tmp_path,
            group_policy="drop",
            retry=RetryPolicy(max_attempts=1),
            metrics_fns=[lambda results: seen.append(results) or {}],
            about={"options": {"n_samples_per_prompt": "4"}},  # a user's own cannot make it unreadable
        )

    asyncio.run(evaluator(1).run(tasks(2)))
    asyncio.run(evaluator(2).run(tasks(1)))  # p1 keeps its one sample
    metrics = evaluator(2).compute_metrics(evaluator(2).load_results())
    assert (metrics["mean_reward"], metrics["prompts"], metrics["left_out"]) == (0.0, 1, 1)
    assert list(seen[-1]) == ["p0"]
    assert summarize(read_scores(tmp_path)).mean_reward.value == 0.0
