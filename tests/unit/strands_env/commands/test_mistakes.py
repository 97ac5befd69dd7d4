"""Mistakes people make: each is one sentence with the next step, an exit status that tells what, and no traceback."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from provider_support import Replay, tokenizer
from strands import tool

pytest.importorskip("torch", reason="needs the extra `local`")

from strands_env.commands.cli import main as strands_env
from strands_env.commands.recipe import evaluation
from strands_env.core import (
    Action,
    Environment,
    ErrorRecord,
    Phase,
    RewardFunction,
    RewardResult,
    StepResult,
    TaskContext,
)
from strands_env.core.backends import model_factory_from_args
from strands_env.environments.chat import ModelUser
from strands_env.eval import Evaluator, RetryPolicy, compare, read_results, summarize
from strands_env.rewards import CorrectnessJudgeReward
from strands_env.testing import ScriptedModel, call
from strands_env.training import samples_from_step
from strands_sglang import SGLangClient, SGLangModel, ToolLimiter, get_tokenizer
from strands_sglang.__main__ import main as strands_sglang
from strands_sglang.backends.engine import EmbeddedEngine
from strands_sglang.backends.engine.own_models import why_no_answer
from strands_sglang.backends.vllm import VLLMClient
from strands_sglang.conversation import Conversation
from strands_sglang.gateway import Gateway
from tests.servers import FaultyServer
from tests.unit.strands_env.commands.test_eval_cli import FAST, HOOKS, evaluate, run_mine

HERE = __name__


def run(command: Callable[[list[str]], int], arguments: list[str]) -> int:
    """The exit status, also of what the parser of arguments refuses."""
    try:
        return command(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


# ---- strands-sglang --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("strands-sglang gateway", "--base-url URL --tokenizer PATH"),
        ("strands-sglang gateway --base-url http://x", "--base-url needs --tokenizer"),
        ("strands-sglang gateway --model tiny --tokenizer x", "--tokenizer would have no effect"),
        ("strands-sglang gateway --model tiny --port 99999", "expected a port from 0 to 65535, got '99999'"),
        ("strands-sglang gateway --model tiny --host 0.0.0.0", "--admin-key KEY"),
        ("strands-sglang gateway --model tiny --chat-template /no/file", "no such file: '/no/file'"),
        ("strands-sglang gateway --context-length 0", "at least 1, got '0'"),
        ("strands-sglang doctor tinyy", "did you mean 'tiny'"),
        ("strands-env evl arithmetic", "unknown 'evl' (did you mean 'eval'?); choose one of eval, train, compare"),
        (
            "strands-env eval arithmetic --record run.rec",
            "--record is gone: give the model a strands_sglang.backends.Rec",
        ),
        ("strands-env replay run.rec", "strands-env replay is now: strands_sglang.backends.ReplayBackend"),
        ("strands-env eval arithmetic -n 0", "whole number of at least 1, got '0'"),
        ("strands-env eval arithmetic -c many", "got 'many'"),
        ("strands-env eval arithmetic --sampling [1]", "a file with one"),
        ("strands-env eval arithmetic --env-config {no", "not JSON"),
        (
            "strands-env eval arithmetic --backend loca",
            "unknown 'loca' (did you mean 'local'?); choose one of local,",
        ),
        ("strands-env eval arithmetic --limt 3", "(did you mean '--limit'?)"),
        ("strands-env eval arithmetic --track wandbb", "did you mean 'wandb'?"),
        ("strands-env eval arithmetic --seed 99999999999999999999", "below 2^63, got '99999999999999999999'"),
        ("strands-env eval arithmetic --temperature nan", "expected a number, got 'nan'"),
        ("strands-env report . --limit -1", "at least 0, got '-1'"),
        ("strands-env check", "nothing to check"),
    ],
)
def test_wrong_usage(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = line.split()
    assert run(strands_env if program == "strands-env" else strands_sglang, arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


# ---- strands-env -----------------------------------------------------------------------------------------------------


@tool
def add(a: int) -> int:
    """Add."""
    return a


@tool(name="add")
def add_again(a: int) -> int:
    """Add once more."""
    return a


class Twins(Environment):
    def get_tools(self) -> list[Any]:
        return [add, add_again]


class WithoutSuper(Environment):
    def __init__(self, model_factory: Any) -> None:
        self.box = model_factory


class NoResult(Environment):
    async def step(self, action: Action) -> Any:  # type: ignore[override]
        return None


async def asynchronous(model_factory: Any) -> Any:
    return lambda: Environment(model_factory=model_factory)


def environment_itself(model_factory: Any) -> Any:
    return Environment(model_factory=model_factory)


def models(model_factory: Any) -> Any:
    return lambda: model_factory()


def one_argument(action: Any) -> float:
    return 1.0


def one(action: Any, result: Any) -> float:
    return 1.0


def not_a_number(action: Any, result: Any) -> float:
    return float("nan")


def abstaining(action: Any, result: Any) -> None:
    return None


def stopping(action: Any, result: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def raising(action: Any, result: Any) -> float:
    raise ValueError("boom")


TASKS = f"{HOOKS}:three_tasks"
SFT = ["export", "{run}", "-o", "{new}.jsonl", "--format", "sft"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TASKS, "--env", f"{HERE}:WithoutSuper"], "super().__init__(model_factory=model_factory"),
        ([TASKS, "--env", f"{HERE}:environment_itself"], "write 'return lambda: Environment(...)'"),
        ([TASKS, "--env", f"{HERE}:models"], "the factory must make an Environment, got ScriptedModel"),
        ([TASKS, "--env", "envs/mine.py"], "'envs.mine:create_env_factory'"),
        ([TASKS], "--env"),
        ([TASKS, "--env", HOOKS, "--reward", f"{HERE}:one_argument"], "takes (action, step_result), got one_argument("),
        (["--data", "noanswer.jsonl"], "no column for the answer"),
        (["--data", "empty.jsonl"], "'empty.jsonl' has no tasks"),
        (["--data", "."], "'.' is a folder: give a file"),
        (["good.jsonl"], "'good.jsonl' is a file of data: give it as --data good.jsonl"),
        (["--data", "good.jsonl", "-o", "good.jsonl"], "'good.jsonl' is not empty"),
        (["--resume", "-o", "nowhere"], "there is no run at 'nowhere' to resume"),
        (["arithmatic"], "unknown benchmark 'arithmatic' (did you mean 'arithmetic'?)"),
        (["aime"], "aime-2024 or aime-2025 or aime-2026"),
        ([], "name a benchmark"),
        ([f"{HOOKS}:tree_tasks", "--env", HOOKS], "(did you mean 'three_tasks'?)"),
        (["no.such.module:x", "--env", HOOKS], "no module 'no.such.module'"),
        ([f"{HOOKS}:NOT_A_FUNCTION", "--env", HOOKS], "an Evaluator class or a function"),
        (["../tasks"], "data goes to --data"),
        ([":x"], "':x' is not of the form module:attribute"),
        ([f"{HOOKS}:raising_tasks", "--env", HOOKS], "cannot be made: RuntimeError: boom"),
        ([f"{HOOKS}:raising_stream", "--env", HOOKS], "cannot be made: RuntimeError: boom"),
        ([f"{HOOKS}:texts", "--env", HOOKS], "item 0 of 'tests.unit.eval_hooks:texts' must be an Action"),
        ([f"{HOOKS}:number", "--env", HOOKS], "must return an iterable of Actions, got 3"),
        ([f"{HOOKS}:no_tasks", "--env", HOOKS], "has no tasks: nothing was run"),
        (["arithmetic", "--env", f"{HOOKS}:NOT_A_FUNCTION"], "must be a function or an Environment class"),
        (["arithmetic", "--env", "tests.unit"], "has no 'create_env_factory'"),
        ([TASKS, "--env", f"{HOOKS}:raising_hook"], "cannot be made: KeyError: 'x'"),
        ([TASKS, "--env", f"{HOOKS}:hook_of_nothing"], "must return a function that makes"),
        ([TASKS, "--env", HOOKS, "--env-config", '{"colour": 1}'], "unexpected keyword argument"),
        ([TASKS, "--env", HOOKS, "--data", "nosuch.jsonl"], "--data would have no effect"),
        ([HOOKS, "--env", HOOKS, "--limit", "2"], "is not a Benchmark"),
        (["arithmetic", "--columns", "question=x"], "--columns would have no effect"),
        (["--data", "good.jsonl", "--columns", "question"], "as in question=prompt, got 'question'"),
        (["arithmetic", "--data", "good.jsonl"], "reads no file, for it is generated from its seed"),
        (["arithmetic", "--env", f"{HOOKS}:PlainEnv", "--env-config", '{"colour": 1}'], "keyword argument 'colour'"),
        (["arithmetic", "--executor", "processes", "--env", "no.such:hook"], "there is no module 'no.such'"),
        (["arithmetic", "--workers", "2"], "--workers is for"),
        (["arithmetic", "--from-run", "missing.json"], "no saved run at 'missing.json'"),
        (["arithmetic", "--sample-timeout", "-1"], "sample_timeout"),
        (["math-500", "--data", "missing.jsonl"], "no data file at 'missing.jsonl'"),
        (["harbor", "--env", HOOKS], "harbor needs the folder"),
    ],
)
def test_a_run_that_cannot_go_well_does_not_begin(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"good": '{"question": "q", "answer": 1}', "noanswer": '{"question": "q"}', "empty": ""}.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    pytest.importorskip("math_verify") if "math-500" in arguments else None
    given = [*arguments, *FAST] if "-o" in arguments else [*arguments, *FAST, "-o", "out"]
    assert run(strands_env, ["eval", *given]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists() or "nothing was run" in message


class Misspelled(Environment):
    def __init__(self, **options: Any) -> None:
        super().__init__(max_tool_itres=3, **options)


def factory_that_raises(model_factory: Any) -> Any:
    return lambda: Environment(model_factory=model_factory, system_prompt={}["prompt"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arithmetic", "--model", "tinyy"], "did you mean 'tiny'"),
        (["arithmetic", "--model", "tiny", "--tool-parser", "hermess"], "(did you mean 'hermes'?)"),
        (["arithmetic", "--model", "tiny", "--sampling", '{"top_q": 1}'], "did you mean 'top_p'?"),
        (["arithmetic", "-q", "--backend", "vllm", "--base-url", "localhost:30000"], "base_url must be an address"),
        (["arithmetic", "--backend", "sglang"], "needs a server: give --base-url"),
        (["arithmetic", "--backend", "openai"], "needs a model: give --model-id"),
        (["arithmetic", "--base-url", "http://x"], "--base-url would have no effect: the backend 'local'"),
        (["arithmetic", "--script", "x"], "--script would have no effect"),
        (["arithmetic", "--model-options", '{"injected_contex": "keep"}'], "did you mean 'injected_context'?"),
        (
            ["arithmetic", "--backend", "openai", "--model", "m", "--base-url", "http://x", "--tool-parser", "x"],
            "--tool-parser would have no effect",
        ),
        ([TASKS, "--env", f"{HERE}:Twins"], "2 tools are named 'add'"),
        ([TASKS, "--env", f"{HERE}:asynchronous"], "must not be async: write 'def', and await in reset()"),
        ([TASKS, "--env", f"{HERE}:Misspelled"], "did you mean 'max_tool_iters'"),
        ([TASKS, "--env", f"{HERE}:factory_that_raises"], "making an environment raised KeyError: 'prompt'"),
        (["harbor"], "tasks in Harbor's format need the package harbor"),
        (["math-500"], "data sets of the hub need the package 'datasets'"),
    ],
)
def test_what_a_run_lacks_is_told_before_a_model_is_loaded(arguments, message, tmp_path, capsys, monkeypatch):
    for package in ("harbor", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    assert evaluate(*arguments, "-o", str(tmp_path / "out")) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


def test_all_that_is_wrong_with_the_options_is_told_at_once(tmp_path, capsys):
    wrong = ["--script", "x", "--workers", "3", "--model", "tinyy", "--sampling", '{"top_q": 1}']
    assert evaluate("arithmetic", *wrong, "-o", str(tmp_path / "out")) == 2
    lines = capsys.readouterr().err.splitlines()
    told = (
        "--script would have no effect",
        "--workers is for --executor",
        "did you mean 'top_p'?",
        "did you mean 'tiny'",
    )
    assert len(lines) == len(told) and all(part in line for part, line in zip(told, lines, strict=True)), lines


class Asking(Environment):
    """Looks at the model it is given, as hooks do that configure themselves by it."""

    def __init__(self, model_factory: Any) -> None:
        super().__init__(model_factory=model_factory, system_prompt=str(sorted(model_factory.config)))


def test_a_hook_may_look_at_the_model(tmp_path: Any, monkeypatch: Any) -> None:
    def models() -> ScriptedModel:
        return ScriptedModel(["4"])

    models.config = {"model_id": "m"}  # type: ignore[attr-defined]
    monkeypatch.setattr(evaluation, "make_model_factory", lambda *options: models)
    assert evaluate("arithmetic", "--env", f"{HERE}:Asking", *FAST, "--limit", "1", "-o", str(tmp_path)) == 0
    document = json.loads((tmp_path / "results.run.json").read_text())
    assert document["environment"]["system_prompt"] == "['model_id']"


@pytest.fixture
def no_hub(monkeypatch: Any) -> str:
    """The hub is at an address where nobody listens, as a machine without network sees it."""
    from huggingface_hub import constants

    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return "cannot be reached at http://127.0.0.1:9"


@pytest.mark.parametrize(
    "line",
    [
        "eval math-500 --backend scripted -o {out}",
        "eval arithmetic --model no/such-model -q -o {out}",
        "check arithmetic --tokenizer no/such-model --json",
    ],
)
def test_without_a_network_the_hub_is_not_waited_for(line, no_hub, tmp_path, capsys, caplog):
    pytest.importorskip("datasets")
    assert strands_env(line.format(out=tmp_path / "out").split()) == 2
    err = capsys.readouterr().err
    assert no_hub in err and "HF_ENDPOINT" in err and len(err.splitlines()) == 1
    assert "Retrying" not in caplog.text


async def test_an_image_processor_is_not_waited_for_without_a_network(
    no_hub: str, caplog: Any, monkeypatch: Any
) -> None:
    tiny = get_tokenizer("tiny")
    monkeypatch.setattr("strands_sglang.backends.clients.get_tokenizer", lambda path: tiny)
    async with FaultyServer() as server:
        options = {"sglang_base_url": server.url, "tokenizer": "no/such-model"}
        await asyncio.to_thread(model_factory_from_args, "sglang", **options)
    assert "Retrying" not in caplog.text


def test_another_configuration_is_refused_before_a_model_is_loaded(tmp_path, capsys):
    assert evaluate("arithmetic", *FAST, "--limit", "1", "-o", str(tmp_path)) == 0
    capsys.readouterr()
    changed = ["--backend", "local", "--model", "tiny", "--temperature", "0.5"]
    assert evaluate("arithmetic", *changed, "--resume", "-o", str(tmp_path)) == 3
    err = capsys.readouterr().err
    assert "model.backend: 'scripted' in the file, now 'local'" in err and "loading" not in err


def test_every_row_of_a_local_file_is_tried_before_a_run_and_logged_once(tmp_path, capsys, caplog):
    data = tmp_path / "tasks.jsonl"
    data.write_text('{"question": "q", "answer": 1}\n\n{"question": 5, "answer": 1}\n')
    assert evaluate("--data", str(data), *FAST, "-o", str(tmp_path / "out")) == 2
    assert f"line 3 of {str(data)!r} cannot be made a task" in capsys.readouterr().err
    data.write_text('{"question": "q", "answer": 1}\n\n5\n')
    assert evaluate("--data", str(data), *FAST, "-o", str(tmp_path / "out")) == 2
    assert f"line 3 of {str(data)!r} must be a JSON object" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    data.write_text('{"question": "", "answer": 1}\n{"question": "q", "answer": 1}\n')
    assert evaluate("--data", str(data), *FAST, "-v", "-o", str(tmp_path / "out")) == 0
    assert caplog.text.count("row without a task left out") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--backend sglang --base-url http://127.0.0.1:9", "no SGLang server answers at 'http://127.0.0.1:9'"),
        ("--backend sglang --base-url http://127.0.0.1:9 --tokenizer tiny", "no SGLang server answers at"),
        (
            "--backend openai --model-id m --base-url http://127.0.0.1:9/v1",
            "at 'http://127.0.0.1:9/v1' (Connection ref",
        ),
    ],
)
def test_a_server_that_is_down_is_a_failure_and_not_wrong_usage(line, message, tmp_path, capsys):
    pytest.importorskip("openai")
    assert evaluate("arithmetic", *line.split(), "-q", "-o", str(tmp_path / "out")) == 1
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_proxy_is_taken_to_reach_an_address(monkeypatch: Any) -> None:
    assert why_no_answer("http://127.0.0.1:9", 1.0) == "Connection refused"
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"all": "http://proxy:3128"})
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda host: False)
    assert why_no_answer("http://127.0.0.1:9", 1.0) is None


def test_a_connection_that_breaks_later_is_told_with_its_server() -> None:
    httpx = pytest.importorskip("httpx")
    openai = pytest.importorskip("openai")
    request = httpx.Request("POST", "http://user:secret@10.0.0.1:8000/v1/chat/completions?key=secret")
    record = ErrorRecord.from_exception(openai.APIConnectionError(request=request), Phase.MODEL)
    assert record.message == "Connection error. (http://10.0.0.1:8000)"
    assert ErrorRecord.from_exception(httpx.ConnectError("refused"), Phase.MODEL).message == "refused"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "arithmetic", "--model", "/no/such"], "neither a folder nor a hub id: give smollm2, tiny"),
        (["check", "--env", f"{HERE}:factory_that_raises"], "the environment cannot be made: KeyError: 'prompt'"),
        (["report", "{run}", "--server", "x"], "base_url must be an address"),
        (["report", "{run}", "--max-kl", "0.1"], "is for scoring again: give --base-url or --model"),
        (["rescore", "{run}", "--reward", "exakt"], "unknown reward 'exakt' (did you mean 'exact'?)"),
        (["rescore", "{run}", "--reward", "exact", "--env", HOOKS], "not both"),
        (["rescore", "{run}", "--reward", f"{HOOKS}:NOT_A_FUNCTION"], "is a plain function, got 3"),
        (["rescore", "{run}", "-o", "{run}"], "holds results already"),
        (["export", "{run}", "-o", "x.jsonl"], "format 'samples' is written to a file that ends in .parquet"),
        ([*SFT, "--min-reward", "9"], "every rollout was left out"),
        ([*SFT, "--between", "0", "1"], "--between and --draw go with --format prompts"),
        (["export", "{run}", "-o", "{new}.parquet", "--min-reward", "9"], "every rollout was left out"),
        (["watch", "{new}"], "no results"),
        (["report", "{run}", "--tokenizer", "./nowhere"], "'./nowhere' is neither a folder"),
        (["report", "{run}", "-o", "{run}/results.jsonl"], "a page is written to a file that ends in .html"),
        (["report", "{run}", "-o", "{run}"], "a page is written to a file that ends in .html"),
        (["export", "{run}", "--format", "sft", "-o", "{run}/results.jsonl", "--overwrite"], "belongs to the run"),
        (["report", f"{__file__}", "--text"], "is not a run: give its folder, or its file that ends in .jsonl"),
    ],
)
def test_wrong_usage_of_a_run(arguments, message, tmp_path, capsys):
    assert run_mine(tmp_path / "run") == 0
    capsys.readouterr()
    places = {"{run}": str(tmp_path / "run"), "{new}": str(tmp_path / "new")}
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    assert run(strands_env, arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not list(tmp_path.glob("new*"))
    assert len(list(read_results(tmp_path / "run"))) == 3


def test_a_rescore_that_scores_nothing_says_why_and_is_not_in_the_way_of_the_next(tmp_path, capsys):
    assert run_mine(tmp_path / "run") == 0
    rescore = ["rescore", str(tmp_path / "run"), "-q", "-o", str(tmp_path / "new"), "--reward"]
    line = raising.__code__.co_firstlineno + 1
    for more, messages in (
        (["raising"], [f"the reward raised ValueError at {__file__}:{line}, in raising", "failed for every sample"]),
        (["raising", "-v"], ["Traceback (most recent call last):"]),
        (["abstaining"], ["3 of 3 were left unscored by their reward function", "nothing was written"]),
        (["abstaining", "--json"], ["3 of 3 were left unscored by their reward function"]),
        (["not_a_number"], ["got nan"]),
        (["stopping"], ["interrupted: nothing was written"]),
    ):
        status = 130 if more == ["stopping"] else 2
        assert strands_env([*rescore, f"{HERE}:{more[0]}", *more[1:]]) == status
        shown = "".join(capsys.readouterr())
        assert all(message in shown for message in messages), shown
        assert not (tmp_path / "new").exists()
    assert strands_env([*rescore, "exact"]) == 0
    assert len(list(read_results(tmp_path / "new"))) == 3


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Acts as a full disk: no file grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before, keeps = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), sys.dont_write_bytecode
    # Python would cut off the compiled file of a module that is imported now, and fail at its next import.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
        sys.dont_write_bytecode = keeps


def test_a_full_disk_keeps_what_was_written(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with files_of_at_most(4000):
        assert run_mine(tmp_path / "out", "-n", "4") == 3
    assert "--resume" in capsys.readouterr().err
    assert run_mine(tmp_path / "out", "-n", "4", "--resume") == 0
    assert len(list(read_results(tmp_path / "out"))) == 12
    pytest.importorskip("pyarrow")
    with files_of_at_most(100):
        assert strands_env(["export", str(tmp_path / "out"), "-o", str(tmp_path / "x.parquet")]) == 3
    assert "no file was left behind" in capsys.readouterr().err
    assert not (tmp_path / "x.parquet").exists()


# ---- from Python -----------------------------------------------------------------------------------------------------


def gateway(**options: Any) -> Gateway:
    return Gateway(client=Replay([]), tokenizer=tokenizer(), **options)


def model(**options: Any) -> SGLangModel:
    return SGLangModel(client=Replay([]), tokenizer=tokenizer(), **options)


def environment(**options: Any) -> Environment:
    return Environment(model_factory=lambda: ScriptedModel(["x"]), **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: environment(max_tool_itres=7), TypeError, r"'max_tool_itres' \(did you mean 'max_tool_iters'\?\)"),
        (lambda: environment(system_prompt=Path("x.md")), TypeError, r"expected text; Path\(...\).read_text\(\)"),
        (lambda: environment(step_timeout=True), ValueError, "a positive number of seconds or None"),
        (
            lambda: Evaluator(Environment),
            TypeError,
            r"takes \(model_factory\): write 'lambda: Environment\(...\)'",
        ),
        (lambda: get_tokenizer(None), TypeError, "got None, expected the path or hub id of a model"),
        (lambda: Evaluator(environment, n_samples_per_promt=2), TypeError, "did you mean 'n_samples_per_prompt'"),
        (lambda: Evaluator(environment, save_interval=10), TypeError, "each sample is saved when it ends"),
        (lambda: Evaluator(environment()), TypeError, "env_factory must be a function that makes an environment"),
        (lambda: Evaluator(environment, metrics_fns=[1]), TypeError, "metrics_fns must be functions"),
        (
            lambda: compare("a", Path("b")),
            TypeError,
            r"takes a ScoreTable, got 'a': strands_env.eval.read_scores",
        ),
        (lambda: summarize(Path("b")), TypeError, r"strands_env.eval.read_scores\('b'\) makes one"),
        (
            lambda: Action(message="q", ground_truth=3),
            TypeError,
            r"goes into task_context=TaskContext\(ground_truth=\.\.\.\)",
        ),
        (lambda: Action(prompt="q"), TypeError, r"'prompt' \(did you mean 'message'\?\)$"),
        (lambda: Action("q"), TypeError, r"^Action\('q'\): name the field, as in Action\(message=\.\.\.\)$"),
        (lambda: RewardResult(score=1.0), TypeError, r"^RewardResult\(\) got .*'score' \(did you mean 'reward'\?\)$"),
        (lambda: RewardResult(reward=1.0, acc=1), TypeError, r"'acc'; further facts go into info=\{'acc': \.\.\.\}$"),
        (lambda: StepResult(rewrd=None), TypeError, r"did you mean 'reward'"),
        *(
            (lambda w=w: RewardResult(**w), TypeError, r"^a reward is a finite number, or None .*, got ('1\.0'|True)$")
            for w in ({"reward": "1.0"}, {"reward": True}, {"turn_rewards": {0: True}})
        ),
        (lambda: Environment(tools=[]), TypeError, r"'tools': return them from get_tools\(\)$"),
        (
            lambda: WithoutSuper(None).agent_name,
            AttributeError,
            r"^WithoutSuper has no 'agent_name' yet: its __init__ must first call super\(\)",
        ),
        (lambda: ToolLimiter(max_tool_cals=3), TypeError, r"ToolLimiter\(\) .*did you mean 'max_tool_calls'"),
        (lambda: SGLangClient(url="a"), TypeError, r"^SGLangClient\(\) got .*'url' \(did you mean 'base_url'\?\)"),
        (lambda: VLLMClient(baseurl="http://a"), TypeError, r"^VLLMClient\(\) got .*\(did you mean 'base_url'\?\)"),
        (lambda: SGLangClient(), TypeError, r"^SGLangClient\(\): missing a required argument: 'base_url'"),
        (lambda: SGLangClient("http://a", 3), TypeError, r"^SGLangClient\(\): too many positional arguments"),
        (lambda: SGLangModel(tokeniser=1), TypeError, r"^TokenModel\(\) got .*\(did you mean 'tokenizer'\?\)"),
        (lambda: Conversation(tokeniser=1), TypeError, r"^Conversation\(\) got .*\(did you mean 'tokenizer'\?\)"),
        (lambda: SGLangModel(stop_words=1), TypeError, r"^TokenModel\(\): missing a required argument: 'tokenizer'"),
        (lambda: EmbeddedEngine("tiny", sead=2), TypeError, r"EmbeddedEngine\(\) got .*\(did you mean 'seed'\?\)"),
        (lambda: EmbeddedEngine("tiny", dtype="float33"), ValueError, "dtype='float33': expected float32, bfloat16"),
        (lambda: SGLangModel(tokenizer=None, client=Replay([])), TypeError, "tokenizer=None, expected a tokenizer"),
        (lambda: Action(message=None), ValueError, "expected text, a list of content blocks or a message"),
        (lambda: gateway(admin_keyy=1), TypeError, r"Gateway\(\) got an unexpected .*did you mean 'admin_key'"),
        (lambda: gateway().open(labels="x"), TypeError, "labels must be a mapping, such as a dict, got 'x'"),
        (lambda: gateway().open(limits={"max_request": 1}), ValueError, "did you mean 'max_requests'"),
        (lambda: model(temperature=1.0), TypeError, r"write sampling_params=\{'temperature': 1.0\}"),
        (lambda: samples_from_step(Action(message="q")), TypeError, r"the StepResult of Environment.* got Action"),
    ],
)
def test_wrong_options_in_python(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


async def test_one_action_is_not_several() -> None:
    with pytest.raises(TypeError, match=r"write run\(\[action\]\)"):
        await Evaluator(environment, output_path=None).run(Action(message="q"))  # type: ignore[arg-type]


class Untidy(Environment):
    async def cleanup(self) -> None:
        raise RuntimeError("the box would not close")


def test_a_failed_cleanup_is_in_the_summary_and_takes_nothing_away(tmp_path, capsys):
    assert evaluate(TASKS, "--env", f"{HERE}:Untidy", "--reward", f"{HERE}:one", *FAST, "-o", str(tmp_path)) == 0
    assert "errors      cleanup: RuntimeError 3: the box would not close" in (said := capsys.readouterr().out)
    assert "3 scored" in said
    assert strands_env(["report", str(tmp_path), "--text"]) == 0
    assert "cleanup: RuntimeError 3" in capsys.readouterr().out


class PlacedError(Exception):
    """A user's error with an attribute that ours have, too."""

    where = "somewhere"


