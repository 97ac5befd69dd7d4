"""The command `strands-sglang`."""

from __future__ import annotations

import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

from strands_env.commands import cli as env_cli
from strands_env.commands.arguments import COMMANDS, FORMER_COMMANDS
from strands_env.eval.drift import find_drift
from strands_env.eval.saved import SavedRun
from strands_sglang import __main__ as cli
from strands_sglang.backends.engine.loader import default_model_path, load_tokenizer
from strands_sglang.backends.engine.own_tokenizer import OwnTokenizer
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A subcommand `answer NUMBER`, whose exit status is the number."""
    module = types.ModuleType("tests.answer_command")
    module.add_arguments = lambda parser: parser.add_argument("number", type=int)
    module.run = lambda args: args.number
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli._COMMANDS, "answer", (module.__name__, "answers"))
    return module


def test_the_subcommand_gets_its_arguments_and_gives_the_status(command: types.ModuleType) -> None:
    assert cli.main(["answer", "7"]) == 7
    with pytest.raises(SystemExit, match="2"):
        cli.main(["answer", "seven"])


@pytest.mark.parametrize(
    ("missing", "status", "said"),
    [
        ("torch.nn", 2, "[local]'"),
        ("strands_sglang.nowhere", 70, "No module named 'strands_sglang.nowhere'"),  # a bug
    ],
)
def test_a_missing_package_is_answered_with_its_extra(missing, status, said, command, capsys):
    def run(args: object) -> int:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    command.run = run
    assert cli.main(["answer", "1"]) == status
    assert said in capsys.readouterr().err


def test_a_complaint_needs_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as after `2>&-`
    assert cli.main(["doctor", "/no/such/template"]) == 2
    assert cli.main(["gateway"]) == 2


@pytest.mark.parametrize("package", ["strands_env", "strands_sglang"])
def test_a_package_runs_as_its_command(package: str) -> None:
    command = [sys.executable, "-m", package, "--version"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout.split()[0]) == (0, package.replace("_", "-"))


def test_upstreams_command_line_names_what_took_its_place() -> None:
    command = [sys.executable, "-m", "strands_env.eval", "--benchmark", "aime-2024"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert (
        result.stderr
        == "python -m strands_env.eval --benchmark NAME is now: strands-env eval NAME (--help shows more)\n"
    )


def test_a_command_that_became_an_option_names_what_took_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    for name, now in FORMER_COMMANDS.items():
        assert env_cli.main([name, "runs/first"]) == 2
        assert capsys.readouterr() == ("", f"strands-env {name} is now: {now}\n")
    assert len(COMMANDS) <= 13


def test_no_command_is_wrong_usage_and_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in (([], "rescore"), (["--versoin"], "arguments are required: COMMAND")):
        with pytest.raises(SystemExit, match="2"):
            env_cli.main(given)
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["report", "check", "drift", "init", "doctor"])
def test_the_first_line_of_a_command_does_not_wait_for_the_sdk(name: str) -> None:
    loaded = "print(sorted({'strands', 'numpy', 'pydantic'} & set(sys.modules)))"
    code = f"import sys, strands_env.commands.{name}; {loaded}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_commands_that_take_long_say_what_they_do(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    for main, command in ((env_cli.main, "report"), (cli.main, "drift")):
        main([command, str(tmp_path)])
        assert capsys.readouterr().err.startswith(f"reading {tmp_path} ...")
    env_cli.main(["check", "--env", "nothing:here"])
    assert capsys.readouterr().err.startswith("trying the environment ...")


@pytest.mark.parametrize("command", ["eval", "check"])
def test_wrong_names_and_files_are_told_before_anything_heavy_is_loaded(command: str) -> None:
    for given, said in (
        (["arithmatic"], "unknown benchmark 'arithmatic' (did you mean 'arithmetic'?)"),
        (["nothing:here"], "there is no module 'nothing'"),
        (["arithmetic", "--env", "nothing:here"], "there is no module 'nothing'"),
        (["arithmetic", "--reward", "maths"], "unknown reward 'maths' (did you mean 'math'?)"),
        (["--data", "nothing.jsonl"], "found no data file at 'nothing.jsonl'"),
        (["math-500", "--data", "nothing.jsonl"], "found no data file at 'nothing.jsonl'"),
        (["arithmetic", "--data", "nothing.jsonl"], "reads no file, for it is generated from its seed"),
        (["arithmetic", "--colums", "a=b"], "did you mean '--columns'?"),
    ):
        found, loaded = loaded_by([command, *given])
        assert (said in found.stderr, loaded & {"strands", "numpy", "pydantic", "aiohttp"}) == (True, set()), given


@pytest.mark.parametrize("command", ["eval", "train"])
def test_a_wrong_file_of_a_run_is_told_before_the_sdk_is_loaded(command: str, tmp_path: Path) -> None:
    for content, said in (
        (None, "No such file or directory"),
        ("benchmrk: arithmetic", "has the unknown key 'benchmrk' (did you mean 'benchmark'?)"),
        ("benchmark: arithmatic", "unknown benchmark 'arithmatic' (did you mean 'arithmetic'?)"),
        ("benchmark: arithmetic\nenv: nothing:here", "there is no module 'nothing'"),
    ):
        path = tmp_path / "run.yaml"
        if content is not None:
            path.write_text(content)
        found, loaded = loaded_by([command, str(path)])
        assert (said in found.stderr, loaded & {"strands", "numpy", "aiohttp"}) == (True, set()), content


def test_a_missing_run_is_told_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    missing, too_long = str(tmp_path / "missing"), "x" * 300  # which the system refuses to look for
    for given, said in (
        (("report", too_long), "there are no results at"),
        (("eval", "--from-run", too_long), "found no saved run at"),
        (("check", "--data", too_long), "found no data file at"),
        (("eval", "--data", f"{too_long}.jsonl"), "found no data file at"),
        (("report", missing), "there are no results at"),
        (("health", missing), "there are no results at"),
        (("compare", str(tmp_path), missing), "there are no results at"),
        (("export", missing, "-o", "x.parquet"), "there are no results at"),
        (("rescore", missing), "there are no results at"),
        (("watch", missing), "there are no results at"),
        (("eval", "--from-run", missing), "found no saved run at"),
        (("train", "--from-run", missing), "found no saved run at"),
    ):
        found, loaded = loaded_by([*given])
        assert (said in found.stderr, loaded & {"strands", "numpy", "aiohttp"}) == (True, set()), given


def loaded_by(*commands: list[str]) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Commands in a process of their own, and the modules that they loaded."""
    code = "import atexit, sys\nfrom strands_env.commands.cli import main\natexit.register(lambda: print(*sys.modules))"
    code += f"\nfor arguments in {commands}: main([*arguments])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return found, set(found.stdout.splitlines()[-1].split())


