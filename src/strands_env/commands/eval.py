"""`strands-env eval`: run a benchmark."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strands_env.commands.build import load_evaluator, make_env_factory
from strands_env.commands.display import make_display
from strands_env.commands.exits import Exit
from strands_env.commands.out import complain, say
from strands_env.commands.show import summary_lines
from strands_env.eval import (
    ConfigMismatchError,
    EvalError,
    Evaluator,
    GroupPolicy,
    RetryPolicy,
    ScoreTable,
    StoreError,
    TooManyFailuresError,
    read_results,
    summarize,
)
from strands_env.eval.benchmark import Benchmark
from strands_env.eval.executor import Executor
from strands_env.eval.store import load_run

BACKENDS = ("local", "sglang", "openai", "bedrock", "scripted")
EXECUTORS = ("inline", "processes", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("benchmark", nargs="?", help="name of a benchmark (see list), or module:attribute of your own")
    parser.add_argument("--from-run", metavar="FILE", help="take everything not given here from a saved x.run.json")
    model = parser.add_argument_group("model")
    model.add_argument("--backend", choices=BACKENDS, help="where the model is (default: local, on this CPU)")
    model.add_argument("--model-id", metavar="ID", help="model: a name, a hub id or a folder")
    model.add_argument("--base-url", "--sglang-base-url", metavar="URL", help="server of the backends sglang, openai")
    model.add_argument("--tokenizer", metavar="ID", help="tokenizer (default: the server's)")
    model.add_argument("--tool-parser", metavar="NAME", help="reader of tool calls (default: fits the chat template)")
    model.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    model.add_argument("--top-p", type=float, metavar="P")
    model.add_argument("--top-k", type=int, metavar="K")
    model.add_argument("--max-new-tokens", type=_positive, metavar="N", help="tokens of one model call")
    model.add_argument("--sampling", type=_json_object, metavar="JSON", help="further sampling parameters, or a file")
    model.add_argument("--script", metavar="TEXT", help="answer of the backend scripted")
    model.add_argument("--script-delay", type=float, metavar="S", help="seconds each of its calls takes")
    world = parser.add_argument_group("environment")
    world.add_argument(
        "--env", metavar="HOOK", help="module:function of an environment hook (default: the benchmark's)"
    )
    world.add_argument("--env-config", type=_json_object, metavar="JSON", help="arguments of the hook, or a file")
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="PATH", help="local .jsonl, .json or .parquet instead of the hub")
    data.add_argument("--limit", type=_positive, metavar="N", help="number of tasks")
    data.add_argument("--seed", type=int, metavar="N", help="seed of generated and shuffled data (default: 0)")
    run = parser.add_argument_group("run")
    run.add_argument("-n", "--n-samples-per-prompt", type=_positive, metavar="N", help="samples of each task (1)")
    run.add_argument("-c", "--max-concurrency", type=_positive, metavar="N", help="rollouts at a time (10)")
    run.add_argument("-o", "--output", metavar="DIR", help="folder of the results (default: runs/BENCHMARK)")
    run.add_argument("--resume", action="store_true", help="continue what is in the output folder")
    run.add_argument("--no-tokens", action="store_true", help="do not keep token ids and log-probabilities")
    run.add_argument("--max-attempts", type=_positive, metavar="N", help="rollouts of a sample that gets lost (3)")
    run.add_argument("--max-failures", type=int, metavar="N", help="give up after so many lost samples")
    run.add_argument("--group-policy", choices=[policy.value for policy in GroupPolicy], help="for lost samples (keep)")
    run.add_argument("--sample-timeout", type=float, metavar="S", help="seconds of one rollout")
    run.add_argument("--reward-threshold", type=float, metavar="R", help="a sample passes from this reward on (1.0)")
    run.add_argument("--executor", choices=EXECUTORS, help="where rollouts run (default: inline, this process)")
    run.add_argument("--workers", type=_positive, metavar="N", help="worker processes or Ray actors")
    run.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    run.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    run.add_argument("-v", "--verbose", action="store_true", help="log warnings of single samples")


_DEFAULTS: dict[str, Any] = {
    "backend": "local",
    "seed": 0,
    "n_samples_per_prompt": 1,
    "max_concurrency": 10,
    "max_attempts": 3,
    "group_policy": "keep",
    "reward_threshold": 1.0,
    "executor": "inline",
    "script": "I do not know.",
    "script_delay": 0.0,
        "sampling_seed": options["seed"],
}
_NOT_SAVED = frozenset({"command", "from_run", "resume", "quiet", "json", "verbose"})


def run(args: argparse.Namespace) -> int:
    """Run it."""
    logging.basicConfig(level=logging.WARNING if args.verbose else logging.ERROR, format="%(name)s: %(message)s")
    sys.path.insert(0, "")  # hooks in the folder one is in
    try:
        options = _resolve(args)
        evaluator, executor, engine = _build(options, quiet=args.quiet or args.json)
        _check_output(evaluator, resume=args.resume)
    except (StoreError, ConfigMismatchError) as error:
        return _fail(error, Exit.REFUSED)
    except (EvalError, ValueError, TypeError, OSError) as error:
        return _fail(error, Exit.USAGE)
    try:
        status = asyncio.run(_evaluate(evaluator, executor, engine))
    except (StoreError, ConfigMismatchError) as error:
        return _fail(error, Exit.REFUSED)
    except TooManyFailuresError as error:
        status = _fail(error, Exit.GAVE_UP)
    except Exception as error:
        if not (isinstance(error, EvalError) or getattr(error, "is_fatal", False)):
            raise
        return _fail(error, Exit.USAGE)
    return _show(evaluator, status, options, as_json=args.json)


def _resolve(args: argparse.Namespace) -> dict[str, Any]:
    """All options: given here, else of the saved run, else defaults."""
    given = {name: value for name, value in vars(args).items() if name not in _NOT_SAVED}
    saved: dict[str, Any] = {}
    if args.from_run is not None:
        document = load_run(Path(args.from_run))
        if document is None:
            raise EvalError(f"there is no saved run at {args.from_run!r}: give an x.run.json")
        saved = document.get("about", {}).get("options") or {}
        if not saved:
            raise EvalError(f"{args.from_run!r} was not saved by 'strands-env eval': it has no options to take over")
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    options = {**_DEFAULTS, **saved, **chosen}
    for name in given:
        options.setdefault(name, None)
    if not options["benchmark"]:
        raise EvalError("name a benchmark ('strands-env list' shows them), or --from-run FILE")
    return options


def _build(options: dict[str, Any], *, quiet: bool) -> tuple[Evaluator, Executor | None, Any]:
    kind = load_evaluator(options["benchmark"])
    sampling = dict(kind.default_sampling) if issubclass(kind, Benchmark) else {}
    if options["n_samples_per_prompt"] > 1:
        sampling.pop("temperature", None)  # several samples are to differ
    sampling |= options["sampling"] or {}
    for name in ("temperature", "top_p", "top_k", "max_new_tokens"):
        if options[name] is not None:
            sampling[name] = options[name]
    model = {"backend": options["backend"], "sampling_params": sampling}
    model |= {name: options[name] for name in ("model_id", "base_url", "tokenizer", "tool_parser")}
    if options["backend"] == "scripted":
        model |= {"script": options["script"], "script_delay": options["script_delay"]}
    recipe = {"benchmark": options["benchmark"], "env": options["env"], "env_config": options["env_config"]}
    recipe["model"] = model
    executor, factory, engine = None, None, None
    if options["executor"] == "inline":
        if options["workers"] is not None:
            raise EvalError("--workers is for --executor processes or ray")
        factory = make_env_factory(**recipe)
        engine = _engine_of(factory)
    else:
        executor = _executor(options, recipe)
    compared = {name: value for name, value in model.items() if name not in ("base_url", "script_delay")}
    config = {
        "model": compared,
        "environment": {"hook": options["env"], "config": options["env_config"]},
        "data": {"path": options["data"], "seed": options["seed"]},
        "env_factory": options["env"] or options["benchmark"],
    }
    settings: dict[str, Any] = {
        "executor": executor,
        "n_samples_per_prompt": options["n_samples_per_prompt"],
        "max_concurrency": options["max_concurrency"],
        "keep_tokens": not options["no_tokens"],
        "output_path": options["output"] or Path("runs") / options["benchmark"].replace(":", "."),
        "config": config,
        "about": {"options": options, "seed": options["seed"]},
        "retry": RetryPolicy(max_attempts=options["max_attempts"]),
        "group_policy": options["group_policy"],
        "max_failures": options["max_failures"],
        "sample_timeout": options["sample_timeout"],
        "reward_threshold": options["reward_threshold"],
        "keep_results": False,
        "progress": make_display(quiet=quiet),
    }
    if issubclass(kind, Benchmark):
        settings |= {"data_path": options["data"], "limit": options["limit"], "seed": options["seed"]}
    elif options["data"] or options["limit"]:
        raise EvalError(f"{kind.__name__} is no Benchmark: it takes no --data and no --limit")
    return kind(factory, **settings), executor, engine


def _executor(options: dict[str, Any], recipe: dict[str, Any]) -> Executor:
    from strands_env.distributed import ProcessExecutor, RayExecutor

    make = "strands_env.commands.build:make_env_factory"
    workers = options["workers"] or 2
    if options["executor"] == "processes":
        return ProcessExecutor(make, recipe, n_workers=workers)
    return RayExecutor(make, recipe, n_workers=workers)


def _engine_of(factory: Any) -> Any:
    """The embedded engine behind an environment factory, to close it at the end."""
    for cell in getattr(factory, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            if engine := getattr(cell.cell_contents, "engine", None):
                return engine
    return None


def _check_output(evaluator: Evaluator, *, resume: bool) -> None:
    assert evaluator.paths is not None
    path = evaluator.paths.results
    if not resume and path.exists() and path.stat().st_size:
        raise EvalError(f"{str(path)!r} holds results already: continue them with --resume, or give another --output")


async def _evaluate(evaluator: Evaluator, executor: Executor | None, engine: Any) -> Exit:
    task = asyncio.ensure_future(evaluator.run())
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            task.cancel()
        else:
            evaluator.stop()
        interrupted = True

    with _signals(interrupt):
        try:
            await task
        except asyncio.CancelledError:
            if not interrupted:
                raise
        finally:
            if executor is not None:
                await executor.close()
            if engine is not None:
                await engine.close()
    return Exit.INTERRUPTED if interrupted else Exit.OK


@contextlib.contextmanager
def _signals(interrupt: Any) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the run, a second one cancels it."""
    loop = asyncio.get_running_loop()
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C cancels at once
            loop.add_signal_handler(number, interrupt)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def _show(evaluator: Evaluator, status: Exit, options: dict[str, Any], *, as_json: bool) -> int:
    assert evaluator.paths is not None
    path = evaluator.paths.results
    table = ScoreTable.from_samples((sample.prompt_id, sample) for sample in read_results(path))
    summary = summarize(table, reward_threshold=options["reward_threshold"], seed=options["seed"])
    if as_json:
        say(json.dumps({"results": str(path), "status": status.name.lower(), **summary.to_dict()}))
    else:
        say("\n".join(summary_lines(summary, title=evaluator.benchmark_name or options["benchmark"])))
        say(f"results     {path}")
        if status is Exit.INTERRUPTED:
            say("interrupted; everything finished is saved: continue with --resume")
        else:
            say(f"look at it  strands-env report {path.parent}")
    if status is Exit.OK and summary.aborted:
        complain("eval", f"{summary.aborted} samples were lost to infrastructure: try them again with --resume")
        return Exit.INCOMPLETE
    return status


def _fail(error: BaseException, status: Exit) -> Exit:
    complain("eval", error)
    return status


def _positive(text: str) -> int:
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value


def _json_object(text: str) -> dict[str, Any]:
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise argparse.ArgumentTypeError(
                f"expected a JSON object or a file with one, got {text!r} ({error})"
            ) from None
    try:
        value = json.loads(source)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {type(value).__name__}")
    return value