async def test_an_error_outside_of_a_step_is_named_with_its_place() -> None:
    def factory() -> Any:
        raise PlacedError("x")

    class Raising(Environment):
        async def rollout(self, action: Action, **options: Any) -> StepResult:
            raise PlacedError("x")

    for make in (factory, lambda: Raising(model_factory=lambda: ScriptedModel(["x"]))):
        results = await Evaluator(make, output_path=None).run([Action(message="q", task_context=TaskContext(id="a"))])
        error = results["a"][0].step_result.error
        assert error.type.endswith("PlacedError")
        assert make is not factory or error.where == "setup"


def override(name: str, method: Any) -> Environment:
    kind = type("Mine", (Environment,), {name: method})
    return kind(model_factory=lambda: ScriptedModel(["x"]))  # type: ignore[no-any-return]


async def a_model() -> ScriptedModel:
    return ScriptedModel(["x"])


class PlainReward(RewardFunction):
    def compute(self, action: Action, step_result: StepResult) -> Any:  # type: ignore[override]
        return 1.0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: override("get_tools", lambda self: add), r"get_tools() must return a list, got <"),
        (lambda: override("get_tools", asynchronous), "write 'def get_tools(self): return [...]'"),
        (lambda: override("get_hooks", lambda self: None), "get_hooks() must return a list, got None"),
        (lambda: override("step", lambda self, action: None), "Mine.step() must be async: write 'async def step'"),
        (lambda: override("compute_metrics", lambda self, *given, **named: None), "every metric a name, in a dict"),
        (lambda: environment(reward_fn=PlainReward()), "PlainReward.compute() must be async: write"),
        (lambda: Environment(model_factory=a_model), "must return a model, an instance of strands.models.Model, got <"),  # type: ignore[arg-type]
        (lambda: Environment(model_factory=lambda: "gpt"), "an instance of strands.models.Model, got 'gpt'"),  # type: ignore[arg-type,return-value]
        # The SDK would take a model of its own choice, from another service.
        (lambda: Environment(model_factory=lambda: None), "an instance of strands.models.Model, got None"),  # type: ignore[arg-type,return-value]
        (lambda: override("get_tools", lambda self: [sorted]), "'sorted' is not a tool, and the SDK drops it"),
        (lambda: override("get_tools", lambda self: [[sorted]]), "'sorted' is not a tool, and the SDK drops it"),
        (lambda: override("get_tools", lambda self: [{add: 1}.keys(), iter([(None,)])]), "'None' is not a tool, and"),
        (lambda: override("get_tools", lambda self: [add, add]), "2 tools are named 'add'"),
        (lambda: override("get_tools", lambda self: [add, [[add]]]), "2 tools are named 'add'"),
        (lambda: NoResult(model_factory=lambda: ScriptedModel(["x"])), "NoResult.step() must return a StepResult, got"),
        (lambda: ScriptedModel(["x"]), "env_factory must make an Environment, got <"),
    ],
)
async def test_a_part_of_the_wrong_kind_is_named_in_the_sample_and_the_others_go_on(make: Any, message: str) -> None:
    actions = [Action(message=name, task_context=TaskContext(id=name)) for name in "ab"]
    factory = lambda action: make() if action.text == "a" else environment()  # noqa: E731
    results = await Evaluator(factory, output_path=None, retry=RetryPolicy(delay=0.0)).run(actions)
    assert message in results["a"][0].step_result.error.message
    assert results["b"][0].step_result.error is None


