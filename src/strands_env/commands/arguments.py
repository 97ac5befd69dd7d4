"""Arguments of every subcommand of `strands-env`. Nothing heavy is imported for them, so that help comes at once."""

from __future__ import annotations

import argparse
import os

from strands_env.eval.options import GROUPS, OPTIONS, SAMPLING, SHARED, TRAIN_OPTIONS, add_options, seed_number
from strands_sglang.command_line import (
    AddArguments,
    CommandError,
    Exit,
    add_former,
    add_server,
    json_object,
    non_negative,
    number,
    positive,
)


def add_eval(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `eval`: every option of an evaluation."""
    _add_source(parser)
    parser.add_argument("--list", action="store_true", help="list the benchmarks, and run nothing")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of run.yaml, and run nothing")
    groups = {group: parser.add_argument_group(group) for group in GROUPS if group}
    for group, section in groups.items():
        add_options(section, GROUPS[group])
    for name, about in SAMPLING.items():
        groups["model"].add_argument(f"--{name.replace('_', '-')}", **about)
    run = groups["run"]
    run.add_argument("--resume", action="store_true", help="continue what is in the output folder, if anything is")
    add_former(run, "--record", "give the model a strands_sglang.backends.RecordingBackend (docs/backends.md)")
    kept = "metrics take the samples that were scored; --max-failures 0 stops at the first loss"
    add_former(run, "--group-policy", kept)
    _add_display(run)


def add_train(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`: those of the training, and those of an evaluation that make its rollouts."""
    _add_source(parser)
    add_options(parser.add_argument_group("training"), TRAIN_OPTIONS, TRAIN_OPTIONS)
    groups = {group: parser.add_argument_group(group) for group in GROUPS if group}
    for group, section in groups.items():
        add_options(section, [name for name in GROUPS[group] if name in SHARED])
    for name in ("temperature", "max_new_tokens"):
        groups["model"].add_argument(f"--{name.replace('_', '-')}", **SAMPLING[name])
    groups["run"].add_argument("--resume", action="store_true", help="continue after the last step that was saved")
    _add_display(groups["run"])


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument("first", type=existing_run, help="folder or .jsonl of the run to compare with")
    parser.add_argument(
        "others", nargs="+", type=existing_run, metavar="second", help="the run in question, or several"
    )
    parser.add_argument("--reward-threshold", type=number, metavar="R", help="compare pass rates at this reward")
    parser.add_argument("--level", type=number, default=0.95, metavar="L", help="confidence level (0.95)")
    text = "exit 1 when the second is significantly worse, 3 when samples were lost"
    parser.add_argument("--fail-if-worse", action="store_true", help=text)
    _add_json(parser)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`: the page, the terminal, and the check of the files."""
    help = "folder or .jsonl of a run; or of a training: a folder of runs, or slime's log"
    parser.add_argument("run", type=existing_run, help=help)
    parser.add_argument("sample", nargs="?", help="show this in the terminal: a prompt's id, or id and index: p7/2")
    parser.add_argument("-o", "--output", metavar="FILE", help="HTML file (default: report.html beside the results)")
    parser.add_argument("--tokenizer", metavar="ID", help="for texts and drift (default: the run's; none: only ids)")
    parser.add_argument("--reward-threshold", type=number, metavar="R", help="a sample passes from this reward on")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.add_argument("--text", action="store_true", help="show the run in the terminal instead")
    text = "prompts to list in the terminal (50), or samples to score again (all)"
    parser.add_argument("--limit", type=non_negative, metavar="N", help=text)
    _add_json(parser)
    verify = parser.add_argument_group("verify")
    verify.add_argument("--verify", action="store_true", help="check every line of the files instead")
    add_server(verify, "also score every trajectory again on this server, and compare log-probabilities")
    verify.add_argument("--model", metavar="NAME", help="the same on the embedded engine: a name, a hub id, a folder")
    verify.add_argument("--max-kl", type=number, metavar="X", help="exit 1 when the mismatch KL is larger")


def add_rescore(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rescore`."""
    _add_run(parser)
    group = parser.add_argument_group("reward", "Without any of these, the run's own environment scores.")
    add_options(group, GROUPS["environment"])
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of the new run (default: RUN-rescored)")
    add_options(parser, ["max_concurrency"], max_concurrency=10)
    add_options(parser, ["reward_threshold"])
    _add_display(parser)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    _add_run(parser)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=".parquet for samples, otherwise .jsonl")
    formats = (
        "samples: our neutral columns, one row a path; sft: messages, ids and labels; prompts: pass rates and sampling "
        "weights for the next run (samples)"
    )
    parser.add_argument("--format", choices=["samples", "sft", "prompts"], default="samples", help=formats)
    parser.add_argument("--min-reward", type=number, metavar="R", help="only rollouts with at least this reward")
    parser.add_argument("--max-reward", type=number, metavar="R", help="only rollouts with at most this reward")
    parser.add_argument("--mixed", action="store_true", help="only prompts whose rollouts differ in their reward")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    _add_json(parser)
    prompts = parser.add_argument_group("prompts", "Only with --format prompts; unscored samples are ignored.")
    bounds = ("LOW", "HIGH")
    prompts.add_argument("--between", nargs=2, type=number, metavar=bounds, help="only pass rates in [LOW, HIGH]")
    prompts.add_argument("--draw", type=positive, metavar="N", help="N rows, each prompt as often as its weight says")
    prompts.add_argument("--seed", type=seed_number, default=0, metavar="N", help="seed of --draw (0)")
    add_options(prompts, ["reward_threshold"])


def add_drift(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `strands-sglang drift`."""
    _add_run(parser)
    parser.add_argument("--tokenizer", metavar="ID", help="tokenizer (default: the run's)")
    _add_json(parser)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `watch`."""
    help = "folder or .jsonl of a run; folder of a training; slime's log"
    parser.add_argument("run", type=existing_run, help=help)
    parser.add_argument("--open", action="store_true", help="show it in the browser, on a page that updates itself")
    parser.add_argument("--port", type=int, metavar="N", help="serve that page on this port, and start no browser")
    parser.add_argument("--tokenizer", metavar="ID", help="for the texts of tokens (default: the run's; none: ids)")
    _add_json(parser, "look once, as JSON")


def add_health(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `health`."""
    help = "folder or .jsonl of a run, .parquet of samples, .json of a gateway, slime's log"
    parser.add_argument("rows", type=existing_run, help=help)
    parser.add_argument("--tokenizer", metavar="ID", help="for drift (default: the run's; none: no drift)")
    _add_json(parser)


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `check`."""
    parser.add_argument("benchmark", nargs="?", help="benchmark whose environment and first task are tried")
    add_options(parser, [*GROUPS["environment"], "data_path", "columns"])
    text = "model whose chat template renders the prompt, or none"
    parser.add_argument("--tokenizer", "--model", "--model-id", metavar="ID", help=text)
    text = "seconds for the proof of the reward on the tasks; 0: none"
    parser.add_argument("--proof-seconds", type=number, default=60.0, metavar="S", help=f"{text} (60)")
    parser.add_argument("--ask-judge", action="store_true", help="prove a reward that asks a model, too")
    _add_json(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="log where user code raised")
    tasks = parser.add_argument_group(
        "container tasks", "With a folder of tasks as --data: runs each task's solution, and a trial that does nothing."
    )
    tasks.add_argument("-n", "--repeats", type=positive, default=2, metavar="N", help="trials of each kind (2)")
    tasks.add_argument("--backend", default="bubblewrap", metavar="NAME", help="bubblewrap, docker, podman, ...")
    tasks.add_argument("--backend-options", type=json_object, metavar="JSON", help="options of the backend")
    tasks.add_argument("--verifier", choices=["task", "separate", "in-place"], default="task", help="where tests run")
    tasks.add_argument("--work", nargs="+", metavar="PATH", help="paths that count as work beside the work directory")
    tasks.add_argument("--keep-processes", action="store_true", help="leave servers of the solution running for tests")
    tasks.add_argument("--cheats", action="store_true", help="also try the built-in cheats on every task")
    tasks.add_argument("--concurrency", type=positive, default=4, metavar="N", help="trials at the same time (4)")
    tasks.add_argument("--limit", type=positive, metavar="N", help="first N tasks only")
    tasks.add_argument("-o", "--output", metavar="FOLDER", help="write report.json and tasks.txt, the sound tasks")


def add_init(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `init`."""
    parser.add_argument("name", help="name of the environment; also of the folder, which must be new or empty")
    _add_json(parser, "the files and the next commands as JSON")


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    parser.add_argument("--model", default="smollm2", metavar="ID", help="a name, a hub id or a folder (smollm2)")
    parser.add_argument("--questions", type=positive, default=4, metavar="N", help="number of questions (4)")
    parser.add_argument("--samples", type=positive, default=3, metavar="N", help="rollouts of each question (3)")
    parser.add_argument("--temperature", type=number, default=1.0, metavar="T", help="0 is greedy (1)")
    parser.add_argument("--max-new-tokens", type=positive, default=64, metavar="N", help="of one model call (64)")
    parser.add_argument(
        "--seed", type=seed_number, default=5, metavar="N", help="the same seed gives the same rollouts (5)"
    )
    _add_json(parser)


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    help = "server to test: it samples one token, as for training; vllm+URL for vLLM"
    parser.add_argument("--server", action="append", default=[], metavar="URL", help=help)
    parser.add_argument("--tokenizer", metavar="ID", help="tokenizer of the servers (default: the one they name)")
    _add_json(parser)


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `images`."""
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    pull = actions.add_parser("pull", help="fetch an image from a registry, with skopeo, podman or docker")
    pull.add_argument("image", help="its reference, as in debian:bookworm-slim")
    pull.add_argument("--name", metavar="NAME", help="another name for it here")
    taken = actions.add_parser("import", help="copy an image from this machine, or an archive")
    taken.add_argument("source", help="podman:NAME, docker:NAME, oci:FOLDER[:TAG], or the path of an archive or layout")
    taken.add_argument("--name", metavar="NAME", help="its name here, such as the docker_image of a task")
    build = actions.add_parser("build", help="build the Dockerfile of a task with podman or docker")
    build.add_argument("folder", help="folder of the task, or one with a Dockerfile")
    build.add_argument("--name", metavar="NAME", help="its name here (default: the one its task looks for)")
    actions.add_parser("list", help="list the images on this machine")
    remove = actions.add_parser("remove", help="remove an image")
    remove.add_argument("image", help="its reference")


COMMANDS: dict[str, tuple[AddArguments, str]] = {
    "eval": (add_eval, "run a benchmark"),
    "train": (add_train, "train a model on an environment with GRPO"),
    "compare": (add_compare, "compare two runs prompt by prompt, with a test of significance"),
    "report": (add_report, "look at a run: as one HTML file, or in the terminal; verify its files"),
    "rescore": (add_rescore, "score saved rollouts with another reward; nothing is sampled again"),
    "export": (add_export, "write a run as training data: Parquet or JSON Lines"),
    "watch": (add_watch, "watch a run or a training in progress, in the terminal or a browser"),
    "health": (add_health, "find problems in rollouts, with advice"),
    "check": (add_check, "try an environment and prove its reward on the tasks; try container tasks"),
    "init": (add_init, "make a folder with an environment, a reward, tasks, a test and a run.yaml"),
    "demo": (add_demo, "sample rollouts of a small model, and see the tokens that re-tokenising would change"),
    "doctor": (add_doctor, "check this machine and suggest fixes"),
    "images": (add_images, "the container images of sandboxes without a daemon"),
}
"""Every subcommand: the function that adds its arguments, and one line of help. Its module has its name."""
FORMER_COMMANDS = {
    "view": "strands-env report RUN --text, or report RUN SAMPLE",
    "verify": "strands-env report RUN --verify",
    "drift": "strands-sglang drift RUN",
    "validate": "strands-env check --data FOLDER",
    "list": "strands-env eval --list",
    "replay": "strands_sglang.backends.ReplayBackend, as client of a model (docs/backends.md)",
}
"""Commands that became options of others, and how each is written now."""


def existing_run(text: str) -> str:
    """The path of a run; a missing one is an error before anything heavy is loaded."""
    if not (text.endswith(".run.json") or os.path.exists(text)):  # results may be without that file
        raise CommandError(f"there are no results at {text!r}: give the folder or the .jsonl of a run", Exit.USAGE)
    return text


def _add_source(parser: argparse.ArgumentParser) -> None:
    text = f"{OPTIONS['benchmark'].metadata['help']}; or a run.yaml with the options"
    parser.add_argument("benchmark", nargs="?", help=text)
    text = "take the rest from a saved run: its folder, x.run.json or run.yaml"
    parser.add_argument("--from-run", metavar="RUN", help=text)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the options as run.yaml and the plan; run nothing"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=existing_run, help="folder or .jsonl of the run")


def _add_json(parser: argparse._ActionsContainer, help: str = "as JSON") -> None:
    parser.add_argument("--json", action="store_true", help=help)


def _add_display(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    _add_json(parser, "the result as JSON on standard output")
    parser.add_argument("-v", "--verbose", action="store_true", help="log warnings of single samples")
