"""The options of an evaluation: one table for the command line, `Evaluator` and saved runs."""

from __future__ import annotations

import argparse
import asyncio
import pickle
from dataclasses import replace

import pytest

from strands_env.commands.arguments import add_eval
from strands_env.commands.recipe.evaluation import resolve
from strands_env.commands.recipe.factories import benchmark_of_data, make_model_factory
from strands_env.commands.recipe.task_files import DataBenchmark
from strands_env.core.backends import BACKENDS, ModelBackend
from strands_env.eval import EvalOptions, Evaluator, StoreCorruptError, read_scores, summarize
from strands_env.eval.options import OPTIONS, SAMPLING
from strands_env.eval.report import write_report
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import StorePaths
from strands_sglang.secret_names import lacks_secrets, without_secrets
from tests.unit.eval_support import FakeEnv, outcome, tasks
from tests.unit.strands_env.eval.test_eval_report import islands


def arguments(*given: str) -> dict:
    parser = argparse.ArgumentParser()
    add_eval(parser)
    return vars(parser.parse_args(given))


def test_every_argument_of_a_run_is_an_option_and_none_has_a_default_of_its_own():
    given = arguments()
    only_here = {"list", "from_run", "resume", "record", "quiet", "json", "verbose", "dry_run", "schema"}
    only_in_programs = {"keep_results", "max_same_failures", "fsync_interval", "sampling_seed"}
    assert given.keys() - only_here == (OPTIONS.keys() - only_in_programs) | SAMPLING.keys()
    assert all(given[name] is None for name in given.keys() - only_here)


def test_the_command_has_the_defaults_of_the_evaluator():
    options = resolve(arguments("a:b", "--env", "c:d") | {"benchmark": "data"})
    kept = {"keep_tokens": True, "keep_results": False}  # the command reads its results from the file
    own = {"benchmark": "data", "env": "c:d", "output_path": "runs/data", "sampling": {}}
    assert options == replace(EvalOptions(), **own, **kept, sampling_seed=options.sampling_seed)


def test_options_of_the_model_reach_the_factory_hooks_and_the_identity_of_a_run(monkeypatch):
    options = EvalOptions(backend="vllm", model_options={"injected_context": "keep"})
    monkeypatch.setitem(BACKENDS, "vllm", ModelBackend(name="vllm", make="builtins:dict"))
    assert make_model_factory(options)["injected_context"] == "keep"
    assert options.model()["injected_context"] == options.identity()["model"]["injected_context"] == "keep"


def test_what_is_recorded_comes_back_without_secrets():
    options = EvalOptions(
        benchmark="a:b", env_config={"api_key": "hunter2", "size": 3}, max_attempts=5, track=("wandb",), limit=2
    )
    assert "hunter2" not in repr(options.to_saved())
    back = EvalOptions.of_saved({**options.to_saved(), "an_option_of_later": 1})
    assert replace(back, env_config=options.env_config) == options
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_run_that_left_out_groups_says_that_its_metrics_are_others(caplog):
    for policy, warnings in (("keep", 0), ("drop", 1)):
        caplog.clear()
        EvalOptions.of_saved({"group_policy": policy})
        assert len(caplog.records) == warnings


def test_saved_options_that_no_run_has_are_named_and_a_users_own_facts_are_not_taken_for_them(tmp_path):
    with pytest.raises(StoreCorruptError, match="n_samples_per_prompt"):
        _ = SavedRun(paths=StorePaths.of("run"), document={"about": {"options": {"n_samples_per_prompt": "2"}}}).options
    about = {"options": {"n_samples_per_prompt": "4"}}
    asyncio.run(Evaluator(lambda: FakeEnv(lambda _: outcome()), output_path=tmp_path, about=about).run(tasks(1)))
    assert SavedRun.of(tmp_path).options.n_samples_per_prompt == 1


@pytest.mark.parametrize(
    ("kind", "given", "known"), [(Evaluator, "backend", "reward_threshold"), (DataBenchmark, "track", "columns")]
)
def test_an_option_that_is_not_the_evaluators_is_refused(kind, given, known):
    with pytest.raises(TypeError, match=rf"{kind.__name__}\(\) got an unexpected keyword argument '{given}'.*{known}"):
        kind(FakeEnv, **{given: None})


