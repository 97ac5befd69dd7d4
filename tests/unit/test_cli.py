"""The command `strands-sglang`."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from strands_env.commands import cli as env_cli
from strands_sglang import __main__ as cli


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


def test_wrong_arguments_of_a_subcommand_are_usage_errors(command: types.ModuleType) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["answer", "seven"])
    assert stop.value.code == 2


def test_an_unknown_subcommand_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["docter"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "'docter'" in error and "doctor" in error and "gateway" in error


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


@pytest.mark.parametrize("package", ["strands_env", "strands_sglang"])
def test_a_package_runs_as_its_command(package: str) -> None:
    command = [sys.executable, "-m", package, "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.split()[0]) == (0, package.replace("_", "-"))


def test_help_lists_the_subcommands_without_importing_them() -> None:
    code = (
        "import sys, strands_sglang.__main__ as cli\n"
        "try:\n    cli.main(['--help'])\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "loaded = [module for module, _ in cli._COMMANDS.values() if module in sys.modules]\n"
        "assert not loaded and 'torch' not in sys.modules, loaded\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert {"doctor", "gateway", "drift"} <= set(result.stdout.split())


def test_an_unknown_option_in_the_place_of_a_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        env_cli.main(["--versoin"])
    assert stop.value.code == 2
    assert "--versoin (did you mean '--version'?)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "report", "demo", "doctor"])
def test_the_help_of_a_command_loads_nothing_but_its_arguments(command: str) -> None:
    code = (
        "import sys\nfrom strands_env.commands.cli import main\n"
        f"try:\n    main([{command!r}, '--help'])\nexcept SystemExit:\n    pass\n"
        "known = {*sys.stdlib_module_names, 'strands_env', 'strands_sglang', '__main__', '_distutils_hack'}\n"
        "others = {name.partition('.')[0] for name in sys.modules} - known\n"
        "files = {name for name, module in sys.modules.items() if getattr(module, '__file__', None)}\n"
        "own = [name for name in files if name.startswith('strands_')]\n"  # modules of upstream's names are empty
        "others = sorted(name for name in others if not name.startswith(('_', 'sitecustomize')))\n"
        "print(others, len(own), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    others, _, count = done.stderr.strip().rpartition(" ")
    assert others == "[]" and int(count) <= 16, done.stderr


@pytest.mark.parametrize("name", ["report", "check", "drift", "init", "doctor"])
def test_the_first_line_of_a_command_does_not_wait_for_the_sdk(name: str) -> None:
    loaded = "print(sorted({'strands', 'numpy', 'pydantic'} & set(sys.modules)))"
    code = f"import sys, strands_env.commands.{name}; {loaded}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_commands_that_take_long_say_what_they_do(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["report", str(tmp_path)], ["drift", str(tmp_path)]):
        env_cli.main(arguments)
        assert capsys.readouterr().err.startswith(f"reading {tmp_path} ...")
    env_cli.main(["check", "--env", "nothing:here"])
    assert capsys.readouterr().err.startswith("trying the environment ...")


def test_no_command_is_wrong_usage_and_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        env_cli.main([])
    assert stop.value.code == 2 and "rescore" in capsys.readouterr().err
