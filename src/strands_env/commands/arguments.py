"""Arguments of `strands-env eval`, and the options they come to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strands_env.backends import BACKENDS
from strands_env.commands.runs import PRICES, add_prices
from strands_env.eval import EvalError, GroupPolicy
from strands_env.eval.store import StorePaths, load_run
from strands_env.recipe.objects import REWARDS
from strands_env.recipe.tasks import DATA
from strands_env.trackers import TRACKERS
from strands_sglang.command_line import json_object, non_negative, number, positive
from strands_sglang.exceptions import did_you_mean

EXECUTORS = ("inline", "processes", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("benchmark", nargs="?", help="name of a benchmark (see list), or module:attribute of your own")
    parser.add_argument("--from-run", metavar="RUN", help="take the rest from a saved run: its folder or x.run.json")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--backend", choices=(*BACKENDS, "scripted"), help="where the model is (default: local, on this CPU)"
    )
    model.add_argument("--model-id", "--model", metavar="ID", help="model: a name, a hub id or a folder")
    model.add_argument("--base-url", "--sglang-base-url", metavar="URL", help="server of the backends sglang, openai")
    model.add_argument("--tokenizer", metavar="ID", help="tokenizer (default: the server's)")
    model.add_argument("--tool-parser", metavar="NAME", help="reader of tool calls (default: fits the chat template)")
    model.add_argument("--temperature", type=number, metavar="T", help="0 is greedy")
    model.add_argument("--top-p", type=number, metavar="P")
    model.add_argument("--top-k", type=int, metavar="K")
    model.add_argument("--max-new-tokens", type=positive, metavar="N", help="tokens of one model call")
    model.add_argument("--sampling", type=json_object, metavar="JSON", help="further sampling parameters, or a file")
    model.add_argument("--script", metavar="TEXT", help="answer of the backend scripted")
    model.add_argument("--script-delay", type=number, metavar="S", help="seconds each of its calls takes")
    world = parser.add_argument_group("environment")
    world.add_argument(
        "--env", metavar="HOOK", help="module:function of an environment hook (default: the benchmark's)"
    )
    world.add_argument("--env-config", type=json_object, metavar="JSON", help="arguments of the hook, or a file")
    world.add_argument(
        "--reward",
        metavar="HOOK",
        help=f"what scores: {', '.join(REWARDS)}, or module:attribute (default: the environment's)",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="PATH", help="local .jsonl, .json or .parquet; without a benchmark, of tasks")
    data.add_argument(
        "--columns", metavar="MAP", help="columns of a file without a benchmark, as in question=prompt,answer=solution"
    )
    data.add_argument("--limit", type=positive, metavar="N", help="number of tasks")
    data.add_argument("--seed", type=seed, metavar="N", help="seed of the data and of sampling (default: 0)")
    run = parser.add_argument_group("run")
    run.add_argument("-n", "--n-samples-per-prompt", type=positive, metavar="N", help="samples of each task (1)")
    run.add_argument("-c", "--max-concurrency", type=positive, metavar="N", help="rollouts at a time (10)")
    run.add_argument("-o", "--output", metavar="DIR", help="folder of the results (default: runs/BENCHMARK)")
    run.add_argument("--resume", action="store_true", help="continue what is in the output folder, if anything is")
    run.add_argument("--no-tokens", action="store_true", help="do not keep token ids and log-probabilities")
    run.add_argument("--max-attempts", type=positive, metavar="N", help="rollouts of a sample that gets lost (3)")
    run.add_argument("--max-failures", type=non_negative, metavar="N", help="give up after so many lost samples")
    run.add_argument("--group-policy", choices=[policy.value for policy in GroupPolicy], help="for lost samples (keep)")
    run.add_argument("--sample-timeout", type=number, metavar="S", help="seconds of one rollout")
    run.add_argument("--reward-threshold", type=number, metavar="R", help="a sample passes from this reward on (1.0)")
    add_prices(run)
    run.add_argument("--executor", choices=EXECUTORS, help="where rollouts run (default: inline, this process)")
    run.add_argument("--workers", type=positive, metavar="N", help="worker processes or Ray actors")
    run.add_argument(
        "--track", type=trackers, metavar="NAMES", help=f"also report to {', '.join(TRACKERS)} (extra trackers)"
    )
    run.add_argument("--project", metavar="NAME", help="project of the tracker (default: the benchmark)")
    run.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    run.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    run.add_argument("-v", "--verbose", action="store_true", help="log warnings of single samples")


DEFAULTS: dict[str, Any] = {
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
}
_NOT_SAVED = frozenset({"command", "from_run", "resume", "quiet", "json", "verbose"})
_CONTINUED = (
    *("benchmark", "backend", "model_id", "base_url", "tokenizer", "tool_parser", "script", "env", "env_config"),
    *("reward", "data", "columns", "seed", "n_samples_per_prompt", "group_policy", "reward_threshold", *PRICES),
)
"""What a continued run takes over where it is not given: what it must share with the saved one, and how it counts."""


def resolve(args: argparse.Namespace) -> dict[str, Any]:
    """All options: given here, else of the saved run, else of the run that is continued, else defaults.

    Raises:
        EvalError: There is no saved run, or no benchmark.
    """
    given = {name: value for name, value in vars(args).items() if name not in _NOT_SAVED}
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    saved: dict[str, Any] = {}
    if args.from_run is not None:
        path = Path(args.from_run)
        document = load_run(path if path.suffix == ".json" else StorePaths.of(path).run)
        if document is None:
            raise EvalError(f"found no saved run at {args.from_run!r}: give its folder or x.run.json")
        saved = document["about"].get("options") or {}
        if not saved:
            raise EvalError(f"{args.from_run!r} was not saved by 'strands-env eval': its options are unknown")
    continued: dict[str, Any] = {}
    if args.resume:
        continued = _continued(output_of({**saved, **chosen}))
    options = {**DEFAULTS, **continued, **saved, **chosen}
    if "sampling" in continued:
        options["sampling"] = {**continued["sampling"], **(options["sampling"] or {})}
    if _is_same_file(options.get("data"), continued.get("data")):
        options["data"] = continued["data"]  # its spelling is part of the configuration
    if options.get("data") and not options.get("benchmark"):
        options["benchmark"] = DATA
    for name in given:
        options.setdefault(name, None)
    options["sampling_seed"] = None if continued.get("is_unseeded") else options["seed"]
    if not options["benchmark"]:
        if args.resume and args.output:
            raise EvalError(f"there is no run at {args.output!r} to resume: name a benchmark to start one")
        raise EvalError("name a benchmark ('strands-env list' shows them), --data FILE, or --from-run RUN")
    return options


def output_of(options: Mapping[str, Any]) -> Path | None:
    """Where the results go; None where neither output nor benchmark is named."""
    if options.get("output"):
        return Path(options["output"])
    name = options.get("benchmark")
    if options.get("data") and name in (None, DATA):
        return Path("runs") / Path(options["data"]).stem
    return Path("runs") / str(name).replace(":", ".") if name else None


def _is_same_file(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and os.path.realpath(one) == os.path.realpath(other)


def _continued(output: Path | None) -> dict[str, Any]:
    """What to take over from the run in the output folder; its sampling parameters as they were resolved."""
    document = None if output is None else load_run(StorePaths.of(output).run)
    if document is None:
        return {}
    saved = document["about"].get("options") or {}
    taken = {name: saved[name] for name in _CONTINUED if saved.get(name) is not None}
    if "sampling_seed" not in document["config"]:  # of a run that left sampling to chance, or is older than seeds
        taken["is_unseeded"] = True
    model = document["config"].get("model")
    sampling = model.get("sampling_params") if isinstance(model, dict) else None
    if saved and isinstance(sampling, dict):
        taken |= {"sampling": sampling, "sampling_is_whole": True}
    return taken


def trackers(text: str) -> list[str]:
    """Names of trackers, separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS)
            raise argparse.ArgumentTypeError(f"unknown tracker {name!r}{hint}; there are {', '.join(TRACKERS)}")
    return names


def seed(text: str) -> int:
    """A whole number of at least 0 that JSON can hold."""
    value = non_negative(text)
    if value >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number below 2^63, got {text!r}")
    return value