async def test_the_threshold_of_a_run_is_that_of_every_reader(tmp_path):
    evaluator = Evaluator(lambda: FakeEnv(lambda _: outcome(0.5)), output_path=tmp_path, reward_threshold=0.5)
    await evaluator.run(tasks(2))
    assert evaluator.compute_metrics()["pass@1"] == 1.0
    assert summarize(read_scores(tmp_path)).pass_at[1].value == 1.0
    overview = islands(write_report(tmp_path, tmp_path / "r.html").path)["overview"]
    assert overview["summary"]["pass_at"]["1"]["value"] == 1.0
    assert SavedRun.of(tmp_path).options == replace(evaluator.options, output_path=str(tmp_path))


def test_a_folder_of_sound_tasks_is_read_as_container_tasks(tmp_path):
    assert benchmark_of_data(str(tmp_path)) == "data"
    (tmp_path / "tasks.txt").write_text("")
    assert benchmark_of_data(str(tmp_path)) == "harbor"


SECRETS = {
    **dict.fromkeys(("passphrase", "cookie", "jwt", "bearer", "auth", "basic_auth", "pat", "githubToken"), "hunter2"),
    **{"connection_string": "AccountKey=hunter2;", "headers": {"X-Auth": "hunter2"}, "cookies": [["sid", "hunter2"]]},
    "dsn": "postgres://u:hunter2@h/x",
    "url": "https://h/x?api_key=hunter2&page=1",
    "links": ["https://h/x?page=1&token=hunter2", "https://h/x?sig=hunter2#top", "https://hunter2@h/x"],
    "env": ["FOO_KEY=hunter2", "PASSPHRASE=correct hunter2", "HOME=/root"],
    "variables": [{"name": "API_KEY", "value": "hunter2"}, {"Key": "X-Auth-Token", "Value": "hunter2"}],
    "lines": [
        "X-Api-Key: hunter2",
        "authorization:Basic hunter2=",
        "Cookie: a=hunter2; b=2",
        "-HX-Auth-Token: hunter2",
    ],
    "pairs": [["Authorization", "Basic hunter2"], ["Accept", "*/*"], ["password", "hunter2"]],
    "pair": ("X-Api-Key", "hunter2"),
    "text": "url: https://h/x\nopenai_api_key: hunter2\nTry {'X-Api-Key': 'hunter2'}, \"password\": \"hunter2\".",
    "word": "Token: hunter2",
    "command": ["serve", "--api-key", "hunter2", "--token=hunter2"],
    "line": "curl -H 'Authorization: Bearer hunter2' && serve --password hunter2 --port 80",
}
HARMLESS = {
    **{
        "max_tokens": 5,
        "eos_token": "</s>",
        "author": "me",
        "sort_key": "id",
        "pass_at": 3,
        "auth": True,
        "cookies": [],
    },
    "columns": [["access_token", "refresh_token"], ["question", "answer"]],
    "names": ["password", "username"],
    "prose": "Password: must have 8 characters.\nToken: one word. Sort-key: none; 12:30",
    "prompt": "Say x=1, key = 2; mail me@example.org or read https://h/x?page=1@2. Basic arithmetic.",
}


@pytest.mark.parametrize("name", [*SECRETS, *HARMLESS])
async def test_a_secret_of_env_config_is_written_to_no_file_of_a_run(tmp_path, name):
    config = {name: (SECRETS | HARMLESS)[name]}
    is_secret = "hunter2" in repr(config)
    saved = EvalOptions(benchmark="a:b", env_config=config).to_saved()["env_config"]
    assert without_secrets(saved) == saved and lacks_secrets(saved) is is_secret and not lacks_secrets(config)
    assert (saved == config) is not is_secret
    options = {"output_path": tmp_path, "config": {"environment": config}, "about": {"options": {"env_config": config}}}
    await Evaluator(FakeEnv, **options).run(tasks(1))
    write_report(tmp_path, tmp_path / "report.html")
    assert not [path.name for path in tmp_path.iterdir() if b"hunter2" in path.read_bytes()]