class Asks(Environment):
    async def interact(self, agent: Any, action: Action) -> Any:
        self.model_for("helper", model_factory="gpt-4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Environment(model_factory="gpt-4"),  # type: ignore[arg-type]
        lambda: CorrectnessJudgeReward("gpt-4"),  # type: ignore[arg-type]
        lambda: CorrectnessJudgeReward([lambda: ScriptedModel(["x"]), "gpt-4"]),  # type: ignore[list-item]
        lambda: ModelUser("gpt-4", role="a customer"),  # type: ignore[arg-type]
    ],
)
def test_a_name_is_no_factory_of_models(make: Any) -> None:
    with pytest.raises(TypeError, match=r"='gpt-4': expected a function that makes a fresh model, such as sglang_mod"):
        make()


async def test_a_name_is_no_factory_of_a_sub_agents_model() -> None:
    result = await Asks(model_factory=lambda: ScriptedModel(["x"])).step(Action(message="q"))
    assert "model_factory='gpt-4': expected a function that makes a fresh model" in result.error.message


async def test_tools_of_an_iterator_in_a_list_are_all_given() -> None:
    env = override("get_tools", lambda self: [iter([[add]])])
    assert '"add"' in (await env.step(Action(message="q"))).observation.tools


async def test_a_wrong_reward_result_is_told_without_the_words_of_the_validator() -> None:
    def score(action: Action, result: StepResult) -> RewardResult:
        return RewardResult(reward="high")  # type: ignore[arg-type]

    result = await environment(reward_fn=score).step(Action(message="q", task_context=TaskContext(id="a")))
    assert result.error.message == "a reward is a finite number, or None to abstain, got 'high'"
    assert "pydantic.dev" not in result.error.message
    json.dumps(result.error.message)


