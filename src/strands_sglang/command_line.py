"""Exit statuses, argument types and subcommands, for both commands.

A subcommand is a module: `add_arguments(parser)` and `run(args)`, which returns the exit status.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from importlib import import_module, metadata
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO, TypeAlias

# Characters that move the cursor, change colours or text direction, or cannot be encoded.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_EXTRA_OF = {
    **dict.fromkeys(("torch", "xgrammar"), "local"),
    **dict.fromkeys(("tokenizers", "transformers"), "hf"),  # code that needs all of `local` asks for torch first
    "datasets": "eval",
    **dict.fromkeys(("pyarrow", "trl"), "train"),
    "math_verify": "math",
    "openai": "openai",
    "ray": "ray",
    "strands_evals": "strands-evals",
}


class Exit(IntEnum):
    """Exit status of a command. The first three are those of every command."""

    OK = 0
    """Done. Also a run without a reward function, which says that nothing was scored."""
    INCOMPLETE = 1
    """`eval`: finished, but samples were lost, and `--resume` tries them again. `check`: something has to change.
    `health`: findings. `doctor`: the template cannot be used. `compare --fail-if-worse`: the second run is worse.
    `report --max-kl`: the mismatch is larger."""
    FAILED = 1
    """The same status: the command was right, its work failed. The model server does not answer, the port is taken."""
    USAGE = 2
    """Wrong usage: arguments, names, or files that cannot be read, data without tasks, a reward that scored none of the
    samples, or a package that is not installed."""
    REFUSED = 3
    """The results belong to another configuration, are damaged, are being written by another run, or cannot be read or
    written. `compare --fail-if-worse`: too many samples were lost, or prompts in one run only."""
    GAVE_UP = 4
    """`eval`: more samples were lost than `--max-failures`, or the first ones failed alike; everything finished is
    saved."""
    UNEXPECTED = 70
    """An unexpected error, with its traceback; everything finished is saved. Also one in a user's own metric."""
    INTERRUPTED = 130
    """Stopped with Ctrl-C or SIGTERM; everything finished is saved."""
    PIPE = 141
    """The reader of the output went away before its end (`report` and `watch` count that as done)."""


class CommandError(Exception):
    """Ends a subcommand with one sentence on the standard error, and an exit status."""

    def __init__(self, message: object, status: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.status = status


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line: the mistake, the nearest right word, and where help is."""

    def error(self, message: str) -> NoReturn:
        """Complain and exit with `Exit.USAGE`."""
        from strands_sglang.hints import did_you_mean

        if match := re.match(r"unrecognized arguments: --([^\s=]*)", message):
            options = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            message += did_you_mean(match[1], options).replace("'", "'--", 1)
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message):
            choices = match[2].replace("'", "").split(", ")
            message = f"{message[: match.start()]}unknown {match[1]!r}{did_you_mean(match[1], choices)}; choose one of "
            message += ", ".join(choices)
        self.exit(Exit.USAGE, f"{self.prog}: {message} (help: {self.prog} --help)\n")


# ---- options that several commands have ------------------------------------------------------------------------------


SERVERS: Final = {"sglang": "SGLang", "vllm": "vLLM"}
"""Kinds of servers by their names on command lines."""
DEFAULT_SERVER: Final = "sglang"


def add_server(parser: argparse._ActionsContainer, help: str) -> None:
    """Add `--server URL`, or `--base-url URL` as other commands call it, and the kind of server at a plain address."""
    parser.add_argument("--server", "--base-url", metavar="URL", help=f"{help}; vllm+http://... is vLLM")
    add_kind(parser)


def add_kind(parser: argparse._ActionsContainer, help: str = "kind of the server (sglang)") -> None:
    """Add `--backend`, the kind of server at a plain address."""
    parser.add_argument("--backend", choices=SERVERS, default=DEFAULT_SERVER, help=help)


def server_of(args: argparse.Namespace) -> str | None:
    """The address of `add_server`, marked with the kind that `--backend` says."""
    is_marked = args.server is None or not args.server.startswith("http") or args.backend == DEFAULT_SERVER
    return args.server if is_marked else f"{args.backend}+{args.server}"


def add_former(parser: argparse._ActionsContainer, option: str, instead: str) -> None:
    """Add an option that is gone, which is not in the help; whoever gives it reads what to do instead."""

    class Former(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
            parser.error(f"{option} is gone: {instead}")

    parser.add_argument(option, action=Former, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


# ---- types of arguments ----------------------------------------------------------------------------------------------


def whole(text: str, least: int, most: float, expected: str) -> int:
    """A whole number from `least` to `most`."""
    value = int(text) if text.isdecimal() else -1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value


positive = partial(whole, least=1, most=math.inf, expected="a whole number of at least 1")
non_negative = partial(whole, least=0, most=math.inf, expected="a whole number of at least 0")
port = partial(whole, least=0, most=65535, expected="a port from 0 to 65535")
"""A port to listen on; 0 takes a free one."""


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return value


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    value = number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, or the one in a file."""
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise argparse.ArgumentTypeError(
                f"expected a JSON object or a file with one, got {text!r} ({getattr(error, 'strerror', error)})"
            ) from None
    try:
        value = json.loads(source)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}, in {source[:80]!r}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {type(value).__name__}")
    return value


