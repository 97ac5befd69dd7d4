"""Which prompts count under a group policy, wherever one asks."""

from __future__ import annotations

import asyncio
import json

import pytest

from strands_env.commands.cli import main
from strands_env.eval import Evaluator, RetryPolicy, ScoreTable, StoreCorruptError, summarize
from strands_env.eval.run.groups import Grouping, GroupPolicy, read_scores
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from strands_env.report import write_report
from tests.unit.eval_support import FakeEnv, outcome, sample, tasks
from tests.unit.test_eval_report import islands

WHOLE = [sample(1.0, 0, prompt="whole"), sample(1.0, 1, prompt="whole")]
LOST = [sample(0.0, 0, prompt="lost"), sample(None, 1, prompt="lost", aborted=True)]
MISSING = [sample(0.0, 0, prompt="missing")]
DROP = Grouping(policy=GroupPolicy.DROP, n_samples=2)


def table_of(*samples):
    return ScoreTable.from_samples((sample.prompt_id, sample) for sample in samples)


def save(folder, policy: str, *samples):
    paths = StorePaths.of(folder)
    RunConfig(paths.run, {}, {"n_samples_per_prompt": 2, "group_policy": policy}).check(has_results=False)
    log = ResultLog(paths, fsync_interval=None)
    log.append(list(samples))
    log.close()
    return str(folder)


def test_prompts_with_lost_or_missing_samples_have_no_part():
    table = DROP.apply(table_of(*WHOLE, *LOST, *MISSING))
    summary = summarize(table)
    assert table.left_out == {"lost", "missing"}
    assert (summary.mean_reward.value, summary.mean_reward.prompts, summary.scored, summary.left_out) == (1.0, 1, 2, 2)
    assert (summary.samples, summary.aborted, summary.totals["output_tokens"]) == (5, 1, 25)


def test_an_unscored_sample_that_was_not_lost_leaves_nothing_out():
    table = DROP.apply(table_of(sample(1.0, 0), sample(None, 1)))
    assert table.left_out == frozenset()


def test_keep_takes_what_was_scored():
    assert summarize(Grouping(n_samples=2).apply(table_of(*WHOLE, *LOST, *MISSING))).mean_reward.prompts == 3


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
    assert main(["view", run]) == 0
    out = capsys.readouterr().out
    assert f"reward      {mean:.3f}" in out
    assert ("2 prompts with lost or missing samples" in out) == (policy != "keep")


def test_a_run_without_a_policy_is_read_with_keep(tmp_path):
    paths = StorePaths.of(tmp_path)
    log = ResultLog(paths, fsync_interval=None)
    log.append(LOST)
    log.close()
    assert read_scores(tmp_path).left_out == frozenset()


@pytest.mark.parametrize("about", [{"group_policy": "sometimes"}, {"n_samples_per_prompt": "2"}, {"group_policy": []}])
def test_a_policy_that_is_none_is_refused(about):
    with pytest.raises(StoreCorruptError, match="group_policy"):
        Grouping.of({"about": about})


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
        )

    asyncio.run(evaluator(1).run(tasks(2)))
    asyncio.run(evaluator(2).run(tasks(1)))  # p1 keeps its one sample
    metrics = evaluator(2).compute_metrics(evaluator(2).load_results())
    assert (metrics["mean_reward"], metrics["prompts"], metrics["left_out"]) == (0.0, 1, 1)
    assert list(seen[-1]) == ["p0"]
    assert summarize(read_scores(tmp_path)).mean_reward.value == 0.0


def test_a_prompt_that_never_began_is_not_given_to_metrics():
    assert Grouping(policy=GroupPolicy.STOP, n_samples=1).counting({"p": [], "q": [sample(1.0)]}).keys() == {"q"}


async def test_what_a_user_saves_beside_a_run_cannot_make_it_unreadable(tmp_path):
    about = {"group_policy": None, "n_samples_per_prompt": "4", "note": "mine"}
    await Evaluator(FakeEnv, output_path=tmp_path, about=about).run(tasks(1))
    assert read_scores(tmp_path).prompt_ids == ["p0"]