async def test_an_error_and_its_log_name_the_line_of_the_users_code(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def failing() -> str:
        """Fail."""
        return json.loads("no JSON")

    class Tooled(Environment):
        def get_tools(self) -> list[Any]:
            return [failing]

    models = lambda: ScriptedModel([call("failing"), "done"])  # noqa: E731
    with caplog.at_level(logging.WARNING, logger="strands_env"):
        result = await Tooled(model_factory=models, reward_fn=raising).step(Action(message="q"))
    raised_at = f"{__file__}:{raising.__code__.co_firstlineno + 1}, in raising"
    assert result.error.raised_at == raised_at
    assert f"raised_at=<{raised_at}> | reward failed" in caplog.text
    assert result.tool_errors[0].error.raised_at.startswith(f"{__file__}:")
    assert result.tool_errors[0].error.raised_at.endswith(", in failing")


async def test_one_environment_for_all_samples_is_warned_of() -> None:
    shared = environment()
    with pytest.warns(UserWarning, match="makes the same Environment for all"):
        await Evaluator(lambda: shared, output_path=None, n_samples_per_prompt=2).run([Action(message="q")])


@pytest.mark.parametrize(
    ("name", "meant"), [("get_tool", r"get_tools\(\)"), ("clean_up", r"cleanup\(\)"), ("compute_reward", "reward_fn")]
)
def test_a_misspelt_override_is_warned_of(name: str, meant: str) -> None:
    kind = type("Mine", (Environment,), {name: lambda self: None, "__module__": "mine"})
    with pytest.warns(UserWarning, match=rf"Mine\.{name}\(\) is called by nothing: did you mean .*{meant}"):
        kind(model_factory=lambda: ScriptedModel(["x"]))
    with pytest.warns(UserWarning, match=r"load_dataset\(\)"):
        type("Tasks", (Evaluator,), {"load_datasets": lambda self: []})(environment, output_path=None)


def test_a_reward_that_is_no_override_is_warned_of_beside_a_reward_fn_once(recwarn: pytest.WarningsRecorder) -> None:
    kind = type("Mine", (Environment,), {"compute_reward": lambda self, *given: 1.0, "get_tool": lambda self: []})
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            kind(model_factory=lambda: ScriptedModel(["x"]), reward_fn=lambda action, result: 0.5)
    assert sorted(str(each.message).split("()")[0] for each in recwarn.list) == ["Mine.compute_reward", "Mine.get_tool"]


def test_own_helpers_and_a_method_given_as_the_reward_are_no_misspelt_overrides(recwarn: Any) -> None:
    class Mine(Environment):
        def __init__(self) -> None:
            super().__init__(model_factory=lambda: ScriptedModel(["x"]), reward_fn=self.compute_reward)

        def compute_reward(self, action: Action, result: StepResult) -> float:
            return 1.0

    Mine()
    helpers = {"get_tools": lambda self: [], "get_tool": lambda self, name: None, "compute_score": lambda self: 1.0}
    type("Mine", (Environment,), helpers)(model_factory=lambda: ScriptedModel(["x"]))
    assert not recwarn.list