# ---- running ---------------------------------------------------------------------------------------------------------


AddArguments: TypeAlias = Callable[[argparse.ArgumentParser], None]
"""Adds the arguments of a subcommand."""


def run_command_line(
    prog: str,
    commands: Mapping[str, tuple[str, str]],
    argv: Sequence[str] | None,
    *,
    description: str,
    epilog: str,
    arguments: Mapping[str, AddArguments] | None = None,
    showing: Collection[str] = (),
    explain: Callable[[BaseException], CommandError | None] = lambda error: None,
) -> int:
    """Run a command of subcommands, each imported only when it is the one that runs; returns the exit status (`Exit`).

    Args:
        commands: Module and one line of help of each subcommand.
        argv: Arguments without the program's name; those of the process by default.
        epilog: Last lines of its help.
        arguments: Add the arguments of subcommands without importing their modules; where one is missing, its module's
            own `add_arguments` does.
        showing: Subcommands whose reader may go away when it has seen enough.
        explain: The `CommandError` for an error that a user can do something about; None for any other.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        # Characters that a terminal's encoding lacks are shown as escapes, as Python does on the standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog=prog, description=description, epilog=epilog)
    parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version('strands-rollout')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = {name: subparsers.add_parser(name, help=text, description=text) for name, (_, text) in commands.items()}
    for argument in words:
        if not argument.isascii() and re.search("[\ud800-\udfff]", argument):
            encoding = sys.getfilesystemencoding()
            parser.error(
                f"the argument {argument!r} is not text in this locale's encoding ({encoding}): set PYTHONUTF8=1"
            )
    if not words:
        parser.exit(Exit.USAGE, parser.format_help())
    command = next((argument for argument in words if not argument.startswith("-")), "")
    if command not in parsers:
        parser.parse_args(words)  # shows help or the version, or complains
    module, own = commands[command][0], parsers[command]
    try:
        add_arguments = (arguments or {}).get(command) or import_module(module).add_arguments
        add_arguments(own)
        options, unknown = parser.parse_known_args(words)
        if unknown:
            own.error(f"unrecognized arguments: {' '.join(unknown)}")
        status = int(import_module(module).run(options))
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `strands-env report RUN --text | head`
        _silence(sys.stdout)
        return Exit.OK if command in showing else Exit.PIPE
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # also errors that extensions raise past `Exception`
        known = error if isinstance(error, CommandError) else explain(error)
        if known is None and isinstance(error, ImportError) and (advice := what_to_install(error)) is not None:
            known = CommandError(advice, Exit.USAGE)
        if known is None:
            with suppress(OSError, ValueError, AttributeError):  # nobody reads it; None after `2>&-`
                traceback.print_exc()
            known = CommandError("unexpected error, see above; please report it", Exit.UNEXPECTED)
        complain(f"{prog} {command}", known)
        return known.status
    finally:
        if sys.stderr is not None:
            try:
                sys.stderr.flush()
            except (OSError, ValueError):  # nobody reads the progress; that is no reason for another status
                _silence(sys.stderr)


def safe(text: str) -> str:
    """Text of a sample or an error that cannot drive the terminal."""
    return _UNSAFE.sub("\ufffd", text)


def complain(command: str, message: object) -> None:
    """Write a line to the standard error, if there is one."""
    if sys.stderr is not None:  # None after `2>&-`
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{command}: {safe(str(message))}\n")
            sys.stderr.flush()


def what_to_install(error: ImportError) -> str | None:
    """A sentence that names the extra of a missing package; None if an import failed otherwise."""
    if "pip install" in str(error):  # one of our own, or of a user's module
        return str(error)
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in _EXTRA_OF:
        return None
    from strands_sglang.hints import install_command

    return f"the package {package!r} is not installed; install it with: {install_command(_EXTRA_OF[package])}"


def _silence(stream: TextIO) -> None:
    """Discard bytes still buffered for a reader that went away, or Python complains when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