@pytest.fixture
def saved_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run, and in the cache a tokenizer where that of the default model is expected."""
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path))
    make_tiny_tokenizer().save_pretrained(default_model_path())
    (default_model_path() / "config.json").write_text('{"model_type": "llama"}')
    run = tmp_path / "run"
    assert env_cli.main(["eval", "arithmetic", "--backend", "scripted", "--limit", "2", "-o", str(run), "-q"]) == 0
    capsys.readouterr()
    return run


def test_commands_load_no_model_and_nothing_that_they_do_not_use(saved_run: Path) -> None:
    models = {"torch", "datasets", "sympy", "transformers", "huggingface_hub"}
    saved = [str(saved_run), "--tokenizer", "smollm2"]
    for commands, absent in (
        (
            [["report", *saved], ["health", *saved]],
            {*models, "aiohttp", "strands_env.eval.run.evaluator"},
        ),
        (
            [["check", "--env", "strands_env.environments:CalculatorEnv"]],
            {*models, "aiohttp", "strands_env.sandbox", "strands_env.rewards.sentences"},
        ),
    ):
        found, loaded = loaded_by(*commands)
        assert "Traceback" not in found.stderr, found.stderr
        assert ("tokenizers" in loaded, sorted(absent & loaded)) == (True, []), commands


def test_reports_read_tokens_as_the_class_of_the_tokenizer_does(saved_run: Path) -> None:
    light, full = SavedRun.of(saved_run).tokenizer("smollm2").tokenizer, load_tokenizer("smollm2")
    assert type(light) is OwnTokenizer
    drawn, kinds = random.Random(0), set()
    for _ in range(50):
        ids = [drawn.randrange(len(full)) for _ in range(20)]
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        assert light.decode(ids, **options) == full.decode(ids, **options)
        assert light.decode(ids[:1]) == full.decode(ids[:1])
        spans = find_drift(ids, light)
        assert spans == find_drift(ids, full)
        kinds |= {span.kind for span in spans}
    assert len(kinds) > 1
